"""Which worker gets which rows next, and what follows from a change of a session."""

from __future__ import annotations

from loaderd.core import quickest
from loaderd.core.actions import (
    FreeSegment,
    GrowSegment,
    LogLine,
    SendJob,
    SendMessage,
    StreamBroken,
)
from loaderd.core.sessions import SessionState
from loaderd.core.slot_owner import SlotOwner
from loaderd.core.state import RunningJob, SchedulerState
from loaderd.core.streams import StreamState
from loaderd_wire.messages import Failure
from loaderd_wire.records import quick

HEADROOM = 5 / 4  # size of a larger segment over the size that was asked for
NOTE_S = 1.0  # least time between two log lines about one session
FAILURE_CHARS = 64 << 10  # of the text that tells a client why its session has ended

_send, _tell = quick(SendJob), quick(SendMessage)


class JobAssigner:
    """Hands rows out to workers and keeps every session's window of batches filled.

    Its methods change the state and append to `state.actions`. They are the common end of all
    events, so each of them costs O(log n) in the number of sessions.

    Attributes:
        state: The scheduler's tables.
    """

    def __init__(self, state: SchedulerState) -> None:
        self.state = state
        self._pool, self._queue = state.pool, state.queue
        self._job_count = 0

    def assign(self) -> None:
        """Give jobs to workers with room, as long as there is work.

        The session with the fewest finished batches ahead comes first. A batch that a trainer
        waits for goes only to a worker that is idle or will be so soon, so that it does not stand
        behind another job for long. A slow worker gets only rows that quicker ones would not make
        sooner. Where such a batch is kept from it, others' batches are no second jobs of quick
        workers, which are to become idle.
        """
        state, pool, queue = self.state, self._pool, self._queue
        held: list[SlotOwner] = []
        idle_only = False
        while pool.available.room and not state.draining:
            first = queue.peek()
            if first is None:
                break
            owner, item = first
            urgent = item.k == owner.window.taken
            idle_only = idle_only or urgent
            worker = pool.available.pick(second=not idle_only)
            if worker is None and idle_only:
                worker = quickest.soon_idle(state)
            if worker is None:
                break
            stream, build = state.streams[owner.stream], item.build
            if quickest.is_held(state, owner, item, worker):
                worker = None if idle_only else pool.available.quicker(pool.workers[worker])
            if worker is None:
                queue.pass_over(owner)
                held.append(owner)
                continue
            self._job_count += 1
            job = build.hand_out(
                self._job_count,
                stream.parts(
                    build.slice.rows,
                    pool.strength,
                    owner.window.prefetch,
                    urgent,
                    pool.available.busy,
                ),
                pool.workers[worker].pace.share,
            )
            state.jobs[job.job] = RunningJob(job, worker, owner, build, build.attempt)
            owner.slots.tables[job.segment].writers[job.slot].add(job.job)
            pool.give(worker, job.job, state.now_s)
            state.actions.append(_send(worker, job))
            queue.served(owner)
            idle_only = False
            while held:  # the next idle worker may be the right one for them
                queue.put(held.pop())
        while held:
            queue.put(held.pop())

    def end_job(self, number: int) -> RunningJob:
        """Take a job out of the tables, because its worker has answered or is dead.

        Returns:
            What was running. Its batch is unchanged.

        Raises:
            KeyError: There is no such job.
        """
        running = self.state.jobs.pop(number)
        running.owner.slots.tables[running.job.segment].wrote(running.job.slot, number)
        return running

    def refresh(self, owner: SlotOwner) -> None:
        """Do what has become possible after a change of a session or a group.

        Claims slots, announces finished batches, frees segments that nothing uses, and gives it its
        new place in the queue.
        """
        state = self.state
        if not state.draining:
            if owner.slots.outgrown:
                self._grow(owner)
            if owner.unplaced:
                owner.fill(state.now_s)
        if owner.unsaid and not owner.ended:
            state.actions += [
                _tell(message.session, message) for message in owner.announce(state.now_s)
            ]
        if not state.draining and owner.starved(state.now_s):
            self._grow(owner)
        owner.hold(state.now_s)
        if owner.gone or len(owner.slots.tables) > 1:
            state.actions += [
                FreeSegment(owner.session, segment)
                for segment in owner.slots.spent(gone=owner.gone)
            ]
            if owner.gone and not owner.slots.tables:
                state.leaving.pop(owner.session, None)
        self._queue.put(owner)

    def fail(self, session: SessionState, error: str, text: str) -> None:
        """End a session on a fault and tell its client.

        Args:
            session: The session.
            error: Name of a class in `loaderd_wire.errors`.
            text: Why, for the user. Cut to FAILURE_CHARS.
        """
        session.end(text)
        session.failure = session.failure or Failure(session.session, error, text[:FAILURE_CHARS])
        self.state.actions.append(SendMessage(session.session, session.failure))

    def break_stream(self, stream: StreamState, error: str, text: str) -> None:
        """End a stream on a fault: all its sessions fail, and later ones fail at once."""
        if stream.broken:
            return
        state = self.state
        stream.broken = (error, text)
        state.actions.append(StreamBroken(stream.rules.name, error, text))
        for number in sorted(stream.sessions):
            self.fail(state.sessions[number], error, text)
            self.refresh(state.sessions[number].owner)

    def note(self, session: SessionState, fault: str, then: str) -> None:
        """Log what a client said that cannot be true, and what is done then.

        Logs at most once in NOTE_S for each session.
        """
        now_s = self.state.now_s
        if session.note_s is not None and now_s - session.note_s < NOTE_S:
            session.notes_left_out += 1
            return
        more = (
            f" ({session.notes_left_out} more like it left out)" if session.notes_left_out else ""
        )
        session.note_s, session.notes_left_out = now_s, 0
        self.state.actions.append(
            LogLine(
                "warning",
                "client_fault",
                f"session {session.session} reported {fault}: {then}{more}",
                {"session": session.session},
            )
        )

    def _grow(self, owner: SlotOwner) -> None:
        """Ask for a larger segment if what comes next does not fit into the current one."""
        if owner.slots.growing or owner.ended:
            return
        has = owner.slots.table.segment
        tail, body = owner.window.needs()
        fits = tail <= has.tail_row_bytes and body <= has.body_bytes
        if fits and not owner.starved(self.state.now_s):
            return
        owner.slots.growing, owner.slots.outgrown = True, False
        tail = max(has.tail_row_bytes, int(tail * HEADROOM + 7) & ~7)
        body = max(has.body_bytes, int(body * HEADROOM))
        # A larger segment for larger batches is to need no more memory than it must.
        slots = owner.slots_needed() if fits else has.slots
        self.state.actions.append(GrowSegment(owner.session, slots, tail, body))
