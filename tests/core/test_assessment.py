"""Verdicts of the real scheduler in simulated time: what it is told to need is what it needs."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace

import pytest

from loaderd.core.assessment import Rates, assess, measure, rates, worst
from loaderd.core.events import ProgressReceived, WorkerDone
from loaderd.core.jobs import Job
from loaderd.core.verdict import Verdict, idle, starting
from loaderd_testing.scheduler_harness import SchedulerHarness, done
from loaderd_wire.messages import Descriptor
from loaderd_wire.slices import EpochShape

SHAPE = EpochShape(samples=1 << 20, batch_size=8, rank=0, world_size=1, drop_last=True)


@dataclass(frozen=True)
class Load:
    """Workers, and a trainer that computes `own_s` for a batch, and takes `burst` of them at once."""

    workers: int = 2
    row_s: float = 0.025
    own_s: float = 0.04
    prefetch: int = 4
    burst: int = 1
    collated: bool = False
    tells: bool = True
    seconds: float = 20.0


class World:
    """One session whose trainer and workers take time; nothing else does."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.harness = SchedulerHarness(workers=load.workers, collated=load.collated)
        self.harness.check = False
        self.client = self.harness.attach(shape=SHAPE, prefetch=load.prefetch, tell=False)
        self.free_s = dict.fromkeys(self.harness.sent, 0.0)
        self.begun: set[int] = set()
        self.ends: list[tuple[float, int, Job]] = []
        self.said: list[str] = []
        self.waited_s = 0.0
        self.tell()

    def run(self) -> Verdict:
        load, harness = self.load, self.harness
        end_s, taken = harness.now_s + load.seconds, 0
        while harness.now_s < end_s:
            batch = self.next_batch()
            taken += 1
            if taken % load.burst == 0:
                self.work_until(harness.now_s + load.own_s * load.burst)
            self.client.release(batch.segment, batch.slot, batch.generation)
        return assess(harness.core.state, harness.core.state.sessions[1], harness.now_s)

    def next_batch(self) -> Descriptor:
        begin_s = self.harness.now_s
        while (batch := self.heard()) is None:
            self.begin_jobs()
            self.work_until(self.ends[0][0])
        self.waited_s += self.harness.now_s - begin_s
        self.tell()
        return batch

    def tell(self) -> None:
        waited_s = self.waited_s if self.load.tells else -1.0
        self.harness.step(ProgressReceived(1, self.client.progress(waited_s=waited_s)))

    def heard(self) -> Descriptor | None:
        self.said += [
            each.verdict
            for each in self.harness.inbox[1]
            if isinstance(each, Descriptor) and each.verdict
        ]
        self.harness.hear()
        return self.client.take()

    def begin_jobs(self) -> None:
        """Each worker runs its jobs one behind the other."""
        for worker, jobs in self.harness.sent.items():
            for job in jobs:
                if job.job not in self.begun:
                    self.begun.add(job.job)
                    begin_s = max(self.harness.now_s, self.free_s[worker])
                    self.free_s[worker] = begin_s + (job.last - job.first) * self.load.row_s
                    heapq.heappush(self.ends, (self.free_s[worker], worker, job))

    def work_until(self, until_s: float) -> None:
        harness = self.harness
        self.begin_jobs()
        while self.ends and self.ends[0][0] <= until_s:
            at_s, worker, job = heapq.heappop(self.ends)
            harness.now_s = max(harness.now_s, at_s)
            harness.sent[worker].remove(job)
            rows = job.last - job.first
            harness.step(
                WorkerDone(worker, done(job, seconds=rows * self.load.row_s, written=100 * rows))
            )
            self.begin_jobs()
        harness.now_s = max(harness.now_s, until_s)


def judged(load: Load) -> Verdict:
    return World(load).run()


def wanted(made: Verdict, name: str) -> int:
    given, _, value = made.setting.partition(" = ")
    assert given == name, made.text
    return int(value)


def test_the_rates_are_those_of_the_trainer_and_tell_when_the_epoch_ends() -> None:
    world = World(Load(row_s=0.005, own_s=0.05))
    world.run()
    state = world.harness.core.state
    session = state.sessions[1]
    found = rates(state, session, world.harness.now_s)
    assert found is not None
    assert found.batches_per_s == pytest.approx(20, rel=0.05)
    assert found.bytes_per_s == pytest.approx(20 * 8 * 100, rel=0.1)
    assert found.wait_fraction < 0.05
    left = (1 << 20) // 8 - session.window.taken
    assert found.eta_s == pytest.approx(left / found.batches_per_s)
    assert state.streams["train"].batches == session.window.taken
    assert rates(state, session, world.harness.now_s + 600) == Rates(0.0, 0.0, 0.0, None)


