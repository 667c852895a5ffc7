"""After a worker's end within a job: innocent rows are made, the sample that is the cause is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderd.core.actions import Quarantine, SendJob
from loaderd.core.batches import BatchBuild, RowRange, SlotRef
from loaderd.core.events import WorkerDone
from loaderd.core.fault_attribution import FaultAttribution, _within
from loaderd.core.fault_ledger import JobDeath
from loaderd.core.jobs import Done, Excluded, Job, JobKind, Replaced, Stage
from loaderd.core.streams import StreamRules, StreamState
from loaderd_testing.scheduler_harness import SchedulerHarness, bad_row, done, one_session
from loaderd_wire.errors import BadSample
from loaderd_wire.slices import Slice


def ranges(harness: SchedulerHarness) -> list[tuple[int, int]]:
    return [(job.first, job.last) for job in harness.jobs()]


def run_down(
    harness: SchedulerHarness,
    guilty: int,
    *,
    own: bool = True,
    limit: int = 60,
    cause: str = "SIGSEGV",
    key: str = "the key",
) -> int:
    """Work on; whoever gets to row `guilty` of the batch at 0, made from its own sample, dies of
    it. Returns the deaths.
    """
    deaths = 0
    for _ in range(limit):
        worker = next((w for w in harness.sent if harness.sent[w]), None)
        if worker is None:
            return deaths
        job = harness.sent[worker][0]
        hit = job.start == 0 and job.first <= guilty < job.last and guilty not in job.lost
        if hit and not any(c.row == guilty for c in job.excluded):
            harness.die(worker, guilty, own=own, cause=cause, key=key, stack="the stack")
            deaths += 1
        else:
            harness.work(worker)
    raise AssertionError("it never ends")


def test_a_job_whose_worker_died_before_it_began_is_run_again_as_it_was() -> None:
    harness = one_session()
    before = ranges(harness)
    harness.die(1, stage=Stage.IDLE)
    assert ranges(harness) == before == [(0, 8)]


def test_the_row_that_a_worker_died_at_comes_alone_and_the_others_around_it() -> None:
    harness = one_session(workers=3)
    harness.die(1, row=1)  # of rows 0-2
    harness.log.clear()
    harness.work()
    harness.work()
    assert sorted((a.job.first, a.job.last) for a in harness.log if isinstance(a, SendJob)) == [
        (1, 2),
        (2, 3),
    ]
    assert (0, 1) not in ranges(harness)
    harness.finish()
    assert not harness.take().failed


def test_a_death_that_names_no_row_brings_single_rows() -> None:
    harness = one_session(workers=2)
    harness.die(1, stage=Stage.FETCH_MANY)
    harness.finish()
    assert [(a.job.first, a.job.last) for a in harness.log if isinstance(a, SendJob)][-4:] == [
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 4),
    ]


def test_a_poison_sample_is_convicted_by_its_second_death_alone_and_named() -> None:
    harness = one_session()
    assert run_down(harness, 5) == 3
    batch = harness.take()
    assert batch.failed
    (bad,) = batch.bad
    assert (bad.index, bad.key, bad.position, bad.stage, bad.error) == (
        50,
        "the key",
        5,
        "read",
        "WorkerDied",
    )
    assert "SIGSEGV" in bad.message
    assert bad.traceback == "the stack"
    assert [type(a) for a in harness.log if isinstance(a, Quarantine)] == [Quarantine]
    assert not harness.take().failed


def test_a_sample_without_a_stamped_key_is_named_by_its_index() -> None:
    harness = one_session()
    run_down(harness, 5, key="")
    assert harness.take().bad[0].key == "50"


def test_a_poison_sample_under_skip_is_left_out_and_the_gap_closed() -> None:
    harness = one_session(on_error="skip")
    run_down(harness, 5)
    batch = harness.take()
    assert (batch.filled, batch.failed) == (7, False)
    compact = [
        a.job for a in harness.log if isinstance(a, SendJob) and a.job.kind == JobKind.COMPACT
    ]
    assert [job.lost for job in compact] == [(5,)]


def test_a_poison_sample_under_replace_gives_its_row_to_a_substitute() -> None:
    harness = one_session(on_error="replace")

    def make(job: Job) -> Done:
        d = done(job)
        put = tuple(Replaced(c.row, 77) for c in job.excluded)
        return Done(d.job, d.bad, put, d.offset, d.size, 0.0, 0.0, 0.0, 0.0)

    harness.make = make
    run_down(harness, 5)
    batch = harness.take()
    assert (batch.filled, batch.failed) == (8, False)
    assert [(b.index, b.substitute) for b in batch.bad] == [(50, 77)]
    assert any(a.job.excluded == (Excluded(5, 0),) for a in harness.log if isinstance(a, SendJob))


def test_substitutes_that_are_poison_too_run_out() -> None:
    harness = one_session(on_error="replace", streams=("train",))
    condemned: tuple[Excluded, ...] = ()
    for _ in range(200):
        worker = next((w for w in harness.sent if harness.sent[w]), None)
        if worker is None:
            break
        job = harness.sent[worker][0]
        if job.start == 0 and job.first <= 5 < job.last and 5 not in job.lost:
            condemned = job.excluded
            harness.core.state.streams["train"].deaths = 0  # as if another session's rows went on
            harness.die(worker, 5, candidate=len(condemned))
        else:
            harness.work(worker)
    batch = harness.take()
    assert condemned == tuple(Excluded(5, candidate) for candidate in range(16))
    assert batch.failed
    assert [b.index for b in batch.bad] == [50]
    assert [a.sample.index for a in harness.of(Quarantine) if isinstance(a, Quarantine)] == list(
        range(50, 67)
    )


def named(harness: SchedulerHarness) -> list[tuple[int, str, str]]:
    """What the quarantine log is told: (index, key, error) of each sample."""
    return [
        (a.sample.index, a.sample.key, a.sample.error)
        for a in harness.log
        if isinstance(a, Quarantine)
    ]


def raises_and_is_replaced(job: Job) -> Done:
    """Row 5's own sample raises; its first substitute that is not condemned takes its place."""
    if not job.first <= 5 < job.last or job.start:
        return done(job)
    candidate = next(n for n in range(1, 17) if Excluded(5, n) not in job.excluded)
    bad = bad_row(5, lost=False)
    return done(job, (replace(bad, sample=replace(bad.sample, substitute=50 + candidate)),))


