"""Hosts, links and workers of paper around the shipped scheduler: what `cluster.py` measures."""

from __future__ import annotations

import heapq
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from loaderd.core.actions import Action, SendJob, SendMessage, StartWorker
from loaderd.core.events import (
    Attach,
    Event,
    ProgressReceived,
    WorkerDied,
    WorkerDone,
    WorkerObservation,
    WorkerPoll,
    WorkerReady,
)
from loaderd.core.jobs import Done, Job, Stage, stamp
from loaderd.core.scheduler import Scheduler, StreamRules
from loaderd_client.protocol import ClientProtocol
from loaderd_wire.messages import Descriptor, Segment
from loaderd_wire.slices import Cursor, EpochShape

SAMPLES = 1 << 30
GBIT = 1e9 / 8  # bytes a second
HOSTS = 100
WINDOWS = 3  # that are measured of what is made ahead, so that it counts for little


@dataclass(frozen=True)
class Cluster:
    """What is assumed.

    Attributes:
        workers: Borrowed workers, spread over HOSTS hosts. There are no local ones.
        row_s: Seconds of a worker for a row, on average; a row takes half to one and a half of it.
        row_bytes: That it sends of it: 224 x 224 x 3.
        link_gbit: Of the link into the daemon's host. One transfer after the other, at full rate.
        host_gbit: Of the link out of each other host, likewise.
        latency_s: From the daemon's host to an actor and back, each way, with Ray's call.
        event_s: Processor time of the daemon for an event. It handles one after the other.
        look_s: The same for a worker that is looked at, four times a second.
        ranks: Trainers on the daemon's host. They take batches as they come.
        batch_size: Rows of a batch.
        prefetch: Batches that are made ahead for each trainer.
        slow: Part of the hosts that are slow.
        slowness: How many times as long their workers take.
        lost_s: Seconds between two losses of a host; 0: none is lost.
        back_s: Seconds until a lost host's workers are there again.
        seconds: How long it is measured, at least, after as long a start.
    """

    workers: int = 1_000
    row_s: float = 0.0012
    row_bytes: int = 224 * 224 * 3
    link_gbit: float = 100.0
    host_gbit: float = 25.0
    latency_s: float = 0.001
    event_s: float = 50e-6
    look_s: float = 3e-6
    ranks: int = 8
    batch_size: int = 256
    prefetch: int = 8
    slow: float = 0.0
    slowness: float = 10.0
    lost_s: float = 0.0
    back_s: float = 10.0
    seconds: float = 2.0

    @property
    def link_rows(self) -> float:
        """Rows a second that the daemon's link carries."""
        return self.link_gbit * GBIT / self.row_bytes

    @property
    def most_rows(self) -> float:
        """Rows a second that the workers could make."""
        return self.workers / self.row_s

    @property
    def long_enough(self) -> Cluster:
        """The same, measured for WINDOWS times of what is made ahead."""
        window = self.ranks * self.prefetch * self.batch_size
        least_s = WINDOWS * window / min(self.link_rows, self.most_rows)
        return replace(self, seconds=max(self.seconds, least_s))


@dataclass(frozen=True)
class Found:
    """What came of it.

    Attributes:
        rows_per_s: Rows a second that trainers took.
        gbit: Of the daemon's link.
        daemon: Part of the time in which the daemon was busy, as assumed.
        worst_s: The longest time between two batches of a trainer.
        step_s: Processor time of this machine for a step of the scheduler.
        lost: Hosts that were lost.
    """

    rows_per_s: float
    gbit: float
    daemon: float
    worst_s: float
    step_s: float
    lost: int


class Worker:
    """A borrowed worker: it goes on to its second job while the rows of the first one travel."""

    def __init__(self, host: int) -> None:
        self.host = host
        self.alive = True
        self.jobs: deque[Job] = deque()  # that it has not answered
        self.begun = 0  # of these; at most one of them is not made yet
        self.works = False
        self.begun_s = self.row_s = 0.0  # of the job that it makes: when, and what each row takes


