"""The slots of a session: who uses them, and what its client says of them."""

from __future__ import annotations

import pytest

from loaderd.core.batches import BatchBuild, SlotRef
from loaderd.core.session_slots import SessionSlots
from loaderd.core.slots import FINISH, SlotState
from loaderd_testing.scheduler_harness import segment
from loaderd_wire.messages import Released
from loaderd_wire.slices import Slice


def announced(slots: SessionSlots, start: int = 0) -> tuple[BatchBuild, SlotRef]:
    """A batch that is made and announced."""
    place = slots.claim()
    assert place is not None
    build = BatchBuild("train", "raise", False, 7, Slice(0, start, 8))
    build.begin(place)
    slots.tables[place.segment].move(place.slot, FINISH)
    slots.announce(build, place, build.descriptor(1, 1, start // 8), now_s=5.0)
    return build, place


def told(
    slots: SessionSlots, released: tuple[int, ...], taken: tuple[int, ...] = (0, 0, 0)
) -> tuple[str, int]:
    most = tuple(map(max, released, taken))
    fault, changed = slots.give_back(Released(1, released, most))
    return fault, len(changed)


def test_a_slot_goes_from_its_claim_to_its_release_and_then_serves_another_batch() -> None:
    slots = SessionSlots(segment(1, 3))
    build, place = announced(slots)
    assert (place, slots.state_of(place), slots.is_known(build)) == (
        SlotRef(1, 0, 1),
        SlotState.ANNOUNCED,
        True,
    )
    assert told(slots, (0, 0, 0), (1, 0, 0)) == ("", 1)
    assert slots.state_of(place) is SlotState.LEASED
    assert told(slots, (1, 0, 0)) == ("", 1)
    assert (slots.state_of(place), slots.is_known(build), slots.announced) == (
        SlotState.FREE,
        False,
        {},
    )
    assert slots.claim() == SlotRef(1, 0, 2)
    assert slots.state_of(place) is None


def test_the_same_statement_again_changes_nothing() -> None:
    slots = SessionSlots(segment(1, 3))
    announced(slots)
    assert told(slots, (1, 0, 0)) == ("", 1)
    assert told(slots, (1, 0, 0)) == ("", 0)


@pytest.mark.parametrize(
    ("released", "complaint"),
    [
        (
            Released(1, (2, 0, 0), (2, 0, 0)),
            "generation 2 of segment 1 slot 0, of which 1 were given out",
        ),
        (
            Released(1, (0, 1, 0), (0, 1, 0)),
            "generation 1 of segment 1 slot 1, of which 0 were given out",
        ),
        (Released(1, (1, 0), (1, 0)), "2 slots of segment 1, which has 3"),
        (Released(2, (0, 0, 0), (0, 0, 0)), "segment 2, which is not one of its segments"),
    ],
)
def test_a_statement_that_cannot_be_true_is_named_and_changes_nothing(
    released: Released, complaint: str
) -> None:
    slots = SessionSlots(segment(1, 3))
    build, place = announced(slots)
    assert slots.give_back(released) == (complaint, [])
    assert (slots.state_of(place), slots.is_known(build)) == (SlotState.ANNOUNCED, True)


def test_a_slot_that_is_being_filled_again_is_not_freed_by_what_is_said_of_its_last_use() -> None:
    slots = SessionSlots(segment(1, 3))
    announced(slots)
    told(slots, (1, 0, 0))
    again = SlotRef(1, 0, 2)
    assert slots.claim() == again
    assert told(slots, (1, 0, 0), (1, 0, 0)) == ("", 0)
    assert slots.state_of(again) is SlotState.FILLING


def test_slots_are_claimed_in_the_newest_segment_and_an_older_one_is_spent_once_it_is_idle() -> (
    None
):
    slots = SessionSlots(segment(1, 3))
    _, place = announced(slots)
    slots.growing = True
    slots.add(segment(2, 3))
    assert (slots.current, slots.growing, slots.spent(gone=False)) == (2, False, [])
    assert slots.claim() == SlotRef(2, 0, 1)
    told(slots, (1, 0, 0))
    assert slots.spent(gone=False) == [1]
    assert slots.state_of(place) is None
    assert told(slots, (1, 0, 0)) == ("", 0), (
        "a client may go on speaking of a segment that is freed"
    )


def test_all_that_a_client_knew_is_free_once_it_is_gone() -> None:
    slots = SessionSlots(segment(1, 3))
    announced(slots)
    announced(slots, 8)
    assert slots.spent(gone=True) == []
    slots.release_all()
    assert (slots.announced, slots.table.free, slots.spent(gone=True)) == ({}, 3, [1])