@pytest.mark.parametrize("own", [True, False])
def test_deaths_of_a_rows_own_sample_do_not_count_against_its_substitute(own: bool) -> None:
    harness = one_session(on_error="replace")
    harness.die(1, 5, own=own)
    for worker in range(2, 4 if own else 10):
        until_alone(harness, worker, 5)
        harness.die(worker, 5, own=own)
    worker = max(harness.sent)
    until_alone(harness, worker, 5)
    assert harness.sent[worker][0].excluded == (Excluded(5, 0),)
    harness.die(worker, 5, candidate=1, own=own)
    until_alone(harness, worker + 1, 5)
    assert harness.sent[worker + 1][0].excluded == (Excluded(5, 0),), (
        "one death is no conviction, and the others were another sample's"
    )


def test_a_substitute_that_kills_its_worker_is_named_and_the_rows_own_sample_keeps_its_own_fault() -> (
    None
):
    harness = one_session(on_error="replace")
    harness.make = raises_and_is_replaced
    harness.die(1, 5, candidate=1)
    for worker in (2, 3):
        until_alone(harness, worker, 5)
        harness.die(worker, 5, candidate=1, key="the substitute's key", stack="the stack")
    harness.finish()
    assert named(harness) == [
        (51, "the substitute's key", "WorkerDied"),
        (1005, "key5", "ValueError"),
    ]
    (bad,) = harness.take().bad
    assert (bad.index, bad.error, bad.substitute) == (1005, "ValueError", 52)