def test_before_its_first_batch_nothing_is_known_of_a_sessions_rates() -> None:
    harness = SchedulerHarness()
    harness.attach()
    assert rates(harness.core.state, harness.core.state.sessions[1], harness.now_s) is None


@pytest.mark.parametrize(("row_s", "own_s"), [(0.025, 0.04), (0.01, 0.03), (0.1, 0.09)])
def test_a_trainer_that_gets_the_workers_it_is_said_to_need_waits_no_more(
    row_s: float, own_s: float
) -> None:
    load = Load(row_s=row_s, own_s=own_s)
    made = judged(load)
    assert made.kind == "read-bound"
    assert made.need_workers == pytest.approx(8 * row_s / own_s, rel=0.1)
    given = judged(replace(load, workers=wanted(made, "num_workers")))
    assert given.kind == "trainer-bound", given.text
    assert given.batches_per_s == pytest.approx(made.demand_per_s, rel=0.06)
    fewer = judged(replace(load, workers=wanted(made, "num_workers") - 1))
    assert fewer.kind == "read-bound", fewer.text


def test_what_is_said_in_turn_ends_where_nothing_of_the_loader_helps() -> None:
    """Batches of 24 ms are one job each, so that six workers need more than four of them ahead."""
    load = Load(row_s=0.003, own_s=0.004)
    made = judged(load)
    for _ in range(2):
        name, _, value = made.setting.partition(" = ")
        load = replace(load, **{"workers" if name == "num_workers" else name: int(value)})
        made = judged(load)
    assert (made.kind, load.workers, load.prefetch) == ("trainer-bound", 6, 8)


def test_a_trainer_that_takes_batches_in_bursts_gets_the_slots_it_is_said_to_need() -> None:
    load = Load(workers=4, row_s=0.01, own_s=0.05, prefetch=1, burst=4)
    made = judged(load)
    assert made.kind == "memory-bound", made.text
    while made.kind == "memory-bound":
        load = replace(load, prefetch=wanted(made, "prefetch"))
        made = judged(load)
    assert (made.kind, load.prefetch) == ("trainer-bound", 4), made.text


def test_batches_that_are_made_as_a_whole_want_as_many_ahead_as_there_are_workers() -> None:
    load = Load(workers=8, row_s=0.025, own_s=0.028, prefetch=2, collated=True)
    made = judged(load)
    assert made.kind == "read-bound"
    assert "only 2 of the workers can help" in made.text
    assert judged(replace(load, prefetch=8)).kind == "trainer-bound"


def test_a_client_is_told_the_verdict_at_most_once_a_second() -> None:
    world = World(Load(seconds=20.0))
    made = world.run()
    assert 10 <= len(world.said) <= 20
    assert world.said[-1].partition(":")[0] == made.kind
    old = World(Load(tells=False))
    assert "older version" in old.run().text
    assert old.said == []


def test_the_trainer_that_waits_most_is_the_one_that_is_told_of() -> None:
    slow, fine = Verdict("read-bound", "", 0.4), Verdict("trainer-bound", "", 0.01)
    assert worst([fine, slow, idle(9.0), starting(), None]) is slow
    assert worst([idle(9.0), starting()]) == starting()
    assert worst([idle(9.0)]) == idle(9.0)
    assert worst([]) is None


def test_batches_that_were_never_announced_do_not_count_as_taken() -> None:
    harness = SchedulerHarness()
    client = harness.attach()
    for _ in range(8):
        harness.take()
    false = replace(client.progress(waited_s=float("nan")), taken=1 << 40)
    harness.step(ProgressReceived(1, false), after_s=2.0)
    harness.step(ProgressReceived(1, client.progress(waited_s=float("inf"))), after_s=2.0)
    session = harness.core.state.sessions[1]
    measured = measure(harness.core.state, session, harness.now_s)
    assert measured is not None
    assert (measured.batches, measured.wait_fraction) == (
        7,
        0.5,
    )  # the window begins with the first
