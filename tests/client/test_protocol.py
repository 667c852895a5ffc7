"""The client's half alone: descriptors in any order, leases, plans, segments."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderd_client.protocol import ClientProtocol
from loaderd_wire.errors import ProtocolError
from loaderd_wire.messages import Descriptor, Progress, Released, Segment
from loaderd_wire.slices import Cursor, EpochShape, steps

SHAPE = EpochShape(samples=20, batch_size=4, rank=0, world_size=1, drop_last=True)
START = Cursor(0, 0, 0)


def segment(number: int = 1, slots: int = 5) -> Segment:
    return Segment(number, slots, 4096, 64, 0)


def client(cursor: Cursor = START, prefetch: int = 3) -> ClientProtocol:
    return ClientProtocol(3, SHAPE, prefetch, segment(slots=prefetch + 2), cursor)


def member(cursor: Cursor = START, prefetch: int = 3, slots: int = 4) -> ClientProtocol:
    """Of a group, whose segments have other numbers of slots than this client would need."""
    return ClientProtocol(3, SHAPE, prefetch, segment(slots=slots), cursor, shared=True)


def batch(
    k: int, slot: int, *, plan: int = 1, generation: int = 1, start: Cursor = START, number: int = 1
) -> Descriptor:
    """What a daemon announces as batch k of the plan from `start`."""
    plan_steps = steps(SHAPE, start)
    for _ in range(k):
        next(plan_steps)
    _, cut = next(plan_steps)
    return Descriptor(
        3,
        plan,
        k,
        cut.epoch,
        cut.start,
        cut.rows,
        number,
        slot,
        generation,
        cut.rows,
        False,
        (),
        (),
    )


def released(progress: Progress, number: int = 1) -> Released | None:
    return next((r for r in progress.released if r.segment == number), None)


def take_and_drop(c: ClientProtocol) -> int:
    """next(), by a trainer that keeps nothing."""
    taken = c.take()
    assert taken is not None
    c.release(taken.segment, taken.slot, taken.generation)
    return taken.k


def test_batches_are_taken_in_order_however_they_arrive() -> None:
    c = client()
    for k in (2, 0, 0, 1, 2):
        c.receive(batch(k, slot=k))
    assert [b.k for b in iter(c.take, None)] == [0, 1, 2]


def test_a_late_duplicate_of_a_taken_batch_is_neither_taken_again_nor_given_back() -> None:
    c = client()
    c.receive(batch(0, slot=0))
    assert c.take() is not None
    c.receive(batch(0, slot=0))
    assert c.take() is None
    assert released(c.progress()) == Released(1, (0, 0, 0, 0, 0), (1, 0, 0, 0, 0))


def test_the_cursor_stands_at_the_end_of_its_epoch_until_the_next_batch_is_taken() -> None:
    c = client(Cursor(0, 16, 4))
    c.receive(batch(0, slot=0, start=Cursor(0, 16, 4)))
    assert c.take() is not None
    assert c.cursor == Cursor(0, 20, 5)
    c.receive(batch(1, slot=1, start=Cursor(0, 16, 4)))
    taken = c.take()
    assert taken is not None
    assert (taken.epoch, c.cursor) == (1, Cursor(1, 4, 1))


def test_a_seek_to_where_the_plan_goes_on_anyway_is_no_seek() -> None:
    c = client(Cursor(0, 16, 4))
    c.receive(batch(0, slot=0, start=Cursor(0, 16, 4)))
    c.take()
    c.seek(Cursor(1, 0, 0))
    assert c.plan == 1
    assert c.cursor == Cursor(1, 0, 0)
    c.seek(Cursor(1, 4, 1))
    assert c.plan == 2


def test_a_seek_keeps_what_the_new_plan_begins_with_and_gives_back_the_rest() -> None:
    c = client()
    for k in range(3):
        c.receive(batch(k, slot=k))
    c.seek(Cursor(0, 8, 2))
    assert released(c.progress()) == Released(1, (1, 1, 0, 0, 0), (1, 1, 0, 0, 0))
    kept = c.take()
    assert kept is not None
    assert (kept.slot, kept.start) == (2, 8)
    p = c.progress()
    assert (p.plan, p.epoch, p.position, p.step, p.taken, p.have) == (2, 0, 8, 2, 1, 1)


def test_a_descriptor_that_arrives_after_the_seek_is_judged_by_the_same_rule() -> None:
    c = client()
    c.seek(Cursor(0, 8, 2))
    c.receive(batch(1, slot=1))
    c.receive(batch(2, slot=2))
    assert released(c.progress()) == Released(1, (0, 1, 0, 0, 0), (0, 1, 0, 0, 0))
    kept = c.take()
    assert kept is not None
    assert kept.slot == 2


def test_a_batch_that_the_trainer_has_had_is_not_served_again_after_a_seek_back() -> None:
    c = client()
    c.receive(batch(0, slot=0))
    c.take()
    c.seek(START)
    c.receive(batch(0, slot=0))
    assert c.take() is None
    p = c.progress()
    assert (p.plan, p.have, released(p)) == (2, 0, Released(1, (0,) * 5, (1, 0, 0, 0, 0)))


def test_a_new_announcement_takes_the_place_of_one_that_was_kept() -> None:
    c = client()
    c.receive(batch(0, slot=0))
    c.seek(Cursor(1, 0, 0))
    c.seek(START)
    c.receive(batch(0, slot=1))  # kept over two seeks
    c.receive(batch(0, slot=2, plan=3))
    assert released(c.progress()) == Released(1, (1, 1, 0, 0, 0), (1, 1, 0, 0, 0))
    taken = c.take()
    assert taken is not None
    assert taken.slot == 2


def test_a_batch_announced_for_a_number_already_taken_is_given_back() -> None:
    c = client()
    c.receive(batch(0, slot=0))
    c.take()
    c.receive(batch(0, slot=3))
    p = c.progress()
    assert released(p) == Released(1, (0, 0, 0, 1, 0), (1, 0, 0, 1, 0))


def test_a_release_may_be_said_twice_and_never_counts_for_another_generation() -> None:
    c = client()
    c.receive(batch(0, slot=0))
    c.take()
    c.release(1, 0, 1)
    c.release(1, 0, 1)
    c.receive(batch(1, slot=0, generation=2))
    c.take()
    c.release(1, 0, 1)
    assert c.free_slots() == 4
    with pytest.raises(ValueError, match="generation 3 of segment 1 slot 0 was never lent"):
        c.release(1, 0, 3)
    with pytest.raises(ValueError, match="never lent"):
        c.release(9, 0, 1)


def test_a_progress_is_due_after_anything_that_the_daemon_must_know() -> None:
    c = client()
    assert c.dirty
    c.progress()
    c.receive(batch(0, slot=0))
    assert not c.dirty
    c.take()
    assert c.dirty
    first = c.progress()
    assert not c.dirty
    c.release(1, 0, 1)
    assert c.dirty
    assert c.progress().seq == first.seq + 1


def test_what_was_taken_is_told_late_while_batches_are_in_hand() -> None:
    c = client(prefetch=4)
    assert c.due
    c.progress()
    for k in range(4):
        c.receive(batch(k, slot=k))
    assert take_and_drop(c) == 0
    assert c.dirty
    assert not c.due
    assert take_and_drop(c) == 1
    assert c.due
    assert c.progress().taken == 2
    assert take_and_drop(c) == 2
    assert not c.due
    assert take_and_drop(c) == 3  # the last one in hand: who takes the next one waits for it
    assert c.due


def test_with_a_short_window_each_batch_is_told_at_once() -> None:
    c = client(prefetch=3)
    c.progress()
    c.receive(batch(0, slot=0))
    c.receive(batch(1, slot=1))
    take_and_drop(c)
    assert c.due


def test_who_keeps_batches_tells_of_each_slot_that_comes_back() -> None:
    c = client(prefetch=6)
    for k in range(6):
        c.receive(batch(k, slot=k))
    for _ in range(4):
        assert c.take() is not None
    c.progress()
    c.release(1, 0, 1)
    assert c.due


def test_a_slot_that_goes_back_unread_and_a_segment_that_ends_are_told_at_once() -> None:
    c = client(prefetch=6)
    c.receive(batch(0, slot=0))
    c.receive(batch(1, slot=1))
    c.progress()
    c.receive(batch(0, slot=2))  # made anew in another slot: the first one is of no use
    assert c.due
    c.progress()
    take_and_drop(c)
    assert not c.due
    c.add_segment(segment(2, slots=8))
    take_and_drop(c)
    c.receive(batch(2, slot=0, number=2))
    assert c.due


def test_a_batch_behind_a_gap_is_not_told_as_had() -> None:
    c = client()
    c.receive(batch(1, slot=1))
    assert c.progress().have == 0
    c.receive(batch(0, slot=0))
    assert c.progress().have == 2


# segments


def test_a_descriptor_before_its_segment_waits_for_it() -> None:
    c = client()
    c.receive(batch(0, slot=4, number=2))
    assert c.take() is None
    assert not c.known(2)
    c.add_segment(segment(2))
    taken = c.take()
    assert taken is not None
    assert taken.segment == 2


def test_an_old_segment_lives_as_long_as_something_of_it_is_outstanding() -> None:
    c = client()
    c.receive(batch(0, slot=0))
    c.receive(batch(1, slot=1))
    c.take()
    c.add_segment(segment(2))
    assert c.live == (1, 2)
    c.take()
    c.release(1, 0, 1)
    assert c.live == (1, 2)
    c.release(1, 1, 1)
    assert c.live == (2,)
    assert released(c.progress()) == Released(1, (1, 1, 0, 0, 0), (1, 1, 0, 0, 0))
    assert released(c.progress()) is None


def test_what_is_announced_in_a_segment_that_is_done_with_is_given_back_and_told_again() -> None:
    c = client()
    c.add_segment(segment(2))
    c.progress()
    assert released(c.progress()) is None
    c.receive(batch(0, slot=0))
    assert c.take() is None
    assert c.live == (2,)
    assert released(c.progress()) == Released(1, (1, 0, 0, 0, 0), (1, 0, 0, 0, 0))
    assert released(c.progress()) is None
    c.receive(batch(0, slot=0))  # the daemon did not hear of it
    assert c.dirty
    assert released(c.progress()) == Released(1, (1, 0, 0, 0, 0), (1, 0, 0, 0, 0))


def test_a_descriptor_for_a_segment_to_come_can_be_given_back_before_it_comes() -> None:
    c = client()
    c.receive(batch(0, slot=4, number=2))
    c.seek(Cursor(7, 0, 0))
    assert released(c.progress(), 2) == Released(2, (0, 0, 0, 0, 1), (0, 0, 0, 0, 1))


# what no daemon sends


@pytest.mark.parametrize(
    "change",
    [
        {"start": 4},
        {"rows": 3},
        {"epoch": 1},
        {"plan": 2},
        {"plan": 0},
        {"k": 3},
        {"slot": 5},
        {"segment": 0},
        {"generation": 0},
    ],
)
def test_a_forged_descriptor_is_a_protocol_error(change: dict[str, int]) -> None:
    c = client()
    with pytest.raises(ProtocolError):
        c.receive(replace(batch(0, slot=0), **change))


def test_descriptors_for_many_segments_that_never_came_are_a_protocol_error() -> None:
    c = client()
    with pytest.raises(ProtocolError, match=r"segment \d+ slot 0 generation 1 can't be"):  # noqa: PT012 - some number of them is too many
        for number in range(1000, 2000):
            c.receive(batch(0, slot=0, number=number))


def test_a_slot_announced_anew_while_it_is_lent_out_is_a_protocol_error() -> None:
    c = client()
    c.receive(batch(0, slot=0))
    c.take()
    with pytest.raises(ProtocolError, match="before the one in use was given back"):
        c.receive(batch(1, slot=0, generation=2))


def test_a_slot_announced_anew_while_it_waits_to_be_taken_is_a_protocol_error() -> None:
    c = client()
    c.receive(batch(0, slot=0))
    with pytest.raises(ProtocolError, match="before the one in use was given back"):
        c.receive(batch(1, slot=0, generation=2))


def test_a_descriptor_of_another_session_is_passed_over() -> None:
    c = client()
    c.receive(replace(batch(0, slot=0), session=2))
    assert c.take() is None


@pytest.mark.parametrize("bad", [Segment(0, 5, 4096, 64, 0), Segment(2, 4, 4096, 64, 0)])
def test_a_segment_out_of_order_or_of_another_size_is_a_protocol_error(bad: Segment) -> None:
    with pytest.raises(ProtocolError):
        client().add_segment(bad)


def test_a_segment_too_small_for_the_prefetch_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="too small for prefetch = 9"):
        ClientProtocol(3, SHAPE, 9, segment(), START)


def test_a_late_descriptor_is_not_kept_for_a_number_that_the_daemon_would_not_keep_it_for() -> None:
    c = client()
    start = Cursor(0, 4, 1)
    c.seek(start)
    c.receive(batch(0, slot=3, plan=2, start=start))
    c.take()
    # Position 16 is batch 3 of the new plan: in the window now, but not among its first three.
    c.receive(batch(2, slot=2, start=Cursor(0, 8, 2)))
    assert released(c.progress()) == Released(1, (0, 0, 1, 0, 0), (0, 0, 1, 1, 0))


def test_a_batch_kept_over_a_seek_gives_up_the_last_slot_that_the_next_one_could_be_made_in() -> (
    None
):
    c = client()
    for k in range(4):
        c.receive(batch(k, slot=k))
        assert c.take() is not None
    c.receive(batch(4, slot=4))
    assert c.free_slots() == 1
    # batch 4 is the second of this plan, and the trainer holds all other slots
    c.seek(Cursor(0, 12, 3))
    told = released(c.progress(waiting=True))
    assert told is not None
    assert told.generations == (0, 0, 0, 0, 1)


def test_a_batch_kept_over_a_seek_stays_while_another_slot_is_free() -> None:
    c = client()
    for k in range(3):
        c.receive(batch(k, slot=k))
        assert c.take() is not None
    c.receive(batch(3, slot=3))
    c.seek(Cursor(0, 8, 2))
    told = released(c.progress(waiting=True))
    assert told is not None
    assert told.generations == (0, 0, 0, 0, 0)


# groups


def test_a_group_has_as_many_slots_as_it_needs_and_its_next_segment_fewer_or_more() -> None:
    with pytest.raises(ProtocolError, match="too small"):
        ClientProtocol(3, SHAPE, 6, segment(slots=4), START)
    c = member(prefetch=6, slots=4)
    c.add_segment(segment(2, slots=7))
    c.add_segment(segment(3, slots=2))
    c.receive(batch(0, slot=1, number=3))
    take_and_drop(c)
    assert released(c.progress(), 3) == Released(3, (0, 1), (0, 1))
    with pytest.raises(ProtocolError):
        client().add_segment(segment(2, slots=7))


def test_a_batch_of_a_groups_segment_to_come_is_told_of_when_its_slots_are_known() -> None:
    c = member()
    c.receive(batch(0, slot=5, number=2))
    c.receive(batch(1, slot=3, number=2))
    c.seek(Cursor(7, 0, 0))
    assert released(c.progress(), 2) is None
    assert not c.dirty
    c.add_segment(segment(2, slots=7))
    assert c.dirty
    assert released(c.progress(), 2) == Released(2, (0, 0, 0, 1, 0, 1, 0), (0, 0, 0, 1, 0, 1, 0))


def test_a_groups_segment_that_lacks_a_slot_which_was_announced_is_refused() -> None:
    c = member()
    c.receive(batch(0, slot=5, number=2))
    with pytest.raises(ProtocolError, match="came after"):
        c.add_segment(segment(2, slots=5))
    with pytest.raises(ProtocolError, match="can't be"):
        c.receive(batch(0, slot=1 << 20, number=2))


def test_a_slot_is_announced_again_after_it_was_given_back_with_any_later_generation() -> None:
    c = member()
    for k, generation in enumerate((2, 3, 9)):
        c.receive(batch(k, slot=1, generation=generation))
        assert take_and_drop(c) == k
        assert released(c.progress()) == Released(1, (0, generation, 0, 0), (0, generation, 0, 0))


def test_a_member_of_a_group_tells_each_batch_that_it_has_taken() -> None:
    c = member(prefetch=6)
    c.progress()
    for k in (0, 1):
        c.receive(batch(k, slot=k))
    take_and_drop(c)
    assert c.due
    alone = client(prefetch=6)
    alone.progress()
    for k in (0, 1):
        alone.receive(batch(k, slot=k))
    take_and_drop(alone)
    assert not alone.due