def test_a_conviction_tells_more_than_that_the_row_has_no_substitute_left() -> None:
    harness = one_session(on_error="replace")

    def make(job: Job) -> Done:
        lost = not job.start and job.first <= 5 < job.last and Excluded(5, 0) in job.excluded
        return done(job, (bad_row(5, stage="read"),) if lost else ())

    harness.make = make
    run_down(harness, 5)
    batch = harness.take()
    assert batch.failed
    assert [(bad.index, bad.error) for bad in batch.bad] == [(50, "WorkerDied")]
    assert named(harness) == [(50, "the key", "WorkerDied")]


def test_a_batch_that_is_made_anew_forgets_what_was_bad_in_an_earlier_attempt() -> None:
    harness = SchedulerHarness(workers=1, on_error="skip")
    harness.attach(prefetch=1)
    (first,) = harness.jobs()
    # it fails only sometimes
    harness.step(WorkerDone(1, done(harness.sent[1].popleft(), (bad_row(2),))))
    assert harness.jobs(JobKind.COMPACT)
    session = harness.core.state.sessions[1]
    session.restart(session.window.items[0].build)
    harness.finish()
    batch = harness.take()
    assert (batch.start, batch.filled, batch.bad) == (first.start, 8, ())


def test_a_batch_that_is_made_anew_forgets_the_substitute_of_an_earlier_attempt() -> None:
    harness = one_session(on_error="replace")
    substitutes = iter([77, None])

    def make(job: Job) -> Done:
        if job.start or Excluded(5, 0) not in job.excluded:
            return done(job)
        index = next(substitutes)
        if index is None:
            return done(job, (bad_row(5, stage="read"),))
        return replace(done(job), replaced=(Replaced(5, index),))

    harness.make = make
    while not harness.core.state.sessions[1].window.items[0].build.replaced:
        job = harness.sent[max(harness.sent)][0]
        if job.first <= 5 < job.last and not job.excluded:
            harness.die(max(harness.sent), 5)
        else:
            harness.work()
    session = harness.core.state.sessions[1]
    session.restart(session.window.items[0].build)
    harness.finish()
    batch = harness.take()
    assert batch.failed
    assert [(bad.index, bad.substitute) for bad in batch.bad] == [(50, None)]


def test_a_death_in_a_collate_does_not_count_against_the_batch_that_is_left_without_a_condemned_row() -> (
    None
):
    harness = one_session(collated=True, on_error="skip")
    harness.die(1, row=0, stage=Stage.COLLATE)
    harness.die(2, row=3)  # of the batch, then alone and alone
    harness.die(3, row=3)
    harness.die(4, row=3)
    assert harness.jobs()[0].lost == (3,)
    harness.die(5, row=0, stage=Stage.COLLATE)
    batch = harness.take()
    assert (batch.filled, batch.failed) == (7, False)


def until_alone(harness: SchedulerHarness, worker: int, row: int) -> None:
    """The worker does what it has until it runs this row of the first batch and no other."""
    for _ in range(50):
        job = harness.sent[worker][0]
        if (job.start, job.first, job.last) == (0, row, row + 1):
            return
        harness.work(worker)
    raise AssertionError(f"row {row} never comes alone")


def test_seven_kills_from_outside_do_not_count_against_a_row_and_the_eighth_does() -> None:
    for kills, failed in ((7, False), (8, True)):
        harness = one_session()
        for _ in range(kills + 1):  # the first one is not alone
            worker = next(w for w in harness.sent if harness.sent[w])
            while (
                harness.sent[worker]
                and not harness.sent[worker][0].first <= 5 < harness.sent[worker][0].last
            ):
                harness.work(worker)
                worker = next(w for w in harness.sent if harness.sent[w])
            harness.die(worker, 5, own=False, cause="SIGKILL")
        harness.finish()
        assert harness.take().failed is failed