class Simulation:
    """One daemon, and what it is connected to."""

    def __init__(self, cluster: Cluster, seed: int = 0) -> None:
        self.cluster = cluster
        self.now_s = self.free_s = self.link_s = 0.0  # the clock; when daemon and link are free
        self.chance = random.Random(f"cluster {seed}")
        self.core = Scheduler(
            (StreamRules("train", "raise", False, SAMPLES),),
            workers=cluster.workers,
            sample_timeout_s=60.0,
            index_of=lambda job, row, _: job.start + row,
        )
        self.workers: dict[int, Worker] = {}
        hosts = min(HOSTS, cluster.workers)
        self.hosts_s = [0.0] * hosts  # when each host's link is free
        self.slow = set(self.chance.sample(range(hosts), round(cluster.slow * hosts)))
        self.back_s = 0.0
        self.clients: dict[int, ClientProtocol] = {}
        self.taken = self.bytes = self.lost = self.steps = 0
        self.busy_s = self.step_s = self.worst_s = 0.0
        self.took_s: dict[int, float] = {}
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def run(self) -> Found:
        """Start, and measure."""
        cluster, end_s = self.cluster, 2 * self.cluster.seconds
        self._do(self.core.begin(0.0))
        for rank in range(cluster.ranks):
            self._attach(rank)
        self._at(0.0, self._look)
        if cluster.lost_s:
            self._at(cluster.seconds, self._lose)
        self._go(cluster.seconds)
        self.taken = self.bytes = self.steps = 0
        self.busy_s = self.step_s = self.worst_s = 0.0
        self._go(end_s)
        waits = [self.worst_s, *(end_s - took_s for took_s in self.took_s.values())]
        return Found(
            self.taken * cluster.batch_size / cluster.seconds,
            self.bytes / cluster.seconds / GBIT,
            self.busy_s / cluster.seconds,
            max(waits),
            self.step_s / max(1, self.steps),
            self.lost,
        )

    def _at(self, when_s: float, call: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._heap, (when_s, self._count, call, args))

    def _go(self, end_s: float) -> None:
        while self._heap and self._heap[0][0] <= end_s:
            self.now_s, _, call, args = heapq.heappop(self._heap)
            call(*args)
        self.now_s = end_s

    # the daemon

    def _tell(self, event: Event, more_s: float = 0.0) -> list[Action]:
        """The daemon handles an event when it has handled those before."""
        takes_s = self.cluster.event_s + more_s
        self.free_s = max(self.now_s, self.free_s) + takes_s
        self.busy_s += takes_s
        self.steps += 1
        begin_s = time.process_time()
        actions = self.core.step(event, self.free_s)
        self.step_s += time.process_time() - begin_s
        self._do(actions)
        return actions

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, StartWorker):
                host = action.worker % len(self.hosts_s)
                self.workers[action.worker] = Worker(host)
                self._at(self.free_s + action.delay_s + self.back_s, self._ready, action.worker)
            elif isinstance(action, SendJob):
                worker = self.workers[action.worker]
                worker.jobs.append(action.job)
                self._begin(action.worker)
            elif isinstance(action, SendMessage) and isinstance(action.message, Descriptor):
                self._at(self.free_s, self._hear, action.session, action.message)

    def _ready(self, number: int) -> None:
        if self.workers[number].alive:
            self._tell(WorkerReady(number))

    def _look(self) -> None:
        """What the status board shows."""
        due_s = self.core.next_look_s(self.now_s)
        if due_s is not None and due_s <= self.now_s:
            seen = tuple(self._seen(number) for number, w in self.workers.items() if w.alive)
            self._tell(WorkerPoll(seen), self.cluster.look_s * len(seen))
        self._at(max(self.free_s, self.now_s) + 0.05, self._look)

    def _seen(self, number: int) -> WorkerObservation:
        worker = self.workers[number]
        if not worker.works:
            return WorkerObservation(number, 0, "", False, 0)
        job = worker.jobs[worker.begun - 1]
        row = job.first + max(0, int((self.now_s - worker.begun_s) / worker.row_s))
        word = stamp(job.job, min(row, job.last - 1), Stage.DECODE)
        return WorkerObservation(number, word, "", False, 0)

    # workers and links

    def _begin(self, number: int) -> None:
        worker, cluster = self.workers[number], self.cluster
        if worker.works or worker.begun == len(worker.jobs):
            return
        job, worker.works = worker.jobs[worker.begun], True
        worker.begun += 1
        rows = job.last - job.first
        spread = self.chance.uniform(-0.5, 0.5) / rows**0.5
        own_s = rows * cluster.row_s * (1 + spread)
        own_s *= cluster.slowness if worker.host in self.slow else 1.0
        worker.begun_s = max(self.now_s, self.free_s) + cluster.latency_s
        worker.row_s = own_s / rows
        self._at(worker.begun_s + own_s, self._send, number, job, own_s)

    def _send(self, number: int, job: Job, own_s: float) -> None:
        """The rows are made: they go over the host's link, then over the daemon's."""
        worker, cluster = self.workers[number], self.cluster
        if not worker.alive:
            return
        worker.works = False
        self._begin(number)
        size = (job.last - job.first) * cluster.row_bytes
        out_s = max(self.now_s, self.hosts_s[worker.host]) + size / (cluster.host_gbit * GBIT)
        self.hosts_s[worker.host] = out_s
        self.link_s = max(out_s, self.link_s + size / (cluster.link_gbit * GBIT))
        self._at(self.link_s + cluster.latency_s, self._answer, number, job, own_s, size)

    def _answer(self, number: int, job: Job, own_s: float, size: int) -> None:
        worker = self.workers[number]
        if not worker.alive:
            return
        self.bytes += size
        worker.jobs.popleft()
        worker.begun -= 1
        done = Done(job.job, (), (), 0, 0, 0.0, own_s, 0.0, 0.0, bytes=size)
        self._tell(WorkerDone(number, done))

    def _lose(self) -> None:
        """A host is gone, and its workers with it; others take their place after a while."""
        self._at(self.now_s + self.cluster.lost_s, self._lose)
        host = self.chance.randrange(len(self.hosts_s))
        self.lost += 1
        self.back_s = self.cluster.back_s
        for number in [n for n, w in self.workers.items() if w.alive and w.host == host]:
            self.workers[number].alive = False
            seen = self._seen(number)
            self._tell(WorkerDied(number, False, "its host is gone", seen, "", ""))

    # trainers

    def _attach(self, rank: int) -> None:
        cluster = self.cluster
        shape = EpochShape(SAMPLES, cluster.batch_size, rank, cluster.ranks, True)
        segment = Segment(1, cluster.prefetch + 2, cluster.batch_size * cluster.row_bytes, 0, 0)
        client = ClientProtocol(rank, shape, cluster.prefetch, segment, Cursor(0, 0, 0))
        self.clients[rank] = client
        self._tell(Attach(rank, "train", shape, 7, cluster.prefetch, segment))
        self._tell(ProgressReceived(rank, client.progress()))

    def _hear(self, rank: int, message: Descriptor) -> None:
        client = self.clients[rank]
        client.receive(message)
        while (batch := client.take()) is not None:
            client.release(batch.segment, batch.slot, batch.generation)
            self.taken += 1
            self.worst_s = max(self.worst_s, self.now_s - self.took_s.get(rank, self.now_s))
            self.took_s[rank] = self.now_s
        self._tell(ProgressReceived(rank, client.progress()))
