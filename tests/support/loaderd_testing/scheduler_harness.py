"""The scheduler with client sessions and workers of paper around it: all that an in-process test
needs, step by step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from loaderd.core.actions import (
    Action,
    FreeSegment,
    GrowSegment,
    KillWorker,
    RetireWorker,
    SendJob,
    SendMessage,
    StartWorker,
)
from loaderd.core.events import (
    Attach,
    Detach,
    Event,
    ProgressReceived,
    SegmentGrown,
    WorkerDied,
    WorkerDone,
    WorkerObservation,
    WorkerPoll,
    WorkerReady,
)
from loaderd.core.jobs import BadRow, Done, Job, JobKind, Stage, stamp
from loaderd.core.scheduler import Scheduler, StreamRules
from loaderd_client.protocol import ClientProtocol
from loaderd_wire.errors import BadSample
from loaderd_wire.messages import Descriptor, Failure, Pulse, Segment
from loaderd_wire.slices import Cursor, EpochShape

Kind = TypeVar("Kind")

SHAPE = EpochShape(samples=64, batch_size=8, rank=0, world_size=1, drop_last=True)
START = Cursor(0, 0, 0)


def segment(number: int = 1, slots: int = 6, tail: int = 64, body: int = 0) -> Segment:
    return Segment(number, slots, 4096, tail, body)


def bad_row(row: int, *, lost: bool = True, traceback: str = "", stage: str = "decode") -> BadRow:
    return BadRow(
        row, lost, BadSample(1000 + row, f"key{row}", row, stage, "ValueError", "broken", traceback)
    )


class SchedulerHarness:
    """`sent[worker]`: jobs it has and has not answered.

    `inbox[session]`: messages for the client that it has not heard.
    """

    def __init__(
        self,
        *,
        workers: int = 2,
        on_error: str = "raise",
        collated: bool = False,
        samples: int = 64,
        sample_timeout_s: float = 10.0,
        worker_memory: int = 0,
        ready: bool = True,
        streams: tuple[str, ...] = ("train",),
        replay: bool = False,
        most_workers: int = 0,
        cpus: int = 0,
        remote: int = 0,
    ) -> None:
        self.core = Scheduler(
            tuple(StreamRules(name, on_error, collated, samples) for name in streams),
            workers=workers,
            sample_timeout_s=sample_timeout_s,
            index_of=lambda job, row, candidate: (job.start + row) % samples * 10 + candidate,
            worker_memory=worker_memory,
            replay=replay,
            most_workers=most_workers,
            cpus=cpus,
            remote_workers=remote,
        )
        self.now_s = 100.0
        self.check = True  # all that must hold, after each step
        self.sent: dict[int, deque[Job]] = {}
        self.inbox: dict[int, deque[Descriptor | Pulse | Failure]] = {}
        self.clients: dict[int, ClientProtocol] = {}
        self.log: list[Action] = []
        self.segments: dict[tuple[int, int], Segment] = {}
        self.make: Callable[[Job], Done] = done
        self._take_note(self.core.begin(self.now_s))
        if ready:
            for worker in list(self.sent):
                self.step(WorkerReady(worker))

    def step(self, event: Event, *, after_s: float = 0.0) -> list[Action]:
        self.now_s += after_s
        actions = self.core.step(event, self.now_s)
        if self.check:
            self.core.invariants()
        self._take_note(actions)
        return actions

    def _take_note(self, actions: list[Action]) -> None:
        self.log += actions
        for action in actions:
            if isinstance(action, StartWorker):
                self.sent[action.worker] = deque()
            elif isinstance(action, SendJob):
                self.sent[action.worker].append(action.job)
            elif isinstance(action, SendMessage) and action.session in self.inbox:
                self.inbox[action.session].append(action.message)
            elif isinstance(action, FreeSegment):
                self.segments.pop((action.session, action.segment))

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [action for action in self.log if isinstance(action, kind)]

    # clients

    def attach(
        self,
        session: int = 1,
        *,
        shape: EpochShape = SHAPE,
        prefetch: int = 4,
        cursor: Cursor = START,
        stream: str = "train",
        tell: bool = True,
        group: int = 0,
        share_window: int = 8,
    ) -> ClientProtocol:
        """A client comes. group: it shares batches; slots for share_window + prefetch + 2."""
        first = segment(1, prefetch + 2 + (share_window if group else 0))
        known = [number for owner, number in self.segments if owner == group]
        if known:
            first = self.segments[group, max(known)]
        self.segments[group or session, first.segment] = first
        self.inbox[session] = deque()
        self.clients[session] = ClientProtocol(
            session, shape, prefetch, first, cursor, shared=bool(group)
        )
        self.step(Attach(session, stream, shape, 7, prefetch, first, group, share_window))
        if tell:
            self.tell(session)
        return self.clients[session]

    def tell(self, session: int = 1, **asked: bool) -> list[Action]:
        return self.step(ProgressReceived(session, self.clients[session].progress(**asked)))

    def hear(self, session: int = 1) -> None:
        """The client gets what was sent to it."""
        while self.inbox[session]:
            message = self.inbox[session].popleft()
            if isinstance(message, Descriptor):
                self.clients[session].receive(message)

    def take(self, session: int = 1, *, keep: bool = False) -> Descriptor:
        """next(): the trainer's batch; it is given back at once unless it keeps it."""
        client = self.clients[session]
        if client.dirty:
            self.tell(session)
        self.hear(session)
        batch = client.take()
        for _ in range(200):
            if batch is not None:
                break
            if client.dirty:
                self.tell(session)
            self.work()
            self.grow()
            self.hear(session)
            batch = client.take()
        assert batch is not None, self.core.snapshot()
        if not keep:
            client.release(batch.segment, batch.slot, batch.generation)
        self.tell(session)
        return batch

    def grow(self) -> None:
        for action in [a for a in self.log if isinstance(a, GrowSegment)]:
            self.log.remove(action)
            number = max(n for s, n in self.segments if s == action.session) + 1
            new = Segment(number, action.slots, 8192, action.tail_row_bytes, action.body_bytes)
            self.segments[action.session, number] = new
            group = self.core.state.groups.get(action.session)
            members = [member.session for member in group.members] if group else [action.session]
            for member in members:
                self.clients[member].add_segment(new)
            self.step(SegmentGrown(action.session, new))

    def detach(self, session: int = 1) -> list[Action]:
        del self.inbox[session], self.clients[session]
        return self.step(Detach(session))

    # workers

    def work(self, worker: int | None = None) -> None:
        """Each worker, or this one, finishes the first job that it has."""
        for w in [worker] if worker else list(self.sent):
            if self.sent[w]:
                self.step(WorkerDone(w, self.make(self.sent[w].popleft())))

    def finish(self) -> None:
        """Until no worker has a job."""
        for _ in range(1000):
            if not any(self.sent.values()):
                return
            self.work()
        raise AssertionError("the work never ends")

    def seen(
        self,
        worker: int,
        row: int | None = None,
        stage: Stage = Stage.READ,
        *,
        candidate: int = 0,
        key: str = "",
        paused: bool = False,
    ) -> WorkerObservation:
        job = self.sent[worker][0] if self.sent[worker] else None
        word = stamp(job.job, job.first if row is None else row, stage, candidate) if job else 0
        return WorkerObservation(worker, word, key, paused, 0)

    def look(self, *seen: WorkerObservation, after_s: float = 0.25) -> list[Action]:
        return self.step(WorkerPoll(seen), after_s=after_s)

    def die(
        self,
        worker: int,
        row: int | None = None,
        stage: Stage = Stage.READ,
        *,
        candidate: int = 0,
        own: bool = True,
        cause: str = "SIGSEGV",
        key: str = "",
        stack: str = "",
        boot: str = "",
        ready: bool = True,
    ) -> list[Action]:
        seen = self.seen(worker, row, stage, candidate=candidate, key=key)
        del self.sent[worker]
        actions = self.step(WorkerDied(worker, own, cause, seen, stack, boot))
        for action in actions:
            if isinstance(action, StartWorker) and ready:
                self.step(WorkerReady(action.worker))
        return actions

    def idle(self, worker: int) -> bool:
        return not self.sent[worker]

    def holder(self, job: Job) -> int:
        return next(w for w, jobs in self.sent.items() if job in jobs)

    def jobs(self, kind: JobKind | None = None) -> list[Job]:
        """What the workers have, in order of its sending."""
        return sorted(
            (job for jobs in self.sent.values() for job in jobs if kind in (None, job.kind)),
            key=lambda job: job.job,
        )

    def retired(self) -> list[int]:
        return [action.worker for action in self.log if isinstance(action, RetireWorker)]


def done(
    job: Job,
    bad: tuple[BadRow, ...] = (),
    *,
    seconds: float = 0.0,
    size: int = 0,
    needs_tail: int = 0,
    needs_body: int = 0,
    changed: str = "",
    written: int = 0,
) -> Done:
    return Done(
        job.job,
        bad,
        (),
        4096 + job.first,
        size,
        seconds,
        0.0,
        0.0,
        0.0,
        needs_tail,
        needs_body,
        changed,
        bytes=written,
    )


def one_session(*, workers: int = 1, prefetch: int = 1, **more: Any) -> SchedulerHarness:
    """A harness with one session, whose first batch is being made. more: its other keywords."""
    harness = SchedulerHarness(workers=workers, **more)
    harness.attach(prefetch=prefetch)
    return harness


def hang(
    harness: SchedulerHarness, worker: int, row: int, stage: Stage = Stage.DECODE, *, key: str = "k"
) -> float:
    """Look until the worker is killed; returns the seconds it took."""
    begun = harness.now_s
    for _ in range(1000):
        if any(
            isinstance(a, KillWorker)
            for a in harness.look(harness.seen(worker, row, stage, key=key))
        ):
            return harness.now_s - begun
    raise AssertionError("it is never killed")
