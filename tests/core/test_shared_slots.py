"""Slots of a group: who keeps which, and how many one client may keep."""

from __future__ import annotations

import pytest

from loaderd.core.batches import BatchBuild, SlotRef
from loaderd.core.shared_slots import MOST_TOLD, MemberSlots, SharedSlots
from loaderd.core.slots import ANNOUNCED, FINISH, READY
from loaderd_testing.scheduler_harness import segment
from loaderd_wire.messages import Released, Segment
from loaderd_wire.slices import Slice


def group(clients: int, slots: int) -> tuple[SharedSlots, list[MemberSlots]]:
    shared = SharedSlots(segment(1, slots))
    return shared, [MemberSlots(shared) for _ in range(clients)]


def ready(shared: SharedSlots) -> BatchBuild:
    build = BatchBuild("train", "raise", False, 7, Slice(0, 0, 8), epoch_samples=64)
    place = shared.claim()
    assert place is not None
    build.begin(place)
    shared.tables[place.segment].move(place.slot, FINISH)
    return build


def tell(client: MemberSlots, build: BatchBuild) -> SlotRef:
    assert build.place is not None
    client.announce(build, build.place, build.descriptor(1, 1, 0), 0.0)
    return build.place


def back(client: MemberSlots, *generations: int, segment: int = 1) -> str:
    return client.give_back(Released(segment, generations, generations))[0]


def test_a_slot_is_kept_until_the_last_client_has_given_it_back() -> None:
    shared, (one, other) = group(2, 3)
    build = ready(shared)
    place = tell(one, build)
    tell(other, build)
    said = [0] * 3
    said[place.slot] = 1
    assert back(one, *said) == ""
    assert shared.state_of(place) is ANNOUNCED
    assert back(one, *said) == ""  # once more
    assert shared.state_of(place) is ANNOUNCED
    assert back(other, *said) == ""
    assert shared.state_of(place) is READY


def test_one_that_has_gone_keeps_nothing() -> None:
    shared, (one, other) = group(2, 3)
    place = tell(one, ready(shared))
    one.release_all()
    assert (shared.state_of(place), shared.pins, shared.clients) == (READY, {}, [other])


def test_a_generation_that_a_client_was_not_told_of_changes_nothing() -> None:
    shared, (one, other) = group(2, 3)
    build = ready(shared)
    tell(one, build)
    shared.renew(build)
    place = tell(other, build)
    said = [0] * 3
    said[place.slot] = 2
    assert back(one, *said).startswith("generation 2 of segment 1 slot")
    assert back(other, *said) == ""
    assert shared.state_of(place) is ANNOUNCED


@pytest.mark.parametrize(("clients", "slots", "kept"), [(2, 5, MOST_TOLD), (4, 5, 1), (4, 7, 2)])
def test_one_slot_is_left_for_each_client(clients: int, slots: int, kept: int) -> None:
    shared, members = group(clients, slots)
    one = members[0]
    while one.may_tell(4, needed=not one.announced):
        tell(one, ready(shared))
    assert len(one.announced) == kept


def test_one_that_gives_nothing_back_keeps_few_slots_whatever_it_asks_for() -> None:
    shared, (one, _) = group(2, 20)
    while one.may_tell(4, needed=True):
        tell(one, ready(shared))
    assert len(one.announced) == 4 + MOST_TOLD


def test_what_was_told_of_a_segment_that_has_gone_is_forgotten() -> None:
    shared, (one,) = group(1, 2)
    for number in range(2, 9):
        build = ready(shared)
        place = tell(one, build)
        shared.add(Segment(number, 2, 4096, 64, 0))
        back(one, *(int(slot == place.slot) for slot in range(2)), segment=number - 1)
        shared.tables[place.segment].abandon(place.slot)
        assert shared.spent(gone=False) == [number - 1]
    assert len(one._told) <= 2