def test_the_second_job_of_a_dead_worker_is_innocent() -> None:
    harness = SchedulerHarness(workers=1)
    harness.attach(prefetch=2)
    assert len(harness.sent[1]) == 2
    second = harness.sent[1][1]
    harness.die(1, row=3)
    assert (second.start, second.first, second.last) in [
        (j.start, j.first, j.last) for j in harness.jobs()
    ] or any(p.first == 0 for p in harness.core.state.sessions[1].window.items[1].build.todo)
    harness.finish()
    assert not harness.take().failed
    assert not harness.take().failed


def test_a_death_while_the_dataset_is_opened_is_no_samples_fault() -> None:
    harness = one_session()
    for _ in range(5):
        harness.die(next(w for w in harness.sent if harness.sent[w]), stage=Stage.OPEN)
    harness.finish()
    assert not harness.take().failed


def test_a_stamp_with_a_row_outside_of_its_job_names_nobody() -> None:
    harness = one_session(on_error="skip")
    harness.die(1, row=500)
    harness.finish()
    assert harness.take().filled == 8


# collated streams


def test_a_row_that_kills_a_collated_batch_is_tried_alone_and_convicted() -> None:
    harness = one_session(collated=True, on_error="skip")
    run_down(harness, 3)
    kinds = [
        (a.job.kind, a.job.first, a.job.last, a.job.lost)
        for a in harness.log
        if isinstance(a, SendJob)
    ]
    assert kinds[:4] == [
        (JobKind.BATCH, 0, 8, ()),
        (JobKind.TRIAL, 3, 4, ()),
        (JobKind.TRIAL, 3, 4, ()),
        (JobKind.BATCH, 0, 8, (3,)),
    ]
    batch = harness.take()
    assert (batch.filled, batch.failed) == (7, False)
    assert [b.index for b in batch.bad] == [30]


def test_a_collated_batch_that_is_made_anew_before_its_rows_were_tried_alone_has_them_tried_first() -> (
    None
):
    harness = one_session(collated=True)
    harness.die(1, row=3)
    assert [(job.kind, job.first) for job in harness.jobs()] == [(JobKind.TRIAL, 3)]
    session = harness.core.state.sessions[1]
    harness.look(harness.seen(2, 3))
    session.restart(session.window.items[0].build)
    harness.finish()
    kinds = [a.job.kind for a in harness.log if isinstance(a, SendJob)]
    assert kinds == [JobKind.BATCH, JobKind.TRIAL, *[JobKind.TRIAL] * 8, JobKind.BATCH]
    assert not harness.take().failed


def test_a_collated_batch_waits_for_the_trials_of_its_rows() -> None:
    harness = one_session(workers=2, collated=True)
    harness.die(next(w for w in harness.sent if harness.sent[w]), row=3)
    assert [job.kind for job in harness.jobs()] == [JobKind.TRIAL]


def test_a_collate_that_kills_its_worker_twice_fails_its_batch_and_no_other() -> None:
    harness = one_session(collated=True)
    harness.die(1, row=0, stage=Stage.COLLATE)
    assert [j.kind for j in harness.jobs()] == [JobKind.BATCH]
    harness.die(2, row=0, stage=Stage.COLLATE)
    batch = harness.take()
    assert batch.failed
    assert [(b.index, b.stage) for b in batch.bad] == [(0, "collate")]
    assert not harness.take().failed


def test_a_collate_that_raises_fails_its_batch_under_every_policy() -> None:
    for policy in ("raise", "skip", "replace"):
        harness = one_session(collated=True, on_error=policy)
        harness.make = lambda job: done(
            job, (bad_row(0, stage="collate"),) if job.start == 0 else ()
        )
        assert harness.take().failed
        assert not harness.take().failed


def test_a_collated_batch_that_kills_without_a_culprit_ends_as_failed() -> None:
    harness = one_session(collated=True)
    for _ in range(100):
        worker = next((w for w in harness.sent if harness.sent[w]), None)
        if worker is None:
            break
        if harness.sent[worker][0].kind == JobKind.BATCH and harness.sent[worker][0].start == 0:
            harness.die(worker, row=2)
        else:
            harness.work(worker)
    assert harness.take().failed


