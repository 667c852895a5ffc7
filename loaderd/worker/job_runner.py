"""Jobs: making rows and putting them into a slot. Nothing else in a worker writes slot memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from loaderd.core.jobs import BadRow, Done, Job, JobKind, Replaced, Stage
from loaderd.data.errors import SampleFault
from loaderd.data.pipeline.collate import arrays_of, check_like
from loaderd.engine.scoreboard import StatusWriter
from loaderd.worker.sample_runner import SampleRunner
from loaderd.worker.seeding import seed_batch
from loaderd.worker.segments import MappedSegment, MappedSlot
from loaderd.worker.stage_timer import Stopwatch
from loaderd.worker.streams import DataChanged, OpenStreams, WorkerStream
from loaderd_wire.packing import packed
from loaderd_wire.slots import align

MOVED = -1  # in place of a row's index
# bytes of a row that are copied in less time than it takes to say so: they belong to the stage
# before
QUICK = 4096


class JobResult:
    """What a job came to, before the clock is read."""

    def __init__(self, rows: SampleRunner | None = None, written: int = 0) -> None:
        self.bad: tuple[BadRow, ...] = tuple(rows.bad) if rows else ()
        self.replaced: tuple[Replaced, ...] = tuple(rows.replaced) if rows else ()
        self.offset = 0
        self.size = 0
        self.needs_tail = 0
        self.needs_body = 0
        self.absent = len(rows.absent) if rows else 0
        self.bytes = written


class JobRunner:
    """Runs jobs, one at a time.

    `mapped`: the worker's segments by number, kept by its main loop.
    """

    def __init__(
        self, open_streams: OpenStreams, mapped: Mapping[int, MappedSegment], line: StatusWriter
    ) -> None:
        self._open_streams = open_streams
        self._mapped = mapped
        self._line = line

    def run(self, job: Job) -> Done:
        """Do the job.

        The data is looked at before and after: what was read while it changed is not delivered.

        The stamp stays on the last row: whoever sends the answer clears it, so that user code which
        has damaged the process in such a way that no answer can be sent is found out.

        Raises whatever opening the stream raises, KeyError for an unknown stream or segment.
        """
        watch = Stopwatch()
        self._line.name(job.first, "")
        self._line.stamp(job.job, job.first, Stage.OPEN)
        outcome = JobResult()
        try:
            stream = self._open_streams.get(job.stream)
            watch = Stopwatch()  # to open it is the worker's work, and not this job's
            changed = stream.changed()
            if not changed:
                outcome = self._do(job, stream, watch)
                changed = stream.changed()
        except DataChanged as error:
            changed = str(error)
        if changed:
            outcome = JobResult()
        seconds = watch.seconds()
        return Done(
            job.job,
            outcome.bad,
            outcome.replaced,
            outcome.offset,
            outcome.size,
            *seconds,
            needs_tail=outcome.needs_tail,
            needs_body=outcome.needs_body,
            changed=changed,
            absent=outcome.absent,
            bytes=outcome.bytes,
        )

    def _do(self, job: Job, stream: WorkerStream, watch: Stopwatch) -> JobResult:
        if job.kind == JobKind.TRIAL:
            return self._trial(job, stream, watch)
        mapped = self._mapped[job.segment]
        if job.rows > mapped.layout.rows or not 0 <= job.first < job.last <= job.rows:
            raise ValueError(f"{job} does not fit slots of {mapped.layout.rows} rows")
        slot = mapped.slot(job.slot)
        if job.kind == JobKind.FILL:
            return self._fill(job, stream, watch, slot)
        if job.kind == JobKind.BATCH:
            return self._batch(job, stream, watch, slot)
        if job.kind == JobKind.COMPACT:
            return self._compact(job, stream, watch, slot)
        raise ValueError(f"{job} is of no kind that this worker knows")

    def _trial(self, job: Job, stream: WorkerStream, watch: Stopwatch) -> JobResult:
        rows = SampleRunner(stream, job, self._line, watch)
        for _ in rows.each():
            pass
        return JobResult(rows)

    def _fill(
        self, job: Job, stream: WorkerStream, watch: Stopwatch, slot: MappedSlot
    ) -> JobResult:
        rows = SampleRunner(stream, job, self._line, watch)
        arrays = slot.arrays()
        if len(arrays) == len(slot.fields) and rows.copied(
            {field.name: array[job.first : job.last] for field, array in arrays}
        ):
            slot.indices()[job.first : job.last] = rows.indices
            return JobResult(rows, (job.last - job.first) * slot.row_bytes)
        texts: dict[str, list[Any]] = {
            field.name: [] for field in slot.fields if field.kind != "array"
        }
        there: list[int] = []
        columns = {field.name: array for field, array in arrays}
        rows.into(columns)
        told = sum(array[0].nbytes for array in columns.values()) > QUICK
        for row, sample in rows.each(frozenset(job.lost)):
            if sample is None:
                continue
            if told:
                rows.note(Stage.WRITE)
            out = rows.out
            for name, array in columns.items():
                value = sample[name]
                if not out or value is not out.get(name):
                    array[row] = value
            for name, values in texts.items():
                values.append(_plain(sample[name]))
            there.append(row)
        slot.indices()[job.first : job.last] = rows.indices
        outcome = JobResult(rows, len(there) * slot.row_bytes)
        return _with_chunk(outcome, _variable(stream, rows, there, texts), job, slot)

    def _batch(
        self, job: Job, stream: WorkerStream, watch: Stopwatch, slot: MappedSlot
    ) -> JobResult:
        rows = SampleRunner(stream, job, self._line, watch)
        made = {row: each for row, each in rows.each(frozenset(job.lost)) if each is not None}
        batch: dict[str, Any] | None = None
        for last in (False, True):
            if not made or rows.given_up:
                return JobResult(rows)
            try:
                samples = list(made.values())
                batch = collate(stream, samples, job.seed, job.epoch, job.start, rows.note_all)
                break
            except SampleFault as fault:
                unlike = {} if last else _unlike(stream, made, fault)
                if not unlike:
                    rows.ledger(job.first, fault)
                    return JobResult(rows)
                # the others anew: the function may have written into them
                again = {row: rows.make(row, unlike.get(row)) for row in made}
                made = {row: each for row, each in again.items() if each is not None}
        assert batch is not None
        there = list(made)
        rows.note_all(Stage.WRITE)
        names = {field.name for field in slot.fields}
        chosen = {name: value for name, value in batch.items() if name in names}
        outcome = JobResult(rows)
        needed = body_bytes(chosen)
        if needed > slot.layout.body_bytes:
            outcome.needs_body = needed
            return outcome
        slot.indices()[: len(there)] = rows.indices[[row - job.first for row in there]]
        described: dict[str, Any] = {}
        at = slot.layout.body_offset
        for name, value in chosen.items():
            entries: list[Any] = []
            for array in arrays_of(value):
                slot.array(array.dtype.str, array.shape, at)[...] = array
                outcome.bytes += array.nbytes
                entries.append([array.dtype.str, list(array.shape), at])
                at += align(array.nbytes)
            if entries:
                described[name] = entries[0] if isinstance(value, np.ndarray) else entries
        texts = {
            name: [_plain(text) for text in value]
            for name, value in chosen.items()
            if name not in described
        }
        return _with_chunk(
            outcome, {"arrays": described} | _variable(stream, rows, there, texts), job, slot
        )

    def _compact(
        self, job: Job, stream: WorkerStream, watch: Stopwatch, slot: MappedSlot
    ) -> JobResult:
        """Move the surviving rows up over the lost ones."""
        watch.enter(Stage.COMPACT)
        self._line.stamp(job.job, job.first, Stage.COMPACT)
        positions = np.arange(job.start, job.start + job.rows, dtype=np.int64)
        order = stream.spans(job.epoch_samples, job.rows).order
        lost = set(job.lost)
        kept = [row for row in range(job.rows) if row not in lost]
        move_up(slot, job, order.indices(job.seed, job.epoch, positions)[kept])
        return JobResult()


def move_up(slot: MappedSlot, job: Job, indices: np.ndarray) -> None:
    """Move the surviving rows up over the lost ones, row by row in order.

    A row that has moved out leaves -1 in place of its index, so whoever does the job again after a
    death in the middle sees how far it had come; what is still to move has not been overwritten.
    The last survivor moves last, and its place lies behind those that are kept: once it says so,
    the indices alone are written. Only places of survivors are looked at: what lies in that of a
    lost row is of an earlier batch.

    Args:
        slot: The slot.
        job: Says which rows are lost.
        indices: The dataset indices of the surviving rows, in order.
    """
    lost = set(job.lost)
    kept = [row for row in range(job.rows) if row not in lost]
    there = slot.indices()
    arrays = [array for _, array in slot.arrays()]
    if kept and there[kept[-1]] != MOVED:
        for to, row in enumerate(kept):
            if to != row and there[row] == indices[to]:
                for array in arrays:
                    array[to] = array[row]
                there[row] = MOVED
    there[: len(kept)] = indices


def collate(
    stream: WorkerStream,
    samples: list[Any],
    seed: int,
    epoch: int,
    position: int,
    note: Callable[[Stage], None],
) -> dict[str, Any]:
    """The stream's own collate over these samples, seeded by the batch's first position.

    Its fields are those of the stream's first batch. Raises SampleFault.
    """
    note(Stage.COLLATE)
    seed_batch(seed, epoch, position)
    try:
        batch = stream.sample_pipeline.batcher.make(samples, seed, epoch, position)
        if stream.batch_specs:
            check_like(stream.sample_pipeline.batcher.specs(batch), stream.batch_specs)
        return batch
    except SampleFault:
        raise
    except BaseException as error:  # noqa: BLE001 - see SampleRunner
        raise SampleFault.of("collate", error) from None


def _unlike(
    stream: WorkerStream, made: Mapping[int, Any], fault: SampleFault
) -> dict[int, SampleFault]:
    """The rows whose samples are of another make than the stream's first one, and what is wrong.

    They are looked for where a batch could not be collated; none if all are so.
    """
    found = {row: stream.sample_pipeline.unlike(each) for row, each in made.items()}
    texts = {row: text for row, text in found.items() if text}
    if len(texts) == len(made):
        return {}
    why = f"; collate failed with it: {fault.error}: {fault.message}"
    return {row: SampleFault("check", "BadValue", text + why) for row, text in texts.items()}


def body_bytes(batch: Mapping[str, Any]) -> int:
    """What the arrays of a collated batch take in a slot."""
    return sum(align(array.nbytes) for value in batch.values() for array in arrays_of(value))


def _variable(
    stream: WorkerStream, rows: SampleRunner, there: list[int], texts: Mapping[str, list[Any]]
) -> dict[str, Any]:
    """The parts of a chunk that have no fixed size, for the rows that are there, in order."""
    parts: dict[str, Any] = {}
    if stream.source.keys == "stored":
        parts["keys"] = [rows.key(row) for row in there]
    if texts:
        parts["text"] = dict(texts)
    return parts


def _with_chunk(outcome: JobResult, parts: dict[str, Any], job: Job, slot: MappedSlot) -> JobResult:
    """Write the chunk into the part of the tail that is the job's own.

    Where it is too large for that, say how much a row would need.
    """
    if not parts:
        return outcome
    data = pack(parts)
    offset, capacity = slot.layout.tail_of(job.first, job.last)
    if len(data) > capacity:
        outcome.needs_tail = -(-len(data) // (job.last - job.first))
        return outcome
    slot.write(offset, data)
    outcome.offset, outcome.size = offset, len(data)
    outcome.bytes += len(data)
    return outcome


def pack(parts: Mapping[str, Any]) -> bytes:
    """A chunk as it lies in the tail. Text may have any code points, lone surrogates too."""
    return packed(parts, "surrogatepass")


def _plain(value: Any) -> str | bytes:
    return value if isinstance(value, str) else bytes(value)
