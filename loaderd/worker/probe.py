"""What a stream is: found out in a worker, by opening it and making its first samples."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from loaderd.config.stream import StreamConfig
from loaderd.core.jobs import Job, JobKind, Stage
from loaderd.data.errors import SampleFault, SourceError, user_traceback
from loaderd.data.pipeline.collate import arrays_of
from loaderd.data.pipeline.label_notes import label_notes
from loaderd.data.sources.dataset_values import of_samples
from loaderd.data.sources.mixture import MixtureSource
from loaderd.data.sources.source import Source
from loaderd.data.stream_order import once, stream_order
from loaderd.engine.messages import OpenError, StreamInfo
from loaderd.engine.scoreboard import StatusWriter
from loaderd.system.modules import Imported
from loaderd.worker import mixtures
from loaderd.worker.job_runner import body_bytes, collate, pack
from loaderd.worker.sample_runner import SampleRunner
from loaderd.worker.seeding import seed_sample
from loaderd.worker.stage_timer import Stopwatch
from loaderd.worker.staging import explained, staged
from loaderd.worker.streams import OpenStreams, WorkerStream
from loaderd_wire.plain_text import plain
from loaderd_wire.slots import TAIL_ROW_BYTES, FieldSpec, align

ROWS = 1 << 20  # numbers of rows that a stamp can hold
TRIES = 16  # samples that may be bad before the stream is
GOOD = 4  # samples that are looked at
MEASURED = 64  # samples whose names are measured; of TRIES of them the texts as well


def probe_staged(
    open_streams: OpenStreams, line: StatusWriter, plan: StreamConfig, imported: Imported
) -> StreamInfo | OpenError:
    """Copy the databases of a stream, if its config says so, then open it and try it."""
    notes: list[str] = []
    try:
        copied = staged(plan, line, notes.append)
    except SourceError as error:
        line.idle()
        return OpenError(plan.name, "data", plain(str(error)), "")
    open_streams.plan(copied)
    found = probe(plan.name, open_streams, line, copied, imported)
    if copied is plan:
        return found
    if isinstance(found, OpenError):
        return replace(found, text=explained(copied, found.text))
    return replace(found, plan=copied.to_json(), warnings=(*map(plain, notes), *found.warnings))


def probe(
    name: str, open_streams: OpenStreams, line: StatusWriter, plan: StreamConfig, imported: Imported
) -> StreamInfo | OpenError:
    """Open stream `name` and try it.

    Everything that the data or user code raises becomes an OpenError.
    """
    line.stamp(0, 0, Stage.OPEN)
    try:
        # each stamp differs from the last one: that is what shows that it goes on
        turns = itertools.count()
        stream = open_streams.get(name, lambda _: line.stamp(0, next(turns) % ROWS, Stage.OPEN))
        return _facts(stream, line, imported)
    except SourceError as error:
        kind = "user code" if error.traceback else "data"
        return OpenError(name, kind, plain(str(error)), plain(error.traceback))
    except _NoGoodSample as error:
        return OpenError(name, error.kind, plain(str(error)), plain(error.traceback))
    except ValueError as error:  # Order: a split that is bad or empty
        return OpenError(name, "data", plain(f"{plan.data_name}: {error}"), "")
    except BaseException as error:  # noqa: BLE001 - user code that is built here may raise anything
        text = f"{plan.data_name} cannot be opened: {type(error).__name__}: {error}"
        return OpenError(name, "user code", plain(text), plain(user_traceback(error)))
    finally:
        line.idle()


class _NoGoodSample(Exception):
    def __init__(self, text: str, kind: str, traceback: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.traceback = traceback


def _facts(stream: WorkerStream, line: StatusWriter, imported: Imported) -> StreamInfo:
    if stream.plan.sources:
        return _mixed_facts(stream, line, imported)
    specs, good = _good_samples(stream, line)
    return _info(stream, line, imported, specs, _tail_row_bytes(stream, specs, good))


def _mixed_facts(stream: WorkerStream, line: StatusWriter, imported: Imported) -> StreamInfo:
    """What a mixture is, as its sources are."""
    found: list[StreamInfo] = []
    for part in stream.parts():
        specs, good = _good_samples(part, line)
        tail = _tail_row_bytes(part, specs, good)
        found.append(_info(part, line, imported, specs, tail, batches=False))
    mixtures.check_alike(stream.plan, found)
    specs = found[0].sample_specs
    stream.sample_pipeline.fix(specs)
    tail = max(info.tail_row_bytes for info in found)
    return replace(_info(stream, line, imported, specs, tail), sources=tuple(found))


def _info(
    stream: WorkerStream,
    line: StatusWriter,
    imported: Imported,
    specs: tuple[FieldSpec, ...],
    tail: int,
    *,
    batches: bool = True,
) -> StreamInfo:
    """What a stream is, with these fields and so many bytes of tail a row.

    Args:
        stream: The stream.
        line: The worker's line of the status board.
        imported: What users' code has been imported.
        specs: The fields of its samples.
        tail: Bytes of tail of each row, as far as samples need them.
        batches: A batch of a collated stream is made, too. Else the facts are those of samples.
    """
    source, plan, body = stream.source, stream.plan, 0
    batch_specs = specs
    if stream.sample_pipeline.collated and batches:
        batch, body = _collated(stream, line)
        batch_specs = stream.sample_pipeline.batcher.specs(batch)
        arrays = {
            name: [[array.dtype.str, list(array.shape), 1 << 40] for array in arrays_of(value)]
            for name, value in batch.items()
        }
        texts = {name: value for name, value in batch.items() if not arrays[name]}
        tail += 2 * len(pack({"arrays": arrays, "text": {name: [] for name in texts}}))
        tail += (
            max(
                (
                    sum(len(value) + 9 for value in values) // max(1, len(values))
                    for values in texts.values()
                ),
                default=0,
            )
            * 2
            * len(texts)
        )
    imported.look()
    return StreamInfo(
        stream=plan.name,
        total=source.total,
        samples=_samples(plan, source),
        identity=source.identity,
        state=source.state,
        layout=source.layout,
        keys=source.keys,
        classes=tuple(source.classes),
        specs=batch_specs,
        sample_specs=specs,
        form=stream.sample_pipeline.form,
        collated=stream.sample_pipeline.collated,
        tail_row_bytes=align(tail, 8),
        body_bytes=body,
        jpeg_extension=stream.sample_pipeline.jpeg_extension,
        warnings=tuple(
            map(plain, (*source.warnings, *source.selection.notes, *_label_notes(stream)))
        ),
        parts=source.parts,
        firsts=source.firsts,
        values=source.values or _values_of_samples(stream, line),
        code=imported.all() if stream.sample_pipeline.user_code else (),
        selection=source.selection,
    )


def _values_of_samples(stream: WorkerStream, line: StatusWriter) -> str:
    """A hash over the first samples of a dataset that holds nothing to be looked at otherwise.

    They have been made before: none of them kills the worker.
    """
    source = stream.source
    if not isinstance(source, Source) or source.dataset is None or stream.plan.survey is not None:
        return ""
    indices = stream.first_indices(GOOD).tolist()

    def make(seed: int, index: int) -> Any:
        # each making has the time of a sample: its stamp differs from the one before it
        row = indices.index(index)
        line.name(row, source.key(index))
        line.stamp(0, row, Stage.READ, 1 + seed)
        seed_sample(seed, 0, index)
        return source.value(index)

    return of_samples(make, indices)


def _samples(plan: StreamConfig, source: Source | MixtureSource) -> int:
    """Samples of an epoch, or of a pass where steps make the epochs."""
    passes = bool(plan.epoch_steps or plan.bucket_by)
    return stream_order(once(plan) if passes else plan, source).samples


def _label_notes(stream: WorkerStream) -> list[str]:
    if not isinstance(stream.source, Source):
        return []  # its sources have theirs
    return list(label_notes(stream.plan, stream.source, stream.first_indices(TRIES).tolist()))


def rows_of(stream: WorkerStream, line: StatusWriter, first: int, last: int) -> SampleRunner:
    """Rows of the split as stored, without policy: a bad one is None and reported in `bad`."""
    job = Job(0, JobKind.TRIAL, stream.plan.name, 0, 0, stream.plan.seed, 0, 0, last, first, last)
    rows = SampleRunner(stream, job, line, Stopwatch(), policy="skip")
    rows.indices = stream.first_indices(last)[first:]
    return rows


def _good_samples(
    stream: WorkerStream, line: StatusWriter
) -> tuple[tuple[FieldSpec, ...], list[Any]]:
    """What the first good one of the split's first TRIES samples fixes, and GOOD samples that fit.

    Raises _NoGoodSample without any.
    """
    count = len(stream.first_indices(TRIES))
    rows = rows_of(stream, line, 0, count)
    good: list[Any] = []
    undecided: list[Any] = []
    for row in range(count):
        sample = rows.make(row)
        if sample is None:
            continue
        if not good and stream.sample_pipeline.undecided(sample):
            undecided.append(sample)
            continue
        if not good:
            try:
                stream.sample_pipeline.fix(stream.sample_pipeline.specs(sample))
            except SampleFault as fault:
                rows.ledger(row, fault)
                continue
        good.append(sample)
        if len(good) == GOOD:
            break
    if not good and undecided:
        stream.sample_pipeline.fix(stream.sample_pipeline.specs(undecided[0]))
        good = undecided[:1]
    if good:
        assert stream.sample_pipeline.schema is not None
        return stream.sample_pipeline.schema.specs, good
    first = rows.bad[0].sample
    kind = "user code" if first.traceback else "data"
    raise _NoGoodSample(
        f"{stream.plan.data_name}: not one of its first {count} samples can be made: "
        f"{first.line()}",
        kind,
        first.traceback,
    )


def _tail_row_bytes(stream: WorkerStream, specs: tuple[FieldSpec, ...], good: list[Any]) -> int:
    """Bytes of tail for each row, so that a chunk of any number of rows fits.

    Names and texts have half as much again for longer ones.
    """
    texts = [spec.name for spec in specs if spec.kind != "array"]
    stored = stream.source.keys == "stored"
    if not texts and not stored:
        return 0
    size = 0
    if stored:
        indices = stream.first_indices(MEASURED).tolist()
        size += (
            max(
                len(stream.source.key(index).encode("utf-8", "backslashreplace"))
                for index in indices
            )
            + 5
        )
    if texts and not stream.sample_pipeline.collated:
        size += max(sum(_text_bytes(sample[name]) + 5 for name in texts) for sample in good)
    frame = len(pack({"keys": [], "text": {name: [] for name in texts}}))
    return max(TAIL_ROW_BYTES, size * 3 // 2 + frame)


def _text_bytes(value: Any) -> int:
    return (
        len(value.encode("utf-8", "backslashreplace"))
        if isinstance(value, str)
        else len(bytes(value))
    )


def _collated(stream: WorkerStream, line: StatusWriter) -> tuple[dict[str, Any], int]:
    """A batch of the split's first samples, and room for the arrays of one.

    The room is in bytes, for a batch of the stream's size.
    """
    want = len(stream.first_indices(stream.plan.batch_size))
    rows = rows_of(stream, line, 0, want)
    samples = [sample for row in range(want) if (sample := rows.make(row)) is not None]
    if not samples:
        raise _NoGoodSample(
            f"{stream.plan.data_name}: not one of its first {want} samples can be made", "data", ""
        )
    try:
        batch = collate(stream, samples, stream.plan.seed, 0, 0, rows.note_all)
    except SampleFault as fault:
        text = (
            f"collate {stream.plan.collate!r} failed on its first {len(samples)} samples: "
            f"{fault.error}: {fault.message}"
        )
        raise _NoGoodSample(text, "user code", fault.traceback) from None
    # A batch of the full size, should some of these samples have been bad.
    return batch, align(body_bytes(batch) * 3 * want // (2 * len(samples)))
