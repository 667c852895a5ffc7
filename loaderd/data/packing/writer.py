"""Packing: samples from somewhere into a database of loaderd's own layout.

The target appears whole or not at all: everything is written to `<target>.part` beside it and
renamed at the end. After a kill -9 the same call goes on behind the last transaction; what comes
out is the same, key by key and byte by byte, as without the kill.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from loaderd.data.errors import SampleFault, SourceError, writing
from loaderd.data.lmdb import record_format
from loaderd.data.lmdb.file_facts import is_sound
from loaderd.data.lmdb.writer import DamagedPart, Writer
from loaderd.data.packing.fields import Described, fitted
from loaderd.data.packing.pack_state import PackState, stored_bytes
from loaderd.data.packing.part_file import claimed, finish
from loaderd.data.sample import Sample

BATCH_BYTES = 16 << 20
BATCH_SAMPLES = 2_000
BATCH_S = 5.0  # of work that a broken-off run may lose
MAX_VALUE = (1 << 32) - 1  # LMDB's own limit, bytes

OnProgress = Callable[[int, int], None]  # (looked at, of how many)
OnBad = Callable[[str, str], None]  # (name, reason)


@dataclass(frozen=True, slots=True)
class PackReport:
    """What was packed.

    Attributes:
        path: Of the database.
        samples: In it.
        identity: Of their content.
        bytes: Of the file.
        classes: Names of the labels, by number.
        bad: (name, reason) of the first LISTED ones left out.
        bad_count: How many were left out in all.
        resumed_at: Samples looked at by an earlier run that was broken off; 0: none.
        restarted: There was one, of another source, and it was thrown away.
        tally: What became of how many, in words.
        notes: Further lines for the user.
        files: How many databases.
    """

    path: str
    samples: int
    identity: str
    bytes: int
    classes: tuple[str, ...]
    bad: tuple[tuple[str, str], ...]
    bad_count: int
    resumed_at: int
    restarted: bool
    tally: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    files: int = 1


class PackedSample(NamedTuple):
    """A sample to be stored.

    Attributes:
        sample: It.
        remark: What became of it, for the report's tally; "": nothing worth telling.
    """

    sample: Sample
    remark: str = ""


class Samples(Protocol):
    """What is to be packed.

    Attributes:
        total: How many.
        fingerprint: Of the source; a broken-off pack of another one is not gone on with.
        kind: As in DatabaseMeta.
        named: They have names.
        classes: Names of the labels, by number.
    """

    total: int
    fingerprint: str
    kind: str
    named: bool
    classes: tuple[str, ...]

    @property
    def form(self) -> str:
        """ "dict" or "tuple"; asked for after each sample."""
        ...

    def each(self, start: int) -> Generator[tuple[bytes, Callable[[], PackedSample]]]:
        """From number `start` on: a name, and what makes the sample or raises SampleFault.

        It is closed when no more are wanted.
        """
        ...


class NothingGood(SourceError):
    """Not one sample can be packed."""


class UnlikeSample(SourceError):
    """A sample has other fields than the first one, so that no stream could stack them."""


class PackRun:
    """One pack at work: what is read but not yet written, and how far it has come."""

    def __init__(
        self,
        samples: Samples,
        writer: Writer,
        on_progress: OnProgress,
        on_bad: OnBad,
        begin: PackState | None = None,
        most_bytes: int = 0,
    ) -> None:
        """begin: where it begins if no earlier run has got anywhere.

        most_bytes: of the samples together, unless it is a single one; 0: any number.
        """
        begin = begin or PackState(samples.fingerprint)
        self._most_bytes = most_bytes
        self._samples = samples
        self._writer = writer
        self._on_progress = on_progress
        self._on_bad = on_bad
        self._batch: list[tuple[bytes, bytes]] = []
        self._bytes = 0
        self._flushed_s = time.monotonic()
        kept = writer.get(record_format.PART_KEY)
        self.began = kept is not None  # an earlier run got as far as to keep something
        self.state = (PackState.from_bytes(kept) if kept else None) or PackState("")
        self.fresh = self.state.fingerprint != begin.fingerprint
        if self.fresh:
            self.state = begin
        self.resumed_at = 0 if self.fresh else self.state.seen

    def go(self) -> None:
        """Pack the rest of the samples, or as many as `most_bytes` allows. Raises SourceError."""
        self._on_progress(self.state.seen, self._samples.total)
        with closing(self._samples.each(self.state.seen)) as samples:
            for name, make in samples:
                if not self._take(name, make):
                    break
                self._on_progress(self.state.seen, self._samples.total)
                if (
                    self._bytes >= BATCH_BYTES
                    or len(self._batch) >= BATCH_SAMPLES
                    or time.monotonic() - self._flushed_s >= BATCH_S
                ):
                    self._flush()
        self._flush()

    def _take(self, name: bytes, make: Callable[[], PackedSample]) -> bool:
        """Add a sample, or leave it out as a bad one; False if there is no room for it."""
        try:
            sample, remark = make()
            if self.state.fields and self._samples.kind != "dataset":
                sample, more = fitted(sample, self.state.fields)
                remark = remark or more
            value = record_format.pack_sample(sample, name if self._samples.named else b"")
            if len(value) > MAX_VALUE:
                raise ValueError(
                    f"it has {len(value):,} bytes, more than the {MAX_VALUE:,} that a database "
                    "takes for a sample"
                )
        except Exception as error:  # noqa: BLE001 - decoders may raise anything; it is one sample that is at stake
            shown = name.decode("utf-8", "backslashreplace")
            reason = _reason(error)
            self.state = self.state.with_bad(shown, reason)
            self._on_bad(shown, reason)
            return True
        if not self._has_room(value):
            return False
        if self._samples.kind == "dataset" and self.state.fields:
            self._check_like(name, _described(sample))
        self._batch.append((record_format.sample_key(self.state.count), value))
        self._bytes += len(value)
        self.state = self.state.with_sample(
            value, self._samples.form, lambda: _described(sample)
        ).with_remark(remark)
        return True

    def _has_room(self, value: bytes) -> bool:
        """A database has at least one sample, whatever its size."""
        bytes_then = self.state.bytes + stored_bytes(value)
        return not self._most_bytes or not self.state.count or bytes_then <= self._most_bytes

    def _check_like(self, name: bytes, found: tuple[Described, ...]) -> None:
        """Raises UnlikeSample that names the first field that differs from the first sample's.

        Shapes may differ.
        """
        first, this = (
            {field: _kind(kind, dtype) for field, kind, dtype, _ in fields}
            for fields in (self.state.fields, found)
        )
        if first == this:
            return
        odd = next(field for field in [*this, *first] if first.get(field) != this.get(field))
        raise UnlikeSample(
            f"sample {name.decode()}: field {odd!r} is {this.get(odd, 'missing')}, in the first "
            f"sample it is {first.get(odd, 'missing')}: "
            "no stream could stack them. Return each list of numbers as one array, with equal "
            'names and dtypes in all samples; or serve the dataset itself, with dataset = "..." '
            "and a collate function"
        )

    def _flush(self) -> None:
        self._writer.put([(record_format.PART_KEY, self.state.to_bytes())], self._batch)
        self._batch, self._bytes, self._flushed_s = [], 0, time.monotonic()

    def finish(self) -> record_format.DatabaseMeta:
        """Write the metadata record, which makes it a database. Raises NothingGood, WriteFault."""
        meta = meta_of(self._samples, self.state)
        write_meta(self._writer, meta)
        return meta


def meta_of(samples: Samples, state: PackState) -> record_format.DatabaseMeta:
    """What is known of a database in which all is that was to be packed. Raises NothingGood."""
    if state.count == 0:
        name, reason = state.bad[0] if state.bad else ("", "there are none")
        raise NothingGood(
            f"not one of {samples.total} samples can be read; the first, {name}: {reason}"
        )
    return record_format.DatabaseMeta(
        state.count,
        state.chain.hex(),
        state.form,
        samples.kind,
        samples.named,
        samples.classes,
        state.fields,
    )


def write_meta(writer: Writer, meta: record_format.DatabaseMeta) -> None:
    """Make it a database. Raises WriteFault."""
    record = record_format.pack_meta(meta)
    writer.put([(record_format.META_KEY, record)], [], without=record_format.PART_KEY)


def _reason(error: Exception) -> str:
    """Why a sample is left out.

    ValueErrors are our own or a decoder's, and say it in words; of others the class is half of what
    they say.
    """
    if isinstance(error, MemoryError):
        return "there is not enough memory for it (MemoryError)"
    fault = error if isinstance(error, SampleFault) else SampleFault.of("read", error)
    return (
        fault.message
        if isinstance(error, (SampleFault, ValueError))
        else f"{fault.error}: {fault.message}"
    )


def _kind(kind: int, dtype: str) -> str:
    """What a stream would take a field for."""
    if kind <= record_format.FieldKind.PICTURE:
        return f"an array of {np.dtype(dtype)}"
    return "text" if kind == record_format.FieldKind.TEXT else "bytes"


def _described(sample: Sample) -> tuple[Described, ...]:
    parts = [record_format.part_of(name, value, sample)[0] for name, value in sample.items()]
    return tuple((part.name, int(part.kind), part.dtype, part.shape) for part in parts)


def pack(samples: Samples, target: str, on_progress: OnProgress, on_bad: OnBad) -> PackReport:
    """Pack all of them into `target`, a file that must not exist.

    Raises SourceError in one line; what was done is kept for the next call.
    """
    check_classes(samples, target)
    with claimed(target) as part:
        run, writer, restarted = opened_run(
            part, lambda writer: PackRun(samples, writer, on_progress, on_bad)
        )
        try:
            run.go()
            meta = run.finish()
        except (NothingGood, UnlikeSample) as error:
            with suppress(OSError):
                os.unlink(part)
            raise SourceError(f"{target}: {error}") from None
        finally:
            writer.close()
        size = finish(part, target)
        state = run.state
        return PackReport(
            target,
            meta.count,
            meta.identity,
            size,
            meta.classes,
            state.bad,
            state.bad_count,
            run.resumed_at,
            restarted,
            state.tally,
        )


def check_classes(samples: Samples, target: str) -> None:
    """Raises SourceError for more classes than a database takes."""
    if len(samples.classes) > record_format.MAX_CLASSES:
        raise SourceError(
            f"{target}: {len(samples.classes):,} classes; a database takes "
            f"{record_format.MAX_CLASSES:,}"
        )


def opened_run(part: str, make: Callable[[Writer], PackRun]) -> tuple[PackRun, Writer, bool]:
    """Begin a pack, or go on with one that was broken off.

    Returns:
        (the run, its writer, whether an older part was thrown away: it was damaged, or of another
        source).
    """
    restarted = False
    while True:
        with writing(part):
            empty = os.path.getsize(part) == 0
        try:
            if not empty and not is_sound(part):
                raise DamagedPart(part)
            with ExitStack() as stack:
                writer = stack.enter_context(closing(Writer(part)))
                run = make(writer)
                if empty or not run.fresh:
                    stack.pop_all()
                    return run, writer, restarted
                restarted = restarted or run.began
        except DamagedPart:
            restarted = True
        with writing(part):
            os.truncate(part, 0)
