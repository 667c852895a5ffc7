"""Which worker gets which rows next; larger segments; what is logged of a client's false
statements.
"""

from __future__ import annotations

from typing import Any

import pytest

from loaderd.core.actions import FreeSegment, GrowSegment, LogLine, SendJob, SendMessage
from loaderd.core.events import ProgressReceived, WorkerReady
from loaderd.core.jobs import Job, JobKind
from loaderd_testing.scheduler_harness import SchedulerHarness, done, segment
from loaderd_wire.messages import Descriptor
from loaderd_wire.slices import Cursor


def test_the_first_batch_is_cut_for_all_workers_while_nothing_is_measured() -> None:
    harness = SchedulerHarness(workers=4)
    harness.attach()
    assert [(j.first, j.last, j.start) for j in harness.jobs()[:4]] == [
        (0, 2, 0),
        (2, 4, 0),
        (4, 6, 0),
        (6, 8, 0),
    ]


def test_jobs_of_cheap_rows_are_not_cut_below_20_ms_except_for_the_batch_that_is_waited_for() -> (
    None
):
    harness = SchedulerHarness(workers=4)
    harness.make = lambda job: done(job, seconds=0.001 * (job.last - job.first))
    harness.attach(prefetch=2)
    harness.finish()
    harness.log.clear()
    harness.take()
    assert [(a.job.first, a.job.last) for a in harness.log if isinstance(a, SendJob)] == [(0, 8)]
    harness.finish()
    harness.log.clear()
    harness.clients[1].seek(Cursor(5, 0, 0))
    harness.tell()
    first = [a.job for a in harness.log if isinstance(a, SendJob) and a.job.start == 0]
    assert [(j.first, j.last) for j in first] == [(0, 2), (2, 4), (4, 6), (6, 8)]


def test_jobs_of_dear_rows_go_to_every_worker() -> None:
    harness = SchedulerHarness(workers=4)
    harness.make = lambda job: done(job, seconds=0.1 * (job.last - job.first))
    harness.attach(prefetch=2)
    harness.finish()
    harness.log.clear()
    harness.take()
    assert len([a for a in harness.log if isinstance(a, SendJob) and a.job.start == 16]) == 4


def test_a_collated_batch_is_one_job() -> None:
    harness = SchedulerHarness(workers=2, collated=True)
    harness.attach(prefetch=2)
    assert [(j.kind, j.first, j.last) for j in harness.jobs()] == [
        (JobKind.BATCH, 0, 8),
        (JobKind.BATCH, 0, 8),
    ]
    assert len({harness.holder(j) for j in harness.jobs()}) == 2


def test_the_batch_that_is_waited_for_never_stands_behind_another_job() -> None:
    harness = SchedulerHarness(workers=2)
    harness.attach(1, prefetch=4)
    harness.attach(2, prefetch=1)
    # Both workers have work of session 1; the piece of session 2 waits for a worker that has none.
    assert all(job.slot is not None for job in harness.jobs())
    behind: set[Job] = set()
    for _ in range(50):
        behind.update(job for jobs in harness.sent.values() for job in list(jobs)[1:])
        assert not [
            job for job in behind if job.job in harness.core.state.jobs and _urgent(harness, job)
        ]
        busy = [w for w in harness.sent if harness.sent[w]]
        if not busy:
            break
        harness.work(busy[0])
    assert behind, "no job ever stood behind another: there was nothing to be told apart"
    harness.hear(2)
    assert harness.clients[2].take() is not None


def _urgent(harness: SchedulerHarness, job: Job) -> bool:
    running = harness.core.state.jobs[job.job]
    return running.owner.session == 2


def test_the_session_with_the_fewest_batches_ahead_is_served_first() -> None:
    harness = SchedulerHarness(workers=1, ready=False)
    for session in (1, 2, 3):
        harness.attach(session, prefetch=4)
    harness.step(WorkerReady(1))
    harness.finish()
    order = [
        (a.session, a.message.k)
        for a in harness.log
        if isinstance(a, SendMessage) and isinstance(a.message, Descriptor)
    ]
    ahead = [k for _, k in order]
    assert ahead == sorted(ahead)
    assert len(order) == 12


def test_generations_that_were_never_given_out_are_noted_once_a_second() -> None:
    harness = SchedulerHarness()
    harness.attach()
    harness.finish()
    p = harness.clients[1].progress()
    notes = 0
    for seq in range(10, 30):
        mad = type(p.released[0])(1, (1 << 40,) * 6, (1 << 40,) * 6)
        forged = type(p)(
            **{name: getattr(p, name) for name in p.__slots__}
            | {"seq": seq, "released": (mad, type(mad)(7, (1,), (1,)))}
        )
        notes += sum(
            isinstance(a, LogLine) for a in harness.step(ProgressReceived(1, forged), after_s=0.1)
        )
    assert notes == 2
    assert len(harness.core.state.sessions[1].slots.announced) == 4


def test_a_batch_too_large_for_its_slot_is_made_in_a_larger_segment() -> None:
    harness = SchedulerHarness()
    harness.make = lambda job: (
        done(job, needs_tail=500) if job.segment == 1 and job.start == 8 else done(job, size=10)
    )
    harness.attach()
    harness.finish()
    (grow,) = harness.of(GrowSegment)
    assert isinstance(grow, GrowSegment)
    assert grow.slots == 6
    assert grow.tail_row_bytes >= 500
    harness.tell(ping=True)
    assert harness.take().segment == 1
    harness.tell(ping=True)
    assert "waiting for a larger segment" in str(harness.inbox[1])
    harness.grow()
    places = [harness.take() for _ in range(12)]
    assert [b.segment for b in places[:1]] == [2]
    assert {b.segment for b in places[4:]} == {2}
    assert harness.of(FreeSegment) == [FreeSegment(1, 1)]
    assert not [a for a in harness.log if isinstance(a, GrowSegment)]


@pytest.mark.parametrize("needs", [{"needs_body": 5000}, {"needs_tail": 500}])
def test_a_segment_that_grows_in_one_way_keeps_what_it_has_of_the_other(
    needs: dict[str, Any],
) -> None:
    harness = SchedulerHarness()
    harness.make = lambda job: done(job, **needs)
    harness.attach(tell=False)
    harness.core.state.sessions[1].slots.tables[1].segment = segment(1, 6, tail=64, body=800)
    harness.tell()
    harness.finish()
    (grow,) = harness.of(GrowSegment)
    assert isinstance(grow, GrowSegment)
    assert (grow.body_bytes >= 5000, grow.tail_row_bytes >= 500) == (
        "needs_body" in needs,
        "needs_tail" in needs,
    )
    assert grow.body_bytes >= 800
    assert grow.tail_row_bytes >= 64


def test_a_larger_segment_that_is_too_small_by_the_time_it_comes_is_followed_by_another() -> None:
    harness = SchedulerHarness()
    needs = {0: 100, 8: 900}
    harness.make = lambda job: (
        done(job, needs_tail=needs[job.start])
        if job.segment < 4 - job.start // 8 and job.start in needs
        else done(job)
    )
    harness.attach()
    harness.finish()
    for _ in range(3):
        harness.grow()
        harness.finish()
    assert [harness.take().start for _ in range(3)] == [0, 8, 16]
