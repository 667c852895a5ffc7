"""What the scheduler knows at one moment, as plain data for `status`."""

from __future__ import annotations

from dataclasses import dataclass, field

from loaderd.core import assessment, explain, stack_dumps
from loaderd.core.assessment import Rates
from loaderd.core.groups import GroupMember, GroupState
from loaderd.core.histogram import Durations
from loaderd.core.jobs import importing
from loaderd.core.pool_worker import PoolWorker, WorkerState
from loaderd.core.remote_seats import RemoteSeats
from loaderd.core.sessions import SessionState
from loaderd.core.slot_owner import SlotOwner
from loaderd.core.slots import SlotState
from loaderd.core.state import SchedulerState
from loaderd.core.streams import StreamState
from loaderd.core.verdict import STAGES, Verdict
from loaderd_wire.messages import Descriptor, Segment
from loaderd_wire.slices import steps_left


@dataclass(frozen=True, slots=True)
class StreamSnapshot:
    """A stream that is served.

    Attributes:
        on_error: "raise", "skip" or "replace".
        sessions: Numbers of its sessions, ascending.
        row_s: Seconds that a worker takes for a row; None until measured.
        stage_s: Seconds of all workers' time, by stage.
        deaths: Workers that have died on it since a row was last finished.
        last_death: Cause and sample of the last death; "" before the first.
        batches: Batches that trainers took.
        bytes: Bytes that workers wrote.
        durations: How long it took: "wait" of a trainer for a batch, "batch" from the claim of its
            slot on, and by stage the time for a row.
    """

    on_error: str
    sessions: tuple[int, ...]
    row_s: float | None
    stage_s: dict[str, float]
    deaths: int
    last_death: str
    batches: int = 0
    bytes: int = 0
    durations: dict[str, Durations] = field(default_factory=dict[str, Durations])


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """A session.

    Attributes:
        session: Its number.
        plan: Number of its plan; 0 before the first.
        taken: Batches of the plan that the client has taken.
        made: Batches that have been made for it, of all its plans.
        announced: Batches of the plan that have been announced.
        waiting: Whether its client waits for a batch.
        epoch: Epoch of the next batch; None, as position and step, if there is no next batch.
        position: Position of the next batch in its epoch.
        step: Step of the next batch in its epoch.
        slots: Slots in each state, of all its segments.
        segments: Numbers of its segments, ascending.
        story: What the next batch waits for, in one line; "" if it waits for nothing.
        verdict: Who waits for whom, lately; None if a daemon of another version does not say.
        epoch_steps: Steps of a whole epoch.
        rates: How fast it goes.
        group: Number of the group whose batches it shares; None if it shares none.
        lag: Batches by which it is behind the session of its group that is furthest.
    """

    session: int
    plan: int
    taken: int
    made: int
    announced: int
    waiting: bool
    epoch: int | None
    position: int | None
    step: int | None
    slots: dict[str, int]
    segments: tuple[int, ...]
    story: str
    verdict: Verdict | None = None
    epoch_steps: int | None = None
    rates: Rates | None = field(default=None, metadata={"group": True})
    group: int | None = None
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """Sessions that share their batches.

    Attributes:
        group: Its number.
        stream: Name of the stream.
        sessions: Numbers of its sessions, ascending.
        share_window: A batch is kept for those that will want it as one of their next so many.
        made: Batches that were made.
        told: Batches that sessions were told of.
        hits: Those of them that had been made for another session.
        slots: Slots in each state, of all its segments. An announced one is being copied by a
            session, or soon will be.
        segments: Numbers of its segments, ascending.
    """

    group: int
    stream: str
    sessions: tuple[int, ...]
    share_window: int
    made: int
    told: int
    hits: int
    slots: dict[str, int]
    segments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """A worker.

    Attributes:
        worker: Its number.
        state: "starting", "up", "retiring", "killed", "stuck", or "stopped" by a signal.
        jobs: Numbers of its jobs, the one that runs first.
        stream: Stream of the job that runs; None, as row and stage, without a job.
        row: Row of the batch that it makes.
        stage: What it does with the row, such as "decode".
        key: Key of the row's sample, if it is known.
        seconds: For how long it has been doing that.
        doing: What its start is busy with; "" once it is ready.
        stack: The stack of its threads, if it was asked for; "" else.
        remote: It is, or will be, on another host.
    """

    worker: int
    state: str
    jobs: tuple[int, ...]
    stream: str | None
    row: int | None
    stage: str | None
    key: str
    seconds: float
    doing: str
    stack: str
    remote: bool = False


@dataclass(frozen=True, slots=True)
class RemoteSnapshot:
    """Workers on other hosts.

    Attributes:
        wanted: How many there may be.
        up: How many are at work.
        starting: How many are being started.
        text: The same in one line, with what keeps the others from it.
    """

    wanted: int
    up: int
    starting: int
    text: str


