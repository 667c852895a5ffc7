"""Events in, actions out: which worker makes which rows of which batch, and what a session is told.

Pure: no clock, no socket, no process. Every decision that the daemon takes about batches, workers and faults is taken here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loaderd.core import checks, rescue, stacks, story
from loaderd.core.actions import Action, CannotBoot, Drop, Grow, Note, Quarantine, Send, StreamBroken, Tell
from loaderd.core.blame import Death
from loaderd.core.deadlines import Deadlines
from loaderd.core.events import (
    Attach,
    Booting,
    Detach,
    Drain,
    Dumped,
    Event,
    Grown,
    Look,
    NotGrown,
    Opened,
    Told,
    WorkerDied,
    WorkerDone,
    WorkerReady,
)
from loaderd.core.inquest import IndexOf, Inquest
from loaderd.core.jobs import Done, Kind, Stage, candidate_of, same, unstamp
from loaderd.core.pool import Life, Pool, Worker
from loaderd.core.queue import Queue
from loaderd.core.running import Running
from loaderd.core.sessions import Session
from loaderd.core.streams import Stream, StreamRules
from loaderd_wire.messages import Failure, Pulse
from loaderd_wire.records import quick

DRAINING = "the daemon drains"
WAY_ON = "a new Loader reads the new data once nobody uses this stream any longer; so does a daemon that is drained and started again"
CODE_WAY_ON = "a new daemon reads the new code: run `loaderd drain` (or end the training) and start again, it goes on from its saved state"
NOTE_S = 1.0  # between two notes about one session
HEADROOM = 5 / 4  # of a larger segment over what was asked for

_send, _tell = quick(Send), quick(Tell)

__all__ = ["Scheduler", "StreamRules"]


class Scheduler:
    """One event at a time, in the order of their happening; `now_s` never falls.

    `begin` first: it returns the workers to start. index_of(stream, seed, epoch, position, candidate) is the dataset's
    index at a position: its own for candidate 0, its n-th substitute's for n.
    A step costs O(log n) in sessions and workers. Raises ValueError on an event that cannot happen, naming what stands against it.
    """

    def __init__(
        self,
        streams: tuple[StreamRules, ...],
        *,
        workers: int,
        sample_timeout_s: float,
        index_of: IndexOf,
        kill_s: float = 5.0,
        worker_memory: int = 0,
    ) -> None:
        self.streams = {rules.name: Stream(rules) for rules in streams}
        self.sessions: dict[int, Session] = {}
        self.leaving: dict[int, Session] = {}  # detached, with jobs that still run
        self.jobs: dict[int, Running] = {}
        self.pool = Pool(workers)
        self.deadlines = Deadlines(sample_timeout_s, kill_s)
        self.queue = Queue()
        self.draining = False
        self.turns = 0
        self.worker_memory = worker_memory
        self.breaker = max(10, 5 * workers)
        self.inquest = Inquest(self.streams, index_of)
        self._looked_s: float | None = None
        self._job_count = 0
        self._now_s = 0.0
        self._out: list[Action] = []
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            Opened: self._opened,
            Attach: self._attach,
            Detach: self._detach,
            Told: self._told,
            Grown: self._grown,
            NotGrown: self._not_grown,
            Booting: lambda e: self.pool.booting(e.worker, e.doing, self._now_s),
            WorkerReady: lambda e: self.pool.ready(e.worker),
            WorkerDone: self._done,
            WorkerDied: self._died,
            Look: self._look,
            Dumped: lambda e: stacks.take(self.pool.workers.get(e.worker), e.stack, self._now_s),
            Drain: self._drain,
        }

    def begin(self, now_s: float) -> list[Action]:
        """Once, before the first event: the workers to start."""
        self._now_s = now_s
        return list(self.pool.begin())

    def step(self, event: Event, now_s: float) -> list[Action]:
        """What is to be done about an event, in order."""
        self.turns += 1
        self._now_s = now_s
        self._out = []
        self._handlers[type(event)](event)
        self._dispatch()
        return self._out

    def next_look_s(self, now_s: float) -> float | None:
        """When (on the clock of now_s) the next Look is due; None while no worker has a job or is to end."""
        if not self.pool.watched:
            self._looked_s = None
            return None
        if self._looked_s is None:
            self._looked_s = now_s
        return max(now_s, self._looked_s + self.deadlines.every_s)

    def picture(self) -> dict[str, Any]:
        """The state as plain data for `status`."""
        return story.picture(self, self._now_s)

    # sessions

    def _opened(self, e: Opened) -> None:
        known = self.streams.get(e.rules.name)
        if known is not None and known.sessions:
            raise ValueError(f"stream {e.rules.name!r} has sessions of what it was")
        self.streams[e.rules.name] = Stream(e.rules)

    def _attach(self, e: Attach) -> None:
        stream = self.streams.get(e.stream)
        if stream is None or e.session in self.sessions or e.session in self.leaving:
            raise ValueError(
                f"session {e.session} of stream {e.stream!r} can't attach: streams {sorted(self.streams)}, sessions {sorted(self.sessions)}"
            )
        session = Session(e, stream.rules.on_error, stream.rules.collated)
        self.sessions[e.session] = session
        stream.sessions.add(e.session)
        if self.draining:
            session.end(DRAINING)
        if stream.broken:
            self._fail(session, *stream.broken)

    def _detach(self, e: Detach) -> None:
        session = self.sessions.pop(e.session, None)
        if session is None:
            raise ValueError(f"session {e.session} can't detach: there are {sorted(self.sessions)}")
        self.streams[session.stream].sessions.discard(e.session)
        session.leave()
        self.leaving[e.session] = session
        self._refresh(session)

    def _told(self, e: Told) -> None:
        session, p = self.sessions.get(e.session), e.progress
        if session is None or p.seq <= session.seq:
            return
        fault = session.fault_in(p)
        if fault:
            return self._note(session, fault)
        session.seq = p.seq
        session.waiting = p.waiting
        faults = [session.advance(p.taken)] if p.plan == session.plan else []
        faults += [session.give_back(released) for released in p.released]
        for fault in filter(None, faults):
            self._note(session, fault)
        if p.plan > session.plan:
            session.seek(p)
        session.settle()
        told = session.anew(p.have, self._now_s) if p.again and p.plan == session.plan else []
        told += session.reminders({r.segment for r in p.released}, self._now_s)
        self._out += [Tell(session.session, message) for message in told]
        self._refresh(session)
        if p.ping:
            self._dispatch()
            self._out += stacks.ask(story.concerned(self, session)) if p.stacks else []
            line, detail = story.story(self, session, self._now_s)
            self._out += [Tell(session.session, session.failure)] if session.failure else []
            self._out.append(Tell(session.session, Pulse(session.session, p.seq, self.turns, session.made, line, detail)))

    def _grown(self, e: Grown) -> None:
        session = self.sessions.get(e.session)
        if session is None:
            self._out.append(Drop(e.session, e.segment.segment))
            return
        session.grown(e.segment)
        self._refresh(session)

    def _not_grown(self, e: NotGrown) -> None:
        session = self.sessions.get(e.session)
        if session is not None:
            session.growing = False
            self._fail(session, "StreamFailed", e.text)
            self._refresh(session)

    def _drain(self, _: Drain) -> None:
        self.draining = True
        for session in self.sessions.values():
            session.end(DRAINING)
            self._refresh(session)

    # workers

    def _done(self, e: WorkerDone) -> None:
        done = e.done
        retire = self.pool.answered(e.worker, done.job)
        running = self._end_job(done.job)
        stream = self.streams[running.job.stream]
        changed = f"{e.other_code}; {CODE_WAY_ON}" if e.other_code else f"{done.changed}; {WAY_ON}" if done.changed else ""
        if changed:
            if not running.session.gone:  # else it may be of what the stream was before it was opened anew
                self._break(stream, "StreamChanged", changed)
        elif done.needs_tail or done.needs_body:
            if running.wanted:
                self._outgrown(running, done)
        else:
            self._finished(stream, running, done)
        if not (running.wanted and running.draft.running):  # else the batch waits for its other jobs, and all is as it was
            self._refresh(running.session)
        if retire:
            self._out.append(retire)

    def _finished(self, stream: Stream, running: Running, done: Done) -> None:
        job, draft = running.job, running.draft
        stream.answered(job, done)
        if not running.wanted:
            return
        if job.kind in (Kind.FILL, Kind.BATCH):
            self._out += [Quarantine(job.stream, job.epoch, bad.sample) for bad in done.bad if bad.row not in draft.blame.convicted]
        draft.absorb(done.job, done)
        running.session.finish(draft)

    def _outgrown(self, running: Running, done: Done) -> None:
        session, draft = running.session, running.draft
        had = session.rings[running.job.segment].segment
        if done.needs_tail:
            draft.needs_tail = max(done.needs_tail, had.tail_row_bytes + 1)
        if done.needs_body:
            draft.needs_body = max(done.needs_body, had.body_bytes + 1)
        session.outgrown = True
        session.restart(draft)

    def _grow(self, session: Session) -> None:
        """Ask for a larger segment if a batch of the window does not fit; once more if the one that came is too small by now."""
        if session.growing or session.ended:
            return
        tail, body = session.needs()
        has = session.rings[session.current].segment
        if tail <= has.tail_row_bytes and body <= has.body_bytes:
            return
        session.growing, session.outgrown = True, False
        tail = max(has.tail_row_bytes, int(tail * HEADROOM + 7) & ~7)
        body = max(has.body_bytes, int(body * HEADROOM))
        self._out.append(Grow(session.session, has.slots, tail, body))

    def _look(self, e: Look) -> None:
        self._looked_s = self._now_s
        actions, stuck = self.deadlines.look(self.pool, e.seen, self._now_s)
        self._out += actions
        for w in stuck:
            self._give_up(w)
        for one in e.seen:
            w = self.pool.workers.get(one.worker)
            if w is None:
                continue
            if (running := rescue.stranded(self, w)) is not None:
                running.draft.rescued = True
                running.session.restart(running.draft)
                self._refresh(running.session)
            if rescue.abandoned(self, w, self._now_s):
                self._out.append(self.deadlines.kill(self.pool, w, self._now_s, "it is stopped by a signal (T), and nobody waits for it"))
            if 0 < self.worker_memory < one.anon_bytes and w.life is Life.UP:
                text = f"worker {w.worker} has {one.anon_bytes} bytes of memory, over worker_memory = {self.worker_memory}: it is replaced"
                self._out.append(Note("warning", text))
                retire = self.pool.retire(w.worker)
                self._out += [retire] if retire else []

    def _give_up(self, w: Worker) -> None:
        """It does not die: another takes its seat, its slots stay as they are until it does, its batches are made anew in others."""
        self._out.append(Note("error", f"worker {w.worker} does not die: its slots are in quarantine until it does"))
        self._out.append(self.pool.stuck(w.worker))
        at, row, stage = w.stamp
        for number in w.jobs:
            running = self.jobs[number]
            if not running.wanted:
                continue
            if number == at and stage is not Stage.IDLE:
                piece = running.draft.running[number]
                death = Death(row, stage, own=False, hung=True, cause=w.late, candidate=candidate_of(w.word))
                convicted = self.inquest.convict(running.draft, running.job, piece, death, w.key, "")
                self._out += convicted
                running.draft.apart = not convicted
            running.session.restart(running.draft)
            self._refresh(running.session)

    def _died(self, e: WorkerDied) -> None:
        w, start = self.pool.died(e.worker, e.cause)
        if start:
            self._out.append(start)
        if e.boot:
            self._out.append(Note("error", f"worker {e.worker} could not start: {e.cause}\n{e.boot}"))
            if not self.pool.ever_ready:
                self._out.append(CannotBoot(e.boot))
        number, row, stage = unstamp(e.seen.word)
        killed = w.killed_s is not None
        late = killed and bool(w.late)
        hung = late and same(e.seen.word, w.word)
        death = Death(row, stage, e.own and not killed, hung, w.late if hung else e.cause, candidate_of(e.seen.word))
        touched: dict[int, Session] = {}
        at: Running | None = None
        for job in w.jobs:
            running = self._end_job(job)
            touched[id(running.session)] = running.session
            at = running if at is None or job == number else at
            if not running.wanted:
                continue
            piece = running.draft.running.pop(job)
            if job == number and stage is not Stage.IDLE:
                convicted = self.inquest.hold(running.draft, running.job, piece, death, e.seen.key, e.stack)
                self._out += convicted
                self.streams[running.job.stream].deaths -= 0 if death.hung else len(convicted)  # two deaths that convict count as one
            else:
                running.draft.redo([piece])
            running.session.finish(running.draft)
        for session in touched.values():
            self._refresh(session)
        self._count_death(e, at, late)

    def _count_death(self, e: WorkerDied, at: Running | None, late: bool) -> None:
        """The breaker: deaths that pile up while no row of the stream is finished end the stream; those from outside hardly count."""
        streams = [self.streams[at.job.stream]] if at else [s for s in self.streams.values() if s.sessions] if e.boot else []
        for stream in streams:
            stream.lost(e.own or late or bool(e.boot), e.cause + (f" at sample {e.seen.key!r}" if e.seen.key else ""), e.boot or e.stack)
            if stream.deaths >= self.breaker * max(1, len(stream.sessions)):  # each may have met the same sample at the same time
                self._break(stream, "StreamFailed", stream.obituary())

    # what events have in common

    def _end_job(self, number: int) -> Running:
        running = self.jobs.pop(number)
        running.session.rings[running.job.segment].wrote(running.job.slot, number)
        return running

    def _break(self, stream: Stream, error: str, text: str) -> None:
        if stream.broken:
            return
        stream.broken = (error, text)
        self._out.append(StreamBroken(stream.rules.name, error, text))
        for number in sorted(stream.sessions):
            self._fail(self.sessions[number], error, text)
            self._refresh(self.sessions[number])

    def _fail(self, session: Session, error: str, text: str) -> None:
        session.end(text)
        session.failure = session.failure or Failure(session.session, error, text[: 64 << 10])
        self._out.append(Tell(session.session, session.failure))

    def _note(self, session: Session, fault: str) -> None:
        if session.note_s is not None and self._now_s - session.note_s < NOTE_S:
            session.notes_left_out += 1
            return
        more = f" ({session.notes_left_out} more like it left out)" if session.notes_left_out else ""
        session.note_s, session.notes_left_out = self._now_s, 0
        self._out.append(Note("warning", f"session {session.session} told of {fault}: ignored{more}"))

    def _refresh(self, session: Session) -> None:
        """After anything that touched a session: claim, announce, drop, and its place in the queue."""
        if not self.draining:
            if session.outgrown:
                self._grow(session)
            if session.unplaced:
                session.fill()
        if session.unsaid and not session.ended:
            self._out += [_tell(session.session, message) for message in session.announce(self._now_s)]
        if session.gone or len(session.rings) > 1:
            self._out += [Drop(session.session, segment) for segment in session.spent()]
            if session.gone and not session.rings:
                self.leaving.pop(session.session, None)
        self.queue.put(session)

    def _dispatch(self) -> None:
        """Hand out pieces: the session with the fewest batches ahead first, idle workers first."""
        while self.pool.room and not self.draining:
            first = self.queue.peek()
            if first is None:
                return
            session, item = first
            urgent = item.k == session.taken
            worker = self.pool.pick(second=not urgent)
            if worker is None:
                return
            self._job_count += 1
            stream = self.streams[session.stream]
            job = item.draft.hand_out(self._job_count, stream.parts(item.draft.slice.rows, self.pool.seats, session.prefetch, urgent))
            self.jobs[job.job] = Running(job, worker, session, item.draft, item.draft.attempt)
            session.rings[job.segment].writers[job.slot].add(job.job)
            self.pool.give(worker, job.job, self._now_s)
            self._out.append(_send(worker, job))
            self.queue.served(session)

    def invariants(self) -> None:
        """Raises AssertionError where the state contradicts itself; the tests ask after every event."""
        checks.check(self)
