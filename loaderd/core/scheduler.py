"""Events in, actions out: which worker makes which rows of which batch, and what clients are told.

Pure: no clock, no socket, no process. Every decision that the daemon takes about batches, workers
and faults is taken here and in the modules below.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from loaderd.core import assessment, explain, reminders, stack_dumps
from loaderd.core import invariants as checks
from loaderd.core.actions import Action, FreeSegment, SendMessage
from loaderd.core.assignment import JobAssigner
from loaderd.core.batches import BatchBuild
from loaderd.core.deadlines import Deadlines
from loaderd.core.events import (
    Attach,
    Detach,
    Drain,
    Event,
    GrowFailed,
    PoolReview,
    ProgressReceived,
    SegmentGrown,
    StackDumped,
    StackWanted,
    StreamOpened,
    WorkerBooting,
    WorkerDied,
    WorkerDone,
    WorkerPoll,
    WorkerReady,
)
from loaderd.core.fault_attribution import FaultAttribution, IndexOf
from loaderd.core.groups import GroupMember, GroupState
from loaderd.core.pool import WorkerPool
from loaderd.core.pool_sizing import PoolPace, PoolSizer
from loaderd.core.sessions import SessionState
from loaderd.core.snapshot import SchedulerSnapshot, latest_batches, snapshot
from loaderd.core.state import SchedulerState
from loaderd.core.streams import StreamRules, StreamState
from loaderd.core.supervision import WorkerSupervisor
from loaderd.core.verdict import Verdict
from loaderd_wire.messages import Descriptor, Progress, Pulse, Segment

DRAINING = "the daemon is draining"
STEADY = PoolPace()

__all__ = ["Scheduler", "StreamRules"]


class Scheduler:
    """Takes one event at a time, in the order in which they happened.

    `begin` is called once, before the first event. A step costs O(log n) in sessions and workers.

    Attributes:
        state: The tables. Read them; only the scheduler changes them.
    """

    def __init__(
        self,
        streams: tuple[StreamRules, ...],
        *,
        workers: int,
        remote_workers: int = 0,
        sample_timeout_s: float,
        index_of: IndexOf,
        kill_s: float = 5.0,
        worker_memory: int = 0,
        cpus: int = 0,
        all_cpus: int = 0,
        most_workers: int = 0,
        pace: PoolPace = STEADY,
        replay: bool = False,
    ) -> None:
        """Begin without sessions.

        Args:
            streams: What is served from the start. `Opened` adds more.
            workers: How many workers there shall be on this host, at least 1.
            remote_workers: How many there may be on others.
            sample_timeout_s: Seconds that a sample may take in one stage.
            index_of: index_of(job, row, candidate) is the dataset index that a row of the batch may
                be made from: its own sample's for candidate 0, its n-th substitute's for n.
            kill_s: Seconds after which a worker that was killed and is not dead is replaced.
            worker_memory: Bytes of anonymous memory above which a worker is replaced. 0: no limit.
            cpus: Processors that the workers may use; 0: unknown.
            all_cpus: Processors that the daemon could have, were it not pinned to some; 0: unknown.
            most_workers: The pool grows up to so many, and shrinks, by what trainers wait for. 0:
                it keeps its size.
            pace: How soon it does so.
            replay: The first batches of a session are handed out again and again.

        Raises:
            ValueError: A number is out of range.
        """
        self.state = SchedulerState(
            WorkerPool(workers, remote_workers),
            {rules.name: StreamState(rules) for rules in streams},
            cpus=cpus,
            all_cpus=all_cpus,
        )
        self._assigner = JobAssigner(self.state)
        self._deadlines = Deadlines(sample_timeout_s, kill_s)
        self._supervisor = WorkerSupervisor(
            self.state,
            self._assigner,
            self._deadlines,
            FaultAttribution(self.state.streams, index_of),
            worker_memory,
        )
        self._sizer = (
            PoolSizer(self.state, most_workers, worker_memory, pace) if most_workers else None
        )
        self._looked_s: float | None = None
        self._replay = replay
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            StreamOpened: self._opened,
            Attach: self._attach,
            Detach: self._detach,
            ProgressReceived: self._told,
            SegmentGrown: self._grown,
            GrowFailed: self._not_grown,
            WorkerBooting: lambda e: self.state.pool.booting(
                e.worker, e.doing, self.state.now_s, e.reached
            ),
            WorkerReady: lambda e: self.state.pool.ready(e.worker),
            WorkerDone: self._supervisor.done,
            WorkerDied: self._supervisor.died,
            WorkerPoll: self._look,
            PoolReview: self._review,
            StackWanted: self._stack_wanted,
            StackDumped: lambda e: stack_dumps.take(
                self.state.pool.workers.get(e.worker), e.stack, self.state.now_s
            ),
            Drain: self._drain,
        }

    def begin(self, now_s: float) -> list[Action]:
        """The workers to start.

        Args:
            now_s: Time in seconds of a monotonic clock. It never falls from call to call.
        """
        self.state.now_s = now_s
        if self._sizer:
            self._sizer.begin()
        return list(self.state.pool.begin())

    def step(self, event: Event, now_s: float) -> list[Action]:
        """Handle an event.

        Args:
            event: What has happened.
            now_s: When, by the clock of `begin`.

        Returns:
            What is to be done about it, in this order.

        Raises:
            ValueError: The event cannot happen in the present state. The text says why.
        """
        state = self.state
        state.turns += 1
        passed_s = now_s - state.now_s
        state.usage.busy_s += state.pool.available.busy * passed_s
        state.usage.workers_s += state.pool.at_work * passed_s
        state.now_s = now_s
        state.actions = []
        self._handlers[type(event)](event)
        if state.pool.remote.size:
            self._supervisor.fill_seats()
        self._assigner.assign()
        return state.actions

    def next_look_s(self, now_s: float) -> float | None:
        """When the workers are to be looked at next, by the clock of `begin`.

        Returns:
            None while no worker has a job or is to end.
        """
        if not self.state.pool.available.watched:
            self._looked_s = None
            return None
        if self._looked_s is None:
            self._looked_s = now_s
        return max(now_s, self._looked_s + self._deadlines.every_s)

    def next_review_s(self) -> float | None:
        """When the size of the pool is to be reviewed, by the clock of `begin`.

        Returns:
            None while it is fixed, or nobody uses the pool.
        """
        return self._sizer.next_s() if self._sizer else None

    def snapshot(self) -> SchedulerSnapshot:
        """The state at the latest event, for `status`."""
        return snapshot(self.state, self.state.now_s)

    def latest_batches(self) -> dict[int, tuple[Descriptor, Segment]]:
        """The last batch that each session was told of and still has, and where it lies."""
        return latest_batches(self.state)

    def verdicts(self, now_s: float) -> list[Verdict]:
        """Who waits for whom, of each session.

        Args:
            now_s: When, by the clock of `begin`.
        """
        state = self.state
        return [assessment.assess(state, session, now_s) for session in state.sessions.values()]

    def invariants(self) -> None:
        """Check what must hold between two events.

        Raises:
            AssertionError: The state contradicts itself. The text says where.
        """
        checks.assert_invariants(self.state)

    # streams and sessions

    def _opened(self, e: StreamOpened) -> None:
        streams = self.state.streams
        known = streams.get(e.rules.name)
        if known is not None and known.sessions:
            raise ValueError(f"stream {e.rules.name!r} has sessions of what it was")
        streams[e.rules.name] = StreamState(e.rules)

    def _attach(self, e: Attach) -> None:
        state = self.state
        stream = state.streams.get(e.stream)
        if stream is None or e.session in state.sessions or e.session in state.leaving:
            raise ValueError(
                f"session {e.session} of stream {e.stream!r} can't attach: streams "
                f"{sorted(state.streams)}, sessions {sorted(state.sessions)}"
            )
        session = self._new_session(e, stream)
        state.sessions[e.session] = session
        stream.joined(e.session)
        if self._sizer:
            self._sizer.attached()
        if state.draining:
            session.end(DRAINING)
        if stream.broken:
            self._assigner.fail(session, *stream.broken)

    def _new_session(self, e: Attach, stream: StreamState) -> SessionState:
        on_error, collated = stream.rules.on_error, stream.rules.collated
        if not e.group:
            return SessionState(e, on_error, collated, stream.batch, replay=self._replay)
        if e.group in self.state.leaving:
            raise ValueError(f"session {e.session} can't join group {e.group}, which has ended")
        group = self.state.groups.get(e.group)
        if group is None:
            group = GroupState(
                e,
                partial(
                    BatchBuild,
                    e.stream,
                    on_error,
                    collated,
                    e.seed,
                    epoch_samples=e.shape.samples,
                ),
                stream.batch,
            )
        member = GroupMember(e, on_error, collated, stream.batch, group)
        self.state.groups[e.group] = group
        return member

    def _detach(self, e: Detach) -> None:
        state = self.state
        session = state.sessions.pop(e.session, None)
        if session is None:
            raise ValueError(
                f"session {e.session} can't detach: there are {sorted(state.sessions)}"
            )
        state.streams[session.stream].sessions.discard(e.session)
        session.leave()
        owner = session.owner
        if owner.gone:
            state.groups.pop(owner.session, None)
            state.leaving[owner.session] = owner
        self._assigner.refresh(owner)

    def _told(self, e: ProgressReceived) -> None:
        state = self.state
        session, p = state.sessions.get(e.session), e.progress
        if session is None or p.seq <= session.seq:
            return
        fault = session.window.fault_in(p)
        if fault:
            self._assigner.note(session, fault, "the session ends")
            self._assigner.fail(
                session, "ProtocolError", f"the client sent an invalid request: {fault}"
            )
            return self._assigner.refresh(session.owner)
        if self._sizer:
            self._sizer.heard()
        session.seq = p.seq
        session.waiting = p.waiting
        taken = session.window.taken
        if p.plan == session.window.plan and (fault := session.advance(p.taken)):
            self._assigner.note(session, fault, "ignored")
        usage, batches = session.usage, session.window.taken - taken
        waited_s = usage.told(state.now_s, batches, p.waiting, p.waited_s)
        if batches:
            state.streams[session.stream].took(batches, waited_s)
        if usage.sample_due(state.now_s):
            self._sample(session)
        for released in p.released:
            if fault := session.give_back(released):
                self._assigner.note(session, fault, "ignored")
        if p.plan > session.window.plan:
            session.seek(p)
        session.settle()
        told = (
            reminders.asked_for(session.window, session.slots, p.have, state.now_s)
            if p.again and p.plan == session.window.plan
            else []
        )
        told += reminders.overdue(session.window, session.slots, p.released, state.now_s)
        if told:
            state.actions += [SendMessage(session.session, message) for message in told]
        self._assigner.refresh(session.owner)
        if p.ping:
            self._answer(session, p)

    def _answer(self, session: SessionState, p: Progress) -> None:
        """A ping is answered with what is known after everything else about the message is done."""
        state = self.state
        self._assigner.assign()
        state.actions += (
            stack_dumps.ask(explain.blocking_workers(state, session)) if p.stacks else []
        )
        line, detail = explain.explain(state, session, state.now_s)
        state.actions += [SendMessage(session.session, session.failure)] if session.failure else []
        state.actions.append(
            SendMessage(
                session.session,
                Pulse(session.session, p.seq, state.turns, session.made, line, detail),
            )
        )

    def _sample(self, session: SessionState) -> None:
        """Look at what a session does, and have its client told if that has changed."""
        state = self.state
        session.usage.sample(state.now_s, state.usage)
        found = assessment.assess(state, session, state.now_s)
        session.need = found.need_workers or 0.0
        session.verdict = found.text if session.usage.knows_wait else ""

    def _grown(self, e: SegmentGrown) -> None:
        state = self.state
        owner = state.sessions.get(e.session) or state.groups.get(e.session)
        if owner is None:
            state.actions.append(FreeSegment(e.session, e.segment.segment))
            return
        owner.grown(e.segment)
        self._assigner.refresh(owner)

    def _not_grown(self, e: GrowFailed) -> None:
        state = self.state
        owner = state.sessions.get(e.session) or state.groups.get(e.session)
        if owner is None:
            return
        for session in owner.not_grown(state.now_s):
            self._assigner.fail(session, "StreamFailedError", e.text)
        self._assigner.refresh(owner)

    def _drain(self, _: Drain) -> None:
        self.state.draining = True
        for session in self.state.sessions.values():
            session.end(DRAINING)
            self._assigner.refresh(session.owner)

    # workers

    def _stack_wanted(self, e: StackWanted) -> None:
        w = self.state.pool.workers.get(e.worker)
        self.state.actions += stack_dumps.ask([w], again=True) if w is not None else []

    def _review(self, e: PoolReview) -> None:
        if self._sizer:
            self._sizer.review(e.free_bytes)

    def _look(self, e: WorkerPoll) -> None:
        self._looked_s = self.state.now_s
        self._supervisor.look(e)