# the pool as a whole


def attributed(
    death: JobDeath,
    *,
    kind: JobKind = JobKind.FILL,
    first: int = 2,
    last: int = 3,
    on_error: str = "raise",
    times: int = 2,
) -> BatchBuild:
    """Of a batch of rows 0 to 7 from position 60 of 64, after as many such deaths in a job of these
    rows.
    """
    attribution = FaultAttribution(
        {"train": StreamState(StreamRules("train", on_error, kind is JobKind.BATCH, 64))},
        lambda job, row, candidate: 100 * ((job.start + row) % 64) + candidate,
    )
    build = BatchBuild("train", on_error, kind is JobKind.BATCH, 7, Slice(3, 60, 8))
    build.begin(SlotRef(1, 0, 1))
    job = Job(9, kind, "train", 1, 0, 7, 3, 60, 8, first, last)
    for n in range(times):
        build.todo.clear()
        lines = attribution.record_death(
            build, job, RowRange(kind, first, last), death, "cat.jpg", "the stack"
        )
        assert len(lines) == (n == times - 1)
    return build


def test_the_sample_behind_the_end_of_the_epoch_is_named_by_its_place_at_the_begin() -> None:
    build = attributed(
        JobDeath(5, Stage.DECODE, own=True, hung=False, cause="SIGSEGV"), first=5, last=6
    )
    assert build.ledger.bad_rows == {
        5: BadSample(
            100,
            "cat.jpg",
            1,
            "decode",
            "WorkerDied",
            "each worker that made it died: SIGSEGV",
            "the stack",
        )
    }
    assert build.failed


def test_a_sample_that_hangs_is_named_at_once_with_the_limit_that_it_has_passed() -> None:
    death = JobDeath(
        2, Stage.READ, own=False, hung=True, cause="it took longer than sample_timeout_s = 1 s"
    )
    build = attributed(death, times=1)
    assert build.ledger.bad_rows[2] == BadSample(
        6200, "cat.jpg", 62, "read", "Timeout", death.cause, "the stack"
    )


def test_a_key_of_a_row_outside_of_the_job_names_no_sample_of_it() -> None:
    death = JobDeath(7, Stage.WRITE, own=True, hung=False, cause="SIGBUS")
    build = attributed(death)
    (sample,) = build.ledger.bad_rows.values()
    assert (sample.key, sample.index, sample.stage) == ("6200", 6200, "read")


def test_a_batch_whose_collate_ends_its_worker_twice_has_no_more_work() -> None:
    build = attributed(
        JobDeath(0, Stage.COLLATE, own=True, hung=False, cause="exit code 3"),
        kind=JobKind.BATCH,
        first=0,
        last=8,
    )
    assert build.ledger.collate is not None
    assert (build.ledger.collate.stage, build.ledger.collate.position) == ("collate", 60)
    assert (list(build.todo), build.failed) == ([], True)


def test_a_row_whose_samples_are_all_bad_is_not_run_again() -> None:
    build = attributed(
        JobDeath(2, Stage.DECODE, own=True, hung=False, cause="SIGSEGV"), on_error="skip"
    )
    assert build.lost == (2,)
    assert [piece.kind for piece in build.todo] == [JobKind.COMPACT]


@pytest.mark.parametrize(("row", "inside"), [(1, False), (2, True), (4, True), (5, False)])
def test_a_row_outside_of_the_dead_workers_job_is_nobodys(row: int, inside: bool) -> None:
    death = JobDeath(row, Stage.DECODE, True, False, "signal 11")
    blamed = _within(RowRange(JobKind.FILL, 2, 5), death, "key")
    assert blamed == (
        (death, "key") if inside else (replace(death, row=2, stage=Stage.FETCH_MANY), "")
    )
