"""What follows when a worker answers, dies, or has not moved for too long."""

from __future__ import annotations

from loaderd.core import rescheduling
from loaderd.core.actions import CannotBoot, LogLine, Quarantine
from loaderd.core.assignment import JobAssigner
from loaderd.core.deadlines import Deadlines
from loaderd.core.events import WorkerDied, WorkerDone, WorkerObservation, WorkerPoll
from loaderd.core.fault_attribution import FaultAttribution
from loaderd.core.fault_ledger import JobDeath
from loaderd.core.jobs import Done, Job, JobKind, Stage, candidate_of, same, unstamp
from loaderd.core.pool_worker import PoolWorker, WorkerState
from loaderd.core.slot_owner import SlotOwner
from loaderd.core.state import RunningJob, SchedulerState

WAY_ON = (
    "to read the new data, end all sessions of this stream and make a new Loader, or drain "
    "the daemon and start it again"
)
CODE_WAY_ON = (
    "to use the new code, run `loaderd drain` (or end the training) and start again; "
    "the training continues from its saved state"
)

MAKES_ROWS = (JobKind.FILL, JobKind.BATCH)


class WorkerSupervisor:
    """Turns the events of workers into changes of the state.

    Attributes:
        deadlines: Decides which worker has run out of time.
        worker_memory: Bytes of anonymous memory above which a worker is replaced. 0: no limit.
    """

    def __init__(
        self,
        state: SchedulerState,
        assigner: JobAssigner,
        deadlines: Deadlines,
        attribution: FaultAttribution,
        worker_memory: int,
    ) -> None:
        self.deadlines = deadlines
        self.worker_memory = worker_memory
        self._state = state
        self._assigner = assigner
        self._attribution = attribution

    @property
    def _max_deaths(self) -> int:
        """Deaths of workers without a finished row between them that end a stream."""
        return max(10, 5 * self._state.pool.size)

    def done(self, e: WorkerDone) -> None:
        """A worker has answered a job.

        Raises:
            ValueError: The worker does not have this job.
        """
        state, done = self._state, e.done
        retire = state.pool.answered(e.worker, done.job)
        running = self._assigner.end_job(done.job)
        stream, job = state.streams[running.job.stream], running.job
        changed = (
            f"{e.other_code}; {CODE_WAY_ON}"
            if e.other_code
            else f"{done.changed}; {WAY_ON}"
            if done.changed
            else ""
        )
        delivered = not (changed or done.needs_tail or done.needs_body)
        share = self._measure(e.worker, job, done.seconds if delivered else None)
        if changed:
            # A job of a session that has left may be older than the stream, which was opened again.
            if not running.owner.gone:
                self._assigner.break_stream(stream, "StreamChangedError", changed)
        elif done.needs_tail or done.needs_body:
            if running.wanted:
                _outgrown(running, done)
        else:
            stream.answered(job, done, share)
            running.owner.answered(running.job, done)
            state.usage.done_s += done.seconds
            state.usage.jobs += 1
            if state.pool.workers[e.worker].remote:
                state.usage.remote_bytes += done.bytes
            if running.wanted:
                self._finished(running, done)
        # While the batch waits for its other jobs, nothing has changed for the session.
        if not (running.wanted and running.build.running):
            self._assigner.refresh(running.owner)
        if retire:
            state.actions.append(retire)

    def _measure(self, worker: int, job: Job, own_s: float | None) -> float:
        """Learn how quick a worker is. Returns how much its job tells of usual ones."""
        pool, stream = self._state.pool, self._state.streams[job.stream]
        tells = own_s is not None and job.kind in MAKES_ROWS
        work_s = stream.work_s(job.last - job.first) if tells else None
        pool.measured(worker, work_s, own_s or 0.0, self._state.now_s)
        return pool.workers[worker].pace.share

    def look(self, e: WorkerPoll) -> None:
        """The workers have been looked at: check deadlines, memory, and jobs that wait in vain."""
        state = self._state
        actions, stuck = self.deadlines.look(state.pool, e.seen, state.now_s)
        state.actions += actions
        for w in stuck:
            self._give_up(w)
        for seen in e.seen:
            w = state.pool.workers.get(seen.worker)
            if w is not None:
                self._look_at(w, seen)

    def died(self, e: WorkerDied) -> None:
        """A worker is dead: replace it, run its rows again, and find the sample that killed it.

        Raises:
            ValueError: There is no such worker.
        """
        state = self._state
        w, start = state.pool.died(e.worker, e.cause, e.boot)
        if start:
            state.actions.append(start)
            if not w.given_back:  # else the pool has grown again since
                state.restarts[_kind_of_death(w, e)] += 1
        if e.boot and not w.remote:
            state.actions.append(
                LogLine(
                    "error",
                    "worker_not_started",
                    f"worker {e.worker} could not start: {e.cause}\n{e.boot}",
                    {"worker": e.worker},
                )
            )
            if not state.pool.ever_ready:
                state.actions.append(CannotBoot(e.boot))
        number, _, _ = unstamp(e.seen.word)
        late = w.killed_s is not None and bool(w.late)
        touched: dict[int, SlotOwner] = {}
        at: RunningJob | None = None
        for job in w.jobs:
            running = self._assigner.end_job(job)
            touched[id(running.owner)] = running.owner
            at = running if at is None or job == number else at
            if running.wanted:
                self._run_again(running, w, e)
        for owner in touched.values():
            self._assigner.refresh(owner)
        if not w.remote:  # whatever befalls other hosts, the stream goes on here
            self._count_death(e, at, late)

    def fill_seats(self) -> None:
        """Start workers on other hosts, and say what has become of them."""
        pool = self._state.pool
        self._state.actions += pool.start_remote()
        if news := pool.remote.news(pool.size, self._state.now_s):
            level, text = news
            self._state.actions.append(LogLine(level, "remote_workers", text))

    def _finished(self, running: RunningJob, done: Done) -> None:
        job, build = running.job, running.build
        if done.bad and job.kind in MAKES_ROWS:
            known = build.ledger.bad_rows
            self._state.actions += [
                Quarantine(job.stream, job.epoch, bad.sample, bad.picture)
                for bad in done.bad
                if bad.row not in known
            ]
        build.absorb(done.job, done)
        running.owner.finish(build, self._state.now_s)

    def _look_at(self, w: PoolWorker, seen: WorkerObservation) -> None:
        state = self._state
        if (running := rescheduling.find_stranded(state, w)) is not None:
            running.build.rescued = True
            running.owner.restart(running.build)
            self._assigner.refresh(running.owner)
        if rescheduling.abandoned(state, w, state.now_s):
            state.actions.append(
                self.deadlines.kill(
                    state.pool,
                    w,
                    state.now_s,
                    "it is stopped by a signal (T), and no session waits for it",
                )
            )
        w.anon_bytes = seen.anon_bytes or w.anon_bytes
        if 0 < self.worker_memory < seen.anon_bytes and w.life is WorkerState.UP:
            text = (
                f"worker {w.worker} has {seen.anon_bytes} bytes of memory, over worker_memory "
                f"= {self.worker_memory}: it is replaced"
            )
            facts = {"worker": w.worker, "bytes": seen.anon_bytes}
            state.actions.append(LogLine("warning", "worker_memory", text, facts))
            retire = state.pool.retire(w.worker)
            state.actions += [retire] if retire else []

    def _give_up(self, w: PoolWorker) -> None:
        """A worker does not die after its kill.

        Another one is started in its place. The slots that it may still write stay out of use until
        it is dead; their batches are made again in other slots.
        """
        state = self._state
        state.actions.append(
            LogLine(
                "error",
                "worker_unkillable",
                f"worker {w.worker} cannot be killed: its slots stay reserved until it exits",
                {"worker": w.worker},
            )
        )
        start = state.pool.stuck(w.worker)
        if start:
            state.actions.append(start)
            state.restarts["hung"] += 1
        at, row, stage = w.stamp
        for number in w.jobs:
            running = state.jobs[number]
            if not running.wanted:
                continue
            if number == at and stage is not Stage.IDLE and w.late:  # else it has gone on since
                piece = running.build.running[number]
                death = JobDeath(
                    row, stage, own=False, hung=True, cause=w.late, candidate=candidate_of(w.word)
                )
                lines = self._attribution.mark_bad(
                    running.build, running.job, piece, death, w.key, ""
                )
                state.actions += lines
                running.build.apart = not lines
            running.owner.restart(running.build)
            self._assigner.refresh(running.owner)

    def _run_again(self, running: RunningJob, w: PoolWorker, e: WorkerDied) -> None:
        """Put the rows of a dead worker's job back into their batch."""
        number, row, stage = unstamp(e.seen.word)
        build, job = running.build, running.job
        piece = build.running.pop(job.job)
        if job.job == number and stage is not Stage.IDLE:
            killed = w.killed_s is not None
            hung = killed and bool(w.late) and same(e.seen.word, w.word)
            death = JobDeath(
                row,
                stage,
                e.own and not killed,
                hung,
                w.late if hung else e.cause,
                candidate_of(e.seen.word),
            )
            lines = self._attribution.record_death(build, job, piece, death, e.seen.key, e.stack)
            self._state.actions += lines
            # The two deaths that show that a sample is bad count as one.
            self._state.streams[job.stream].deaths -= 0 if hung else len(lines)
        else:
            build.redo([piece])
        running.owner.finish(build, self._state.now_s)

    def _count_death(self, e: WorkerDied, at: RunningJob | None, late: bool) -> None:
        """End a stream whose workers die again and again while none of its rows is finished.

        A worker that was killed from outside counts for little.
        """
        streams = self._state.streams
        hit = (
            [streams[at.job.stream]]
            if at
            else [s for s in streams.values() if s.sessions]
            if e.boot
            else []
        )
        for stream in hit:
            stream.lost(
                e.own or late or bool(e.boot),
                e.cause + (f" at sample {e.seen.key!r}" if e.seen.key else ""),
                e.boot or e.stack,
            )
            # All sessions may have met the same sample at the same time. The deaths that one has
            # met count on when it has left.
            if stream.deaths >= self._max_deaths * max(1, stream.most_sessions):
                self._assigner.break_stream(stream, "StreamFailedError", stream.failure_text())


def _kind_of_death(w: PoolWorker, e: WorkerDied) -> str:
    """One of CAUSES."""
    if w.killed_s is not None:
        return "hung" if w.late else "stopped"
    if w.life is WorkerState.STARTING:
        return "start"
    if w.life is WorkerState.RETIRING:
        return "memory"
    return "crash" if e.own else "killed"


def _outgrown(running: RunningJob, done: Done) -> None:
    """A slot was too small for the job's rows: the batch is made again in a larger one."""
    owner, build = running.owner, running.build
    had = owner.slots.tables[running.job.segment].segment
    if done.needs_tail:
        build.needs_tail = max(done.needs_tail, had.tail_row_bytes + 1)
    if done.needs_body:
        build.needs_body = max(done.needs_body, had.body_bytes + 1)
    owner.slots.outgrown = True
    owner.restart(build)
