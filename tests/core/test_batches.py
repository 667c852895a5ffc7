"""One batch from its slot to its descriptor: pieces, lost rows, bad samples."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderd.core.actions import Quarantine, SendJob
from loaderd.core.batches import BatchBuild, RowRange, SlotRef, cap
from loaderd.core.jobs import Done, Excluded, Job, JobKind
from loaderd_testing.scheduler_harness import SchedulerHarness, bad_row, done
from loaderd_wire.codec import MAX_MESSAGE, WIRE
from loaderd_wire.messages import Descriptor
from loaderd_wire.slices import EpochShape, Slice
from loaderd_wire.slots import Chunk


def test_a_bad_row_under_raise_fails_its_batch_in_its_turn() -> None:
    harness = SchedulerHarness()
    harness.make = lambda job: done(
        job, (bad_row(job.first),) if job.start == 8 and job.first == 0 else ()
    )
    harness.attach()
    first, second, third = harness.take(), harness.take(), harness.take()
    assert (first.failed, third.failed) == (False, False)
    assert second.failed
    assert second.filled == 0
    assert second.chunks == ()
    assert [b.key for b in second.bad] == ["key0"]
    assert [type(a) for a in harness.log if isinstance(a, Quarantine)] == [Quarantine]


def test_a_lost_row_under_skip_is_closed_up_by_one_more_job() -> None:
    harness = SchedulerHarness(on_error="skip", workers=2)
    harness.make = lambda job: done(
        job,
        (bad_row(2),) if job.kind == JobKind.FILL and job.first <= 2 < job.last else (),
        size=20,
    )
    harness.attach(prefetch=1)
    harness.work()
    assert [(j.kind, j.lost) for j in harness.jobs()] == [(JobKind.COMPACT, (2,))]
    harness.work()
    harness.hear()
    batch = harness.clients[1].take()
    assert batch is not None
    assert batch.filled == 7
    assert not batch.failed
    assert [(c.first, c.last) for c in batch.chunks] == [(0, 3), (3, 7)]


def test_lost_rows_at_the_end_of_a_batch_need_no_closing_up() -> None:
    harness = SchedulerHarness(on_error="skip", workers=1)
    harness.make = lambda job: done(job, (bad_row(6), bad_row(7)))
    harness.attach()
    batch = harness.take()
    assert batch.filled == 6
    assert not [a for a in harness.log if isinstance(a, SendJob) and a.job.kind == JobKind.COMPACT]


@pytest.mark.parametrize("collated", [False, True])
def test_a_batch_that_lost_all_its_rows_under_skip_is_announced_without_rows(
    collated: bool,
) -> None:
    harness = SchedulerHarness(on_error="skip", collated=collated)

    def make(job: Job) -> Done:
        bad = tuple(bad_row(row) for row in range(job.first, job.last)) if job.start == 0 else ()
        return done(job, bad, size=0 if collated and bad else 24)

    harness.make = make
    harness.attach()
    batch = harness.take()
    assert (batch.failed, batch.rows, batch.filled, batch.chunks) == (False, 8, 0, ())
    assert len(batch.bad) == 8
    assert not harness.jobs(JobKind.COMPACT)
    assert harness.take().filled == 8


def test_a_batch_whose_samples_all_kill_their_worker_is_announced_without_rows() -> None:
    harness = SchedulerHarness(workers=1, on_error="skip")
    harness.attach(shape=EpochShape(64, 2, 0, 1, True), prefetch=1)
    for _ in range(20):
        worker = max(harness.sent)
        if not harness.sent[worker] or harness.sent[worker][0].start:
            break
        harness.die(worker, harness.sent[worker][0].first)
    batch = harness.take()
    assert (batch.failed, batch.filled, [bad.index for bad in batch.bad]) == (False, 0, [0, 10])


def test_a_row_without_a_substitute_fails_its_batch_under_replace() -> None:
    harness = SchedulerHarness(on_error="replace")
    harness.make = lambda job: done(job, (bad_row(job.first, lost=job.start == 8),))
    harness.attach()
    assert not harness.take().failed
    assert harness.take().failed


def test_the_tracebacks_of_many_bad_samples_stay_below_a_messages_size() -> None:
    shape, long = EpochShape(1 << 14, 1 << 13, 0, 1, True), "x" * 100_000
    harness = SchedulerHarness(samples=1 << 14, workers=1)
    harness.make = lambda job: done(
        job, tuple(bad_row(row, traceback=long) for row in range(job.first, job.last))
    )
    harness.attach(shape=shape, prefetch=1)
    batch = harness.take()
    assert batch.failed
    assert len(batch.bad) > 1000
    assert [len(b.traceback) for b in batch.bad[:17]] == [8192] * 16 + [0]
    assert len(WIRE.encode(batch)) < MAX_MESSAGE / 2


def test_bad_samples_with_long_names_stay_below_a_messages_size() -> None:
    bad = [replace(bad_row(row).sample, key="k" * 5000) for row in range(4000)]
    assert sum(len(sample.key) for sample in cap(bad)) < MAX_MESSAGE // 4


CUT = Slice(epoch=3, start=64, rows=8)
PLACE = SlotRef(segment=1, slot=2, generation=5)


def draft_of(on_error: str = "raise", *, collated: bool = False) -> BatchBuild:
    build = BatchBuild("train", on_error, collated, 7, CUT)
    build.begin(PLACE)
    return build


def pieces(build: BatchBuild) -> list[tuple[int, int, int]]:
    return [(piece.kind, piece.first, piece.last) for piece in build.todo]


def test_a_batch_is_cut_into_as_many_jobs_as_asked_for_and_the_last_one_is_the_shortest() -> None:
    build, jobs = draft_of(), []
    while build.has_work:
        jobs.append(build.hand_out(len(jobs) + 1, 3))
    assert jobs == [
        Job(1, JobKind.FILL, "train", 1, 2, 7, 3, 64, 8, 0, 3),
        Job(2, JobKind.FILL, "train", 1, 2, 7, 3, 64, 8, 3, 6),
        Job(3, JobKind.FILL, "train", 1, 2, 7, 3, 64, 8, 6, 8),
    ]
    assert (build.missing(), build.whole) == ([(0, 3), (3, 6), (6, 8)], False)


def test_a_batch_is_whole_once_the_last_job_is_in_and_its_chunks_come_in_the_order_of_rows() -> (
    None
):
    build = draft_of()
    jobs = [build.hand_out(number, 2) for number in (1, 2)]
    build.absorb(2, done(jobs[1], size=10))
    assert not build.whole
    build.absorb(1, done(jobs[0], size=20))
    assert build.whole
    descriptor = build.descriptor(session=9, plan=4, k=6)
    assert descriptor == Descriptor(
        9, 4, 6, 3, 64, 8, 1, 2, 5, 8, False, (Chunk(0, 4, 4096, 20), Chunk(4, 8, 4100, 10)), ()
    )


def test_pieces_that_are_run_again_come_first_and_in_their_order() -> None:
    build = draft_of()
    build.hand_out(1, 2)
    build.redo([RowRange(JobKind.FILL, 0, 2), RowRange(JobKind.FILL, 2, 3)])
    assert pieces(build) == [(JobKind.FILL, 0, 2), (JobKind.FILL, 2, 3), (JobKind.FILL, 4, 8)]


def test_chunks_behind_lost_rows_count_the_rows_that_are_left() -> None:
    build = draft_of("skip")
    first, last = build.hand_out(1, 2), build.hand_out(2, 2)
    build.absorb(1, done(first, (bad_row(0), bad_row(2)), size=20))
    build.absorb(2, done(last, size=10))
    assert pieces(build) == [(JobKind.COMPACT, 0, 8)]
    compact = build.hand_out(3, 2)
    assert (compact.kind, compact.lost) == (JobKind.COMPACT, (0, 2))
    build.absorb(3, done(compact))
    descriptor = build.descriptor(1, 1, 0)
    assert (descriptor.filled, descriptor.chunks) == (
        6,
        (Chunk(0, 2, 4096, 20), Chunk(2, 6, 4100, 10)),
    )
    assert [sample.index for sample in descriptor.bad] == [1000, 1002]


def test_a_new_start_forgets_all_but_what_is_known_against_samples() -> None:
    build = draft_of("skip")
    job = build.hand_out(1, 1)
    build.absorb(1, done(job, (bad_row(7),), size=20))
    build.ledger.mark_bad(3, 0, bad_row(3).sample)
    build.begin(SlotRef(1, 0, 9))
    assert (build.attempt, build.found, build.chunks, build.lost) == (2, {}, [], (3,))
    again = build.hand_out(2, 1)
    assert (again.excluded, again.lost) == ((Excluded(3, 0),), (3,))


def test_a_collated_batch_is_one_piece_whatever_it_is_cut_into() -> None:
    build = draft_of(collated=True)
    job = build.hand_out(1, 4)
    assert (job.kind, job.first, job.last, build.has_work) == (JobKind.BATCH, 0, 8, False)


@pytest.mark.parametrize(("collated", "again"), [(False, []), (True, [(JobKind.BATCH, 0, 8)])])
def test_a_batch_one_of_whose_rows_hangs_is_begun_anew_row_by_row(
    collated: bool, again: list[tuple[int, int, int]]
) -> None:
    build = draft_of("skip", collated=collated)
    build.apart = True
    build.ledger.mark_bad(3, 0, bad_row(3).sample)
    build.begin(PLACE)
    alone = JobKind.TRIAL if collated else JobKind.FILL
    assert pieces(build) == [(alone, row, row + 1) for row in range(8) if row != 3] + again


def test_a_batch_in_whose_making_workers_died_tries_each_row_alone_and_then_all_again() -> None:
    build = draft_of()
    build.ledger.batch_deaths = 1
    build.begin(PLACE)
    assert pieces(build) == [
        *((JobKind.FILL, row, row + 1) for row in range(8)),
        (JobKind.FILL, 0, 8),
    ]


def test_a_batch_without_a_slot_has_no_work_and_cannot_be_announced() -> None:
    build = draft_of()
    build.begin(None)
    assert not build.has_work
    assert not build.whole
    with pytest.raises(AssertionError, match="without a slot"):
        build.descriptor(1, 1, 0)


def test_of_very_many_bad_samples_the_first_ones_are_kept_and_few_with_their_traceback() -> None:
    kept = cap(
        replace(bad_row(row).sample, traceback="T" * 9000, message="m" * 300) for row in range(2000)
    )
    assert [len(sample.traceback) for sample in kept[:17]] == [8192] * 16 + [0]
    assert [len(sample.message) for sample in kept[15:17]] == [300, 200]
    assert [sample.index for sample in kept] == list(range(1000, 1000 + len(kept)))
    assert 500 < len(kept) < 1000


def test_rows_without_a_sample_are_not_in_the_slot() -> None:
    build = BatchBuild("train", "skip", True, 7, Slice(0, 0, 8))
    build.begin(SlotRef(1, 0, 1))
    job = build.hand_out(1, 1)
    bad = bad_row(1)
    build.absorb(job.job, replace(done(job), bad=(bad,), offset=64, size=9, absent=3))
    assert build.whole
    told = build.descriptor(1, 1, 0)
    assert (told.rows, told.filled, told.failed) == (8, 4, False)
    assert told.chunks == (Chunk(0, 4, 64, 9),)
