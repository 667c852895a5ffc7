"""Fake worker processes: they run jobs in fake time as the real ones do, and die, hang, stop or
leak as they are told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from loaderd.core.events import Event, WorkerDied, WorkerDone, WorkerObservation, WorkerReady
from loaderd.core.jobs import MAX_SUBSTITUTES, BadRow, Done, Job, JobKind, Replaced, Stage, stamp
from loaderd_wire.errors import BadSample
from simulation.memory import MOVED, TORN, Slot
from simulation.samples import Samples

if TYPE_CHECKING:
    from simulation.world import World

FOREVER = float("inf")
Steps = Generator[float, None, "Done"]


class Process:
    """One worker process. `emit` takes its events to the daemon that started it."""

    def __init__(self, world: World, worker: int, emit: Callable[[Event], None]) -> None:
        self.world = world
        self.worker = worker
        self.slow, self.lag_s = world.pace_chance.choice(world.paces)
        self.alive = True
        self.ready = False
        self.stopped = False  # by SIGSTOP
        self.remote = False  # on another host
        self.immortal = False  # in disk sleep: a kill has no effect until it wakes
        self.doomed: str | None = None  # killed while immortal
        self.own = False
        self.word = 0
        self.key = ""
        self.anon = 1 << 20
        self.mail: deque[Job] = deque()
        self.job: Job | None = None
        self.started = 0
        self._emit = emit
        self._steps: Steps | None = None
        self._frozen = False
        self._asleep = 0  # number of the sleep that is to wake it

    # life and death

    def boot(self) -> None:
        if self.alive:
            self.ready = True
            self._emit(WorkerReady(self.worker))
            self._next()

    def die(self, cause: str, own: bool) -> None:
        """The process is no more; what it wrote stays as it is.

        Its pidfd is readable from now on; the daemon will see it.
        """
        if not self.alive:
            return
        if self.immortal:
            self.doomed = cause
            return
        self.alive = False
        self.world.write(
            "worker {} is dead: {}{}, at {}",
            self.worker,
            cause,
            " (its own doing)" if own else "",
            self.job,
        )
        for job in ([self.job] if self.job else []) + list(self.mail):
            self.world.memory.ended(job)
        self._steps = None
        seen = self.seen(False)
        self.world.after(
            self.world.seeder.uniform(0, 0.3),
            self._emit,
            WorkerDied(self.worker, own, cause, seen, f"stack of {self.worker}", ""),
        )

    def wake_up(self) -> None:
        """The disk answers: what was to kill it does."""
        self.immortal = False
        if self.doomed:
            self.die(self.doomed, False)

    def stop(self, stopped: bool) -> None:
        self.stopped = stopped
        if not stopped and self._frozen:
            self._frozen = False
            self._step(self._asleep)

    def seen(self, paused: bool) -> WorkerObservation:
        return WorkerObservation(
            self.worker, self.word, self.key, paused or self.stopped, self.anon
        )

    # work

    def take(self, job: Job) -> None:
        self.mail.append(job)
        if self.ready and self.job is None:
            self._next()

    def _next(self) -> None:
        if not self.alive or self.job is not None or not self.mail:
            return
        self.job = self.mail.popleft()
        self.started += 1
        self._steps = self._travel(self.job) if self.lag_s else self._run(self.job)
        self._asleep += 1
        self._step(self._asleep)

    def _step(self, sleep: int) -> None:
        if not self.alive or self._steps is None or sleep != self._asleep:
            return
        if self.stopped:
            self._frozen = True
            return
        try:
            duration = next(self._steps)
        except StopIteration as end:
            self._answer(end.value)
            return
        if duration is not FOREVER and self.alive:
            self._asleep += 1
            # rows are moved up where the slot is
            moves = self.job is not None and self.job.kind == JobKind.COMPACT
            self.world.after(duration * (1 if moves else self.slow), self._step, self._asleep)

    def _answer(self, done: Done) -> None:
        assert self.job is not None
        self.word, self.key = 0, ""
        self.world.memory.ended(self.job)
        self.anon += self.world.leak
        self.world.deaths = 0
        self.job = None
        self._emit(WorkerDone(self.worker, done))
        self._next()

    def _travel(self, job: Job) -> Steps:
        """On another host: the job goes there, and its answer comes back."""
        yield self.lag_s / self.slow
        done = yield from self._run(job)
        yield self.lag_s / self.slow
        return done

    def _run(self, job: Job) -> Steps:
        samples = self.world.streams[job.stream]
        self._note(job, job.first, Stage.OPEN, "")
        yield self.world.seeder.uniform(0, 0.004)
        if samples.changed:
            return _done(job, changed=samples.changed)
        rows = Rows(self, samples, job)
        if (
            samples.many
            and job.last - job.first > 1
            and job.kind != JobKind.COMPACT
            and not job.excluded
        ):
            yield from rows.fetch_many()
        slot = self.world.memory.segments[job.segment].slots[job.slot]
        if job.kind == JobKind.FILL:
            return (yield from self._fill(job, samples, rows, slot))
        if job.kind == JobKind.BATCH:
            return (yield from self._batch(job, samples, rows, slot))
        if job.kind == JobKind.COMPACT:
            return (yield from self._compact(job, samples, slot))
        for row in range(job.first, job.last):
            yield from rows.make(row)
        return _done(job, rows)

    def _fill(self, job: Job, samples: Samples, rows: Rows, slot: Slot) -> Steps:
        there: list[int] = []
        for row in range(job.first, job.last):
            if row in job.lost:
                continue
            index = yield from rows.make(row)
            if index is None:
                continue
            rows.note(Stage.WRITE)
            slot.data[row] = TORN
            yield samples.row_s / 4
            slot.data[row] = index
            there.append(row)
        slot.indices[job.first : job.last] = rows.indices
        return self._tail(job, samples, rows, slot, there)

    def _batch(self, job: Job, samples: Samples, rows: Rows, slot: Slot) -> Steps:
        made: list[int] = []
        there: list[int] = []
        for row in range(job.first, job.last):
            if row in job.lost:
                continue
            index = yield from rows.make(row)
            if index is not None:
                made.append(index)
                there.append(row)
        if not made or (rows.bad and samples.on_error == "raise"):
            return _done(job, rows)
        rows.note_all(Stage.COLLATE)
        yield samples.row_s
        sour = next((samples.sour[index] for index in made if index in samples.sour), None)
        if sour == "poison":
            self.die("SIGSEGV", True)
            yield FOREVER
        elif sour == "hang":
            yield FOREVER
        elif sour == "raise":
            rows.lose_all("collate")
            return _done(job, rows)
        rows.note_all(Stage.WRITE)
        needed = sum(samples.bytes_of[index] for index in made)
        if needed > self.world.memory.segments[job.segment].segment.body_bytes:
            return _done(job, needs_body=needed)
        for row, index in enumerate(made):
            slot.data[row] = slot.indices[row] = TORN
            yield samples.row_s / 4
            slot.data[row] = slot.indices[row] = index
        return self._tail(job, samples, rows, slot, there)

    def _compact(self, job: Job, samples: Samples, slot: Slot) -> Steps:
        """As the real one: a row that has moved out leaves a mark, which tells whoever does it
        again how far it had come.
        """
        self._note(job, job.first, Stage.COMPACT, "")
        original = [
            samples.index_of(job.seed, job.epoch, job.start + row) for row in range(job.rows)
        ]
        kept = [row for row in range(job.rows) if row not in job.lost]
        moved_before = bool(kept) and slot.indices[kept[-1]] == MOVED
        for to, row in enumerate(() if moved_before else kept):
            if to != row and slot.indices[row] == original[row]:
                moved = slot.data[row]
                slot.data[to] = TORN
                yield samples.row_s
                slot.data[to] = moved
                yield samples.row_s
                slot.indices[row] = MOVED
        for to, row in enumerate(kept):
            slot.indices[to] = original[row]
            yield 0.001
        return _done(job)

    def _tail(self, job: Job, samples: Samples, rows: Rows, slot: Slot, there: list[int]) -> Done:
        if not samples.stored:
            return _done(job, rows)
        names = [rows.indices[row - job.first] for row in there]
        size = sum(8 if samples.collated else samples.bytes_of[index] for index in names)
        offset, room = self.world.memory.segments[job.segment].tail_of(job.first, job.last)
        if size > room:
            return _done(job, rows, needs_tail=-(-size // (job.last - job.first)))
        slot.tail[offset] = (size, [str(index) for index in names])
        return _done(job, rows, chunk=(offset, size))

    def _note(self, job: Job, row: int, stage: Stage, key: str, candidate: int = 0) -> None:
        self.word, self.key = stamp(job.job, row, stage, candidate), key


class Rows:
    """Makes the rows of one job, by the stream's policy."""

    def __init__(self, process: Process, samples: Samples, job: Job) -> None:
        self._process = process
        self._samples = samples
        self._job = job
        self._row = job.first
        self._key = ""
        self._candidate = 0
        self._condemned = {(each.row, each.candidate) for each in job.excluded}
        self.indices = [
            samples.index_of(job.seed, job.epoch, job.start + row)
            for row in range(job.first, job.last)
        ]
        self.bad: list[BadRow] = []
        self.replaced: list[Replaced] = []
        # seconds that it tells of
        self.pace = samples.row_s * (job.last - job.first) * process.slow

    def note(self, stage: Stage) -> None:
        self._process._note(self._job, self._row, stage, self._key, self._candidate)

    def note_all(self, stage: Stage) -> None:
        self._row, self._key, self._candidate = self._job.first, "", 0
        self.note(stage)

    def fetch_many(self) -> Generator[float, None, None]:
        """All rows read at once: whoever kills or hangs us in there is not known by name."""
        self.note_all(Stage.FETCH_MANY)
        yield self._samples.row_s
        for row in range(self._job.first, self._job.last):
            flaw = self._samples.flaws.get(self.indices[row - self._job.first])
            if flaw and flaw.stage == Stage.READ and flaw.often == 1 and row not in self._job.lost:
                yield from self._suffer(flaw.how)

    def make(self, row: int) -> Generator[float, None, int | None]:
        """The index of the sample that the row is made from; None if there is none."""
        index = self.indices[row - self._job.first]
        fault: Stage | None = None
        if (row, 0) not in self._condemned:
            fault = yield from self._attempt(row, index, 0)
            if fault is None:
                return index
        if self._samples.on_error == "replace":
            for candidate in range(1, MAX_SUBSTITUTES + 1):
                if (row, candidate) in self._condemned:
                    continue
                other = self._samples.candidate(
                    self._job.seed, self._job.epoch, self._job.start + row, candidate
                )
                failed = yield from self._attempt(row, other, candidate)
                if failed is not None:
                    continue
                self.indices[row - self._job.first] = other
                if fault is None:
                    self.replaced.append(Replaced(row, other))
                else:
                    self._report(row, index, fault, False, other)
                return other
        self._report(row, index, fault or Stage.READ, True, None)
        return None

    def lose_all(self, stage: str) -> None:
        for row in range(self._job.first, self._job.last):
            index = self.indices[row - self._job.first]
            self.bad.append(
                BadRow(row, True, BadSample(index, str(index), 0, stage, "ValueError", "sour"))
            )

    def _attempt(
        self, row: int, index: int, candidate: int
    ) -> Generator[float, None, Stage | None]:
        """None, or the stage in which the sample raised."""
        self._row, self._key, self._candidate = row, str(index), candidate
        flaw = self._samples.flaws.get(index)
        seeder = self._process.world.seeder
        for stage in (Stage.READ, Stage.DECODE, Stage.TRANSFORM):
            self.note(stage)
            if flaw and flaw.stage == stage:
                yield seeder.uniform(0, self._samples.row_s)
                if flaw.often == 1 or seeder.random() < flaw.often:
                    yield from self._suffer(flaw.how)
                    return stage
        yield seeder.uniform(0.5, 1.5) * self._samples.row_s
        return None

    def _suffer(self, how: str) -> Generator[float, None, None]:
        if how == "poison":
            self._process.die("SIGSEGV", True)
            yield FOREVER
        elif how == "hang":
            yield FOREVER

    def _report(
        self, row: int, index: int, stage: Stage, lost: bool, substitute: int | None
    ) -> None:
        position = (self._job.start + row) % self._samples.order.samples
        sample = BadSample(
            index, str(index), position, stage.name.lower(), "ValueError", "bad", "", substitute
        )
        self.bad.append(BadRow(row, lost, sample))


def _done(
    job: Job, rows: Rows | None = None, *, chunk: tuple[int, int] = (0, 0), **more: object
) -> Done:
    delivered = rows if not more else None
    bad = tuple(delivered.bad) if delivered else ()
    replaced = tuple(delivered.replaced) if delivered else ()
    pace = (rows.pace if rows else 0.01) / 4
    return Done(job.job, bad, replaced, *chunk, pace, pace, pace, pace, **more)  # type: ignore[arg-type] - needs_tail, needs_body, changed