@dataclass(frozen=True, slots=True)
class SchedulerSnapshot:
    """Streams, sessions and workers.

    Attributes:
        draining: Nothing new is made.
        turns: Events handled until now.
        jobs: Number of jobs that were sent to workers and not answered.
        streams: The streams, by name.
        sessions: The sessions of connected clients.
        workers: The workers that are not known to be dead.
        restarts: Workers that were started in place of another, by `state.CAUSES`.
        wanted_workers: How many there shall be on this host.
        remote: Those on other hosts; None if there are to be none.
        sizing: What was last done or not done about that number, and why; None if it is fixed.
        groups: Sessions that share their batches.
    """

    draining: bool
    turns: int
    jobs: int
    streams: dict[str, StreamSnapshot]
    sessions: tuple[SessionSnapshot, ...]
    workers: tuple[WorkerSnapshot, ...]
    restarts: dict[str, int]
    wanted_workers: int
    remote: RemoteSnapshot | None
    sizing: str | None
    groups: tuple[GroupSnapshot, ...] = ()


def snapshot(state: SchedulerState, now_s: float) -> SchedulerSnapshot:
    """Take a snapshot.

    Args:
        state: The tables.
        now_s: Time of the latest event.
    """
    return SchedulerSnapshot(
        draining=state.draining,
        turns=state.turns,
        jobs=len(state.jobs),
        streams={name: _stream(stream) for name, stream in state.streams.items()},
        sessions=tuple(_session(state, session, now_s) for session in state.sessions.values()),
        workers=tuple(_worker(state, worker, now_s) for worker in state.pool.workers.values()),
        restarts=dict(state.restarts),
        wanted_workers=state.pool.size,
        remote=_remote(state.pool.remote),
        sizing=state.sizing,
        groups=tuple(_group(group) for group in state.groups.values()),
    )


def latest_batches(state: SchedulerState) -> dict[int, tuple[Descriptor, Segment]]:
    """The last batch that each client was told of and has not given back, and where it lies.

    Args:
        state: The tables.

    Returns:
        By number of the session. The trainer may write to the slot, and no worker does.
    """
    found: dict[int, tuple[Descriptor, Segment]] = {}
    for session in state.sessions.values():
        slots = session.slots
        if slots.announced:
            messages = [known.message for known in slots.announced.values()]
            message = max(messages, key=lambda each: (each.plan, each.k))
            found[session.session] = message, slots.tables[message.segment].segment
    return found


def _remote(seats: RemoteSeats) -> RemoteSnapshot | None:
    if not seats.size:
        return None
    return RemoteSnapshot(seats.size, len(seats.up), seats.starting, seats.described())


def _stream(stream: StreamState) -> StreamSnapshot:
    return StreamSnapshot(
        on_error=stream.rules.on_error,
        sessions=tuple(sorted(stream.sessions)),
        row_s=stream.row_s,
        stage_s=dict(zip(STAGES, stream.stage_s, strict=True)),
        deaths=stream.died,
        last_death=stream.last_death,
        batches=stream.batches,
        bytes=stream.bytes,
        durations=stream.durations(),
    )


def _slots(owner: SlotOwner) -> dict[str, int]:
    """Slots in each state, of all segments."""
    tables = owner.slots.tables.values()
    return {slot.value: sum(table.count(slot) for table in tables) for slot in SlotState}


def _group(group: GroupState) -> GroupSnapshot:
    return GroupSnapshot(
        group=group.session,
        stream=group.stream,
        sessions=tuple(sorted(member.session for member in group.members)),
        share_window=group.share_window,
        made=group.made,
        told=group.told,
        hits=group.hits,
        slots=_slots(group),
        segments=tuple(sorted(group.slots.tables)),
    )


def _session(state: SchedulerState, s: SessionState, now_s: float) -> SessionSnapshot:
    first = s.window.items[0].cursor if s.window.items else None
    return SessionSnapshot(
        session=s.session,
        plan=s.window.plan,
        taken=s.window.taken,
        made=s.made,
        announced=s.window.announced,
        waiting=s.waiting,
        epoch=first.epoch if first else None,
        position=first.position if first else None,
        step=first.step if first else None,
        slots=_slots(s.owner),
        segments=tuple(sorted(s.slots.tables)),
        story=explain.next_batch_line(state, s, now_s),
        verdict=assessment.assess(state, s, now_s),
        epoch_steps=steps_left(s.window.shape, 0),
        rates=assessment.rates(state, s, now_s),
        group=s.owner.session if isinstance(s, GroupMember) else None,
        lag=s.group.lag_of(s) if isinstance(s, GroupMember) else None,
    )


def _worker(state: SchedulerState, w: PoolWorker, now_s: float) -> WorkerSnapshot:
    number, row, stage = w.stamp
    busy = number in w.jobs
    starting = w.life is WorkerState.STARTING
    return WorkerSnapshot(
        worker=w.worker,
        state="stopped" if w.paused else w.life.value,
        jobs=tuple(w.jobs),
        stream=state.jobs[w.jobs[0]].job.stream if w.jobs else None,
        row=row if busy else None,
        stage=("import" if importing(w.word) else stage.name.lower()) if busy else None,
        key=w.key if busy else "",
        seconds=round(explain.busy_s(w, now_s), 3) if busy or w.paused or w.doing else 0.0,
        doing=w.doing if starting else "",
        stack=stack_dumps.of(w),
        remote=w.remote,
    )
