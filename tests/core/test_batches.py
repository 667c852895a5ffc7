"""One batch from its slot to its descriptor: pieces, lost rows, bad samples."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderd.core.actions import Quarantine, Send
from loaderd.core.batches import Draft, Piece, Place, cap
from loaderd.core.jobs import Condemned, Done, Job, Kind
from loaderd_testing.scheduler_harness import House, bad_row, done
from loaderd_wire.codec import MAX_MESSAGE, WIRE
from loaderd_wire.messages import Batch
from loaderd_wire.slices import Shape, Slice
from loaderd_wire.slots import Chunk


def test_a_bad_row_under_raise_fails_its_batch_in_its_turn() -> None:
    house = House()
    house.make = lambda job: done(job, (bad_row(job.first),) if job.start == 8 and job.first == 0 else ())
    house.attach()
    first, second, third = house.take(), house.take(), house.take()
    assert (first.failed, third.failed) == (False, False)
    assert second.failed
    assert second.filled == 0
    assert second.chunks == ()
    assert [b.key for b in second.bad] == ["key0"]
    assert [type(a) for a in house.log if isinstance(a, Quarantine)] == [Quarantine]


def test_a_lost_row_under_skip_is_closed_up_by_one_more_job() -> None:
    house = House(on_error="skip", workers=2)
    house.make = lambda job: done(job, (bad_row(2),) if job.kind == Kind.FILL and job.first <= 2 < job.last else (), size=20)
    house.attach(prefetch=1)
    house.work()
    assert [(j.kind, j.lost) for j in house.jobs()] == [(Kind.COMPACT, (2,))]
    house.work()
    house.hear()
    batch = house.clients[1].take()
    assert batch is not None
    assert batch.filled == 7
    assert not batch.failed
    assert [(c.first, c.last) for c in batch.chunks] == [(0, 3), (3, 7)]


def test_lost_rows_at_the_end_of_a_batch_need_no_closing_up() -> None:
    house = House(on_error="skip", workers=1)
    house.make = lambda job: done(job, (bad_row(6), bad_row(7)))
    house.attach()
    batch = house.take()
    assert batch.filled == 6
    assert not [a for a in house.log if isinstance(a, Send) and a.job.kind == Kind.COMPACT]


@pytest.mark.parametrize("collated", [False, True])
def test_a_batch_that_lost_all_its_rows_under_skip_is_announced_without_rows(collated: bool) -> None:
    house = House(on_error="skip", collated=collated)

    def make(job: Job) -> Done:
        bad = tuple(bad_row(row) for row in range(job.first, job.last)) if job.start == 0 else ()
        return done(job, bad, size=0 if collated and bad else 24)

    house.make = make
    house.attach()
    batch = house.take()
    assert (batch.failed, batch.rows, batch.filled, batch.chunks) == (False, 8, 0, ())
    assert len(batch.bad) == 8
    assert not house.jobs(Kind.COMPACT)
    assert house.take().filled == 8


def test_a_batch_whose_samples_all_kill_their_worker_is_announced_without_rows() -> None:
    house = House(workers=1, on_error="skip")
    house.attach(shape=Shape(64, 2, 0, 1, True), prefetch=1)
    for _ in range(20):
        worker = max(house.sent)
        if not house.sent[worker] or house.sent[worker][0].start:
            break
        house.die(worker, house.sent[worker][0].first)
    batch = house.take()
    assert (batch.failed, batch.filled, [bad.index for bad in batch.bad]) == (False, 0, [0, 10])


def test_a_row_without_a_substitute_fails_its_batch_under_replace() -> None:
    house = House(on_error="replace")
    house.make = lambda job: done(job, (bad_row(job.first, lost=job.start == 8),))
    house.attach()
    assert not house.take().failed
    assert house.take().failed


def test_the_tracebacks_of_many_bad_samples_stay_below_a_messages_size() -> None:
    shape, long = Shape(1 << 14, 1 << 13, 0, 1, True), "x" * 100_000
    house = House(samples=1 << 14, workers=1)
    house.make = lambda job: done(job, tuple(bad_row(row, traceback=long) for row in range(job.first, job.last)))
    house.attach(shape=shape, prefetch=1)
    batch = house.take()
    assert batch.failed
    assert len(batch.bad) > 1000
    assert [len(b.traceback) for b in batch.bad[:17]] == [8192] * 16 + [0]
    assert len(WIRE.encode(batch)) < MAX_MESSAGE / 2


def test_bad_samples_with_long_names_stay_below_a_messages_size() -> None:
    bad = [replace(bad_row(row).sample, key="k" * 5000) for row in range(4000)]
    assert sum(len(sample.key) for sample in cap(bad)) < MAX_MESSAGE // 4


CUT = Slice(epoch=3, start=64, rows=8)
PLACE = Place(segment=1, slot=2, generation=5)


def draft_of(on_error: str = "raise", *, collated: bool = False) -> Draft:
    draft = Draft("train", on_error, collated, 7, CUT)
    draft.begin(PLACE)
    return draft


def pieces(draft: Draft) -> list[tuple[int, int, int]]:
    return [(piece.kind, piece.first, piece.last) for piece in draft.todo]


def test_a_batch_is_cut_into_as_many_jobs_as_asked_for_and_the_last_one_is_the_shortest() -> None:
    draft, jobs = draft_of(), []
    while draft.has_work:
        jobs.append(draft.hand_out(len(jobs) + 1, 3))
    assert jobs == [
        Job(1, Kind.FILL, "train", 1, 2, 7, 3, 64, 8, 0, 3),
        Job(2, Kind.FILL, "train", 1, 2, 7, 3, 64, 8, 3, 6),
        Job(3, Kind.FILL, "train", 1, 2, 7, 3, 64, 8, 6, 8),
    ]
    assert (draft.missing(), draft.whole) == ([(0, 3), (3, 6), (6, 8)], False)


def test_a_batch_is_whole_once_the_last_job_is_in_and_its_chunks_come_in_the_order_of_rows() -> None:
    draft = draft_of()
    jobs = [draft.hand_out(number, 2) for number in (1, 2)]
    draft.absorb(2, done(jobs[1], size=10))
    assert not draft.whole
    draft.absorb(1, done(jobs[0], size=20))
    assert draft.whole
    descriptor = draft.descriptor(session=9, plan=4, k=6)
    assert descriptor == Batch(9, 4, 6, 3, 64, 8, 1, 2, 5, 8, False, (Chunk(0, 4, 4096, 20), Chunk(4, 8, 4100, 10)), ())


def test_pieces_that_are_run_again_come_first_and_in_their_order() -> None:
    draft = draft_of()
    draft.hand_out(1, 2)
    draft.redo([Piece(Kind.FILL, 0, 2), Piece(Kind.FILL, 2, 3)])
    assert pieces(draft) == [(Kind.FILL, 0, 2), (Kind.FILL, 2, 3), (Kind.FILL, 4, 8)]


def test_chunks_behind_lost_rows_count_the_rows_that_are_left() -> None:
    draft = draft_of("skip")
    first, last = draft.hand_out(1, 2), draft.hand_out(2, 2)
    draft.absorb(1, done(first, (bad_row(0), bad_row(2)), size=20))
    draft.absorb(2, done(last, size=10))
    assert pieces(draft) == [(Kind.COMPACT, 0, 8)]
    compact = draft.hand_out(3, 2)
    assert (compact.kind, compact.lost) == (Kind.COMPACT, (0, 2))
    draft.absorb(3, done(compact))
    descriptor = draft.descriptor(1, 1, 0)
    assert (descriptor.filled, descriptor.chunks) == (6, (Chunk(0, 2, 4096, 20), Chunk(2, 6, 4100, 10)))
    assert [sample.index for sample in descriptor.bad] == [1000, 1002]


def test_a_new_start_forgets_all_but_what_is_known_against_samples() -> None:
    draft = draft_of("skip")
    job = draft.hand_out(1, 1)
    draft.absorb(1, done(job, (bad_row(7),), size=20))
    draft.blame.convict(3, 0, bad_row(3).sample)
    draft.begin(Place(1, 0, 9))
    assert (draft.attempt, draft.found, draft.chunks, draft.lost) == (2, {}, [], (3,))
    again = draft.hand_out(2, 1)
    assert (again.condemned, again.lost) == ((Condemned(3, 0),), (3,))


def test_a_collated_batch_is_one_piece_whatever_it_is_cut_into() -> None:
    draft = draft_of(collated=True)
    job = draft.hand_out(1, 4)
    assert (job.kind, job.first, job.last, draft.has_work) == (Kind.BATCH, 0, 8, False)


def test_a_batch_without_a_slot_has_no_work_and_cannot_be_announced() -> None:
    draft = draft_of()
    draft.begin(None)
    assert not draft.has_work
    assert not draft.whole
    with pytest.raises(AssertionError, match="without a slot"):
        draft.descriptor(1, 1, 0)


def test_of_very_many_bad_samples_the_first_ones_are_kept_and_few_with_their_traceback() -> None:
    kept = cap(replace(bad_row(row).sample, traceback="T" * 9000, message="m" * 300) for row in range(2000))
    assert [len(sample.traceback) for sample in kept[:17]] == [8192] * 16 + [0]
    assert [len(sample.message) for sample in kept[15:17]] == [300, 200]
    assert [sample.index for sample in kept] == list(range(1000, 1000 + len(kept)))
    assert 500 < len(kept) < 1000
