"""A trainer and workers that take time, around the real scheduler: nothing else does."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace

from loaderd.core.actions import LogLine, RetireWorker, StartWorker
from loaderd.core.assessment import assess
from loaderd.core.events import PoolReview, ProgressReceived, WorkerDied, WorkerDone, WorkerReady
from loaderd.core.jobs import Done, Job
from loaderd.core.verdict import Verdict
from loaderd_client.wait import PING_S
from loaderd_testing.scheduler_harness import SchedulerHarness, done
from loaderd_wire.messages import Descriptor
from loaderd_wire.slices import EpochShape

SHAPE = EpochShape(samples=1 << 20, batch_size=8, rank=0, world_size=1, drop_last=True)
BOOT_S = 0.2  # from the start of a worker to its first job
FREE = 1 << 40  # bytes of memory, for a pool that may grow


@dataclass(frozen=True)
class Load:
    """Workers, and a trainer that computes `own_s` for a batch, and takes `burst` of them at once.

    A row takes `row_s`, and longer once more than `at_once` workers are at it: then they share what
    that many can do. With `most` the pool finds its own size, of `workers` at first.
    """

    workers: int = 2
    row_s: float = 0.025
    own_s: float = 0.04
    prefetch: int = 4
    burst: int = 1
    collated: bool = False
    tells: bool = True
    seconds: float = 20.0
    at_once: int = 1 << 20
    most: int = 0
    cpus: int = 0
    worker_memory: int = 0
    slow: int = 0
    slowness: float = 10.0
    lag_s: float = 0.0
    stage: str = "read_s"  # in which a worker spends its time, or "half": in reading and decoding


class TimedLoad:
    """One session. `load` may be replaced by another between two runs, as far as it is the load's."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.free_bytes = FREE  # before the pool has grown
        self.harness = SchedulerHarness(
            workers=load.workers,
            collated=load.collated,
            most_workers=load.most,
            cpus=load.cpus,
            worker_memory=load.worker_memory,
        )
        self.harness.check = False
        self.client = self.harness.attach(shape=SHAPE, prefetch=load.prefetch, tell=False)
        self.free_s = dict.fromkeys(self.harness.sent, 0.0)
        self.begun: set[int] = set()
        self.ends: list[tuple[float, int, Job]] = []
        self.boots: list[tuple[float, int]] = []
        self.attended = len(self.harness.log)
        self.said: list[str] = []
        self.sizes = [load.workers]  # of the pool, one after the other
        self.waited_s = 0.0
        self.tell()

    @property
    def size(self) -> int:
        return self.harness.core.state.pool.size

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
        begin_s = told_s = self.harness.now_s
        while (batch := self.heard()) is None:
            if self.harness.now_s > told_s + PING_S:
                told_s = self.harness.now_s
                self.tell(waiting_s=told_s - begin_s)
            self.begin_jobs()
            self.work_until(self.next_s())
        self.waited_s += self.harness.now_s - begin_s
        self.tell()
        return batch

    def tell(self, waiting_s: float = 0.0) -> None:
        waited_s = self.waited_s + waiting_s if self.load.tells else -1.0
        progress = self.client.progress(waiting=waiting_s > 0, waited_s=waited_s)
        self.harness.step(ProgressReceived(1, progress))

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
                    begin_s = max(self.harness.now_s, self.free_s.get(worker, 0.0))
                    own_s = (job.last - job.first) * self.row_s() * self.slowness(worker)
                    lag_s = self.load.lag_s if self.is_slow(worker) else 0.0
                    self.free_s[worker] = begin_s + own_s + lag_s
                    heapq.heappush(self.ends, (self.free_s[worker], worker, job))

    def is_slow(self, worker: int) -> bool:
        return self.load.workers - self.load.slow < worker <= self.load.workers

    def slowness(self, worker: int) -> float:
        return self.load.slowness if self.is_slow(worker) else 1.0

    def done(self, worker: int, job: Job) -> Done:
        rows, stage = job.last - job.first, self.load.stage
        spent_s = rows * self.row_s() * self.slowness(worker)
        answer = done(job, written=100 * rows)
        if stage == "half":
            return replace(answer, read_s=spent_s / 2, decode_s=spent_s / 2)
        return replace(answer, **{stage: spent_s})

    def row_s(self) -> float:
        at_it = len({worker for _, worker, _ in self.ends}) + 1
        return self.load.row_s * max(1.0, at_it / self.load.at_once)

    def next_s(self) -> float:
        """When the next thing happens."""
        review_s = self.harness.core.next_review_s()
        heads = [heap[0][0] for heap in (self.ends, self.boots) if heap]
        return min([*heads, *([] if review_s is None else [review_s])])

    def work_until(self, until_s: float) -> None:
        harness = self.harness
        self.begin_jobs()
        while (self.ends or self.boots) and (at_s := self.next_s()) <= until_s:
            harness.now_s = max(harness.now_s, at_s)
            if self.ends and self.ends[0][0] <= at_s:
                _, worker, job = heapq.heappop(self.ends)
                harness.sent[worker].remove(job)
                harness.step(WorkerDone(worker, self.done(worker, job)))
            elif self.boots and self.boots[0][0] <= at_s:
                harness.step(WorkerReady(heapq.heappop(self.boots)[1]))
            else:
                taken_bytes = (self.size - self.load.workers) * self.load.worker_memory
                harness.step(PoolReview(self.free_bytes - taken_bytes))
                if self.size != self.sizes[-1]:
                    self.sizes.append(self.size)
            self.attend()
            self.begin_jobs()
        harness.now_s = max(harness.now_s, until_s)

    def attend(self) -> None:
        """Workers start and end."""
        harness = self.harness
        while self.attended < len(harness.log):
            action = harness.log[self.attended]
            self.attended += 1
            if isinstance(action, StartWorker):
                heapq.heappush(self.boots, (harness.now_s + BOOT_S, action.worker))
            elif isinstance(action, RetireWorker):
                seen = harness.seen(action.worker)
                del harness.sent[action.worker]
                harness.step(WorkerDied(action.worker, True, "exit code 0", seen, "", ""))


# one second of the trainer for a batch of 5.2 worker-seconds
NEEDS_5 = Load(row_s=0.65, own_s=1.0, most=32, cpus=4, seconds=150.0)


def said(world: TimedLoad) -> list[str]:
    """What the log is told of the pool."""
    prefix = 'num_workers = "auto": '
    return [
        each.text.removeprefix(prefix)
        for each in world.harness.log
        if isinstance(each, LogLine) and each.text.startswith(prefix)
    ]


def ran(load: Load) -> TimedLoad:
    world = TimedLoad(load)
    world.run()
    return world
