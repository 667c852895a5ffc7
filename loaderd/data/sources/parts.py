"""Several databases as one: their samples in the order in which the config names them."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from loaderd.config.stream import DecodeModes, StreamConfig
from loaderd.data.lmdb.bulk_rows import BulkReader, bulk_of
from loaderd.data.lmdb.open_stores import open_stores
from loaderd.data.lmdb.page_reader import Pages
from loaderd.data.sample import Sample
from loaderd.data.sources.database import OpenDatabase
from loaderd.data.sources.layouts import SAMPLED, KeyedReader, OwnLayout
from loaderd.data.sources.part_agreement import Agreement
from loaderd.data.sources.part_paths import facts_hash, part_plans, times_hash, twice
from loaderd_wire.slots import FieldSpec

LOOKED_AT = 1024  # samples of all parts together that stand for the others
LEAST = 4  # of each of them
MOST_NOTES = 20  # lines about parts
RUNS = 4  # stretches of rows of one part, up to which a job is copied stretch by stretch


class PartsReader:
    """The samples of several databases. It looks like the reader of one.

    Attributes:
        name: Of the layouts.
        total: Number of samples.
        identity: Names the content of all of them, in their order.
        values: A hash over values that stand for the others; "" where `identity` has all of them.
        form: "dict" or "tuple".
        classes: Names of the labels, () if unknown.
        stored_names: Samples have names of their own.
        user_code: Somebody else's code reads or parses.
        codec: How the values are coded, "" if that is not known.
        names: The path of each part.
        firsts: Of each part the place of its first sample, and behind them all the total.
        warnings: Lines to show.
    """

    def __init__(self, plan: StreamConfig) -> None:
        """Open them.

        Raises:
            SourceError: One cannot be opened, or they do not go together; the text names it.
        """
        plans = part_plans(plan)
        sampled = min(SAMPLED, max(LEAST, LOOKED_AT // len(plans)))
        kept = len(plans) <= open_stores.room()
        agreement = Agreement(plan)
        self.parts: list[OpenDatabase] = []
        self._touched: set[int] = set()
        self._latest = 0
        try:
            for one in plans:
                part = OpenDatabase(one, kept=kept, sampled=sampled)
                self.parts.append(part)
                agreement.add(part)
        except BaseException:
            self.close()
            raise
        readers = [part.reader for part in self.parts]
        self.names = tuple(part.path for part in self.parts)
        self.firsts = [0, *accumulate(reader.total for reader in readers)]
        self._begins = np.array(self.firsts, np.int64)
        self.total = self.firsts[-1]
        self.name = "+".join(sorted({reader.name for reader in readers}))
        self.codec = "+".join(sorted({part.codec for part in self.parts} - {""}))
        self.form = readers[0].form
        self.classes = next((reader.classes for reader in readers if reader.classes), ())
        self.stored_names = any(reader.stored_names for reader in readers)
        self.user_code = any(reader.user_code for reader in readers)
        self._keyed = any(isinstance(reader, KeyedReader) for reader in readers)
        identities = _hash([reader.identity for reader in readers])
        self.identity = f"{len(readers)} parts:{self.total}:{identities}"
        values = [part.values for part in self.parts]
        self.values = _hash(values) if any(values) else ""
        self.warnings = self._warnings()

    def _warnings(self) -> tuple[str, ...]:
        notes = [note for part in self.parts for note in part.warnings]
        double = twice(self.names)
        if double:
            notes.insert(0, f"{double} is named twice: its samples come twice")
        if len(notes) > MOST_NOTES:
            notes[MOST_NOTES:] = [f"and {len(notes) - MOST_NOTES} more such lines"]
        return tuple(notes)

    # -- samples

    def locate(self, index: int) -> tuple[OpenDatabase, int]:
        """The part that has sample `index`, and its place there."""
        number = bisect_right(self.firsts, index) - 1
        self._touched.add(number)
        self._latest = number
        return self.parts[number], index - self.firsts[number]

    def numbers_of(self, indices: np.ndarray) -> np.ndarray:
        """int64[n], of each sample the number of its part."""
        return np.searchsorted(self._begins, indices, side="right") - 1

    def part(self, index: int) -> str:
        """The path of the database that has this sample."""
        return self.names[bisect_right(self.firsts, index) - 1]

    def read(self, index: int, mode: str | DecodeModes) -> Sample:
        """As the part that has it reads it."""
        part, place = self.locate(index)
        return part.reader.read(place, mode)

    def value(self, index: int) -> Any:
        """What the part's layout makes of this sample, not yet looked at."""
        part, place = self.locate(index)
        reader = part.reader
        return reader.value(place) if isinstance(reader, KeyedReader) else reader.read(place, "")

    def take(self, value: Any, mode: str | DecodeModes) -> Sample:
        """What `value` returned last, as a sample."""
        reader = self.parts[self._latest].reader
        return reader.take(value, mode) if isinstance(reader, KeyedReader) else value

    def key(self, index: int) -> str:
        """The name that its part stored, else the index among all parts."""
        part, place = self.locate(index)
        return part.reader.key(place) if part.reader.stored_names else str(index)

    # -- rows in bulk

    def values_at(self, indices: Sequence[int] | np.ndarray) -> list[memoryview | None]:
        """The stored values of some samples, all of parts in loaderd's own layout.

        Raises:
            SourceError: A page is damaged.
        """
        places = np.asarray(indices, np.int64)
        numbers = self.numbers_of(places)
        found: list[memoryview | None] = [None] * len(places)
        for number in np.unique(numbers).tolist():
            self._touched.add(number)
            rows = np.flatnonzero(numbers == number)
            reader = self.parts[number].reader
            assert isinstance(reader, OwnLayout)
            values = reader.values(places[rows] - self.firsts[number])
            for row, value in zip(rows.tolist(), values, strict=True):
                found[row] = value
        return found

    def bulk(self, specs: tuple[FieldSpec, ...], finite: bool) -> PartsBulk | None:
        """What copies rows of some fields in bulk.

        None where samples are not stored as such rows, or have names.
        """
        if self._keyed or self.stored_names:
            return None
        everywhere = bulk_of(_Scattered(self), specs, finite)
        return PartsBulk(self, everywhere, specs, finite) if everywhere is not None else None

    # -- changes

    def changed(self) -> str:
        """What has changed of the parts that were read since the last call.

        Returns:
            It with the path; "" if nothing.
        """
        touched, self._touched = self._touched, set()
        for number in touched:
            text = self.parts[number].watch.changed()
            if text:
                return text
        return ""

    def told(self) -> list[str]:
        """Lines to be told, each once."""
        told: list[str] = []
        for part in self.parts:
            if part.watch.notes:
                told += part.watch.notes
                part.watch.notes = []
        return told

    @property
    def state(self) -> str:
        """What must stay as it is, as text for `expect` in another process."""
        facts = [part.store.facts for part in self.parts]
        return json.dumps(
            {
                "facts": [facts_hash(one) for one in facts],
                "drawn": [part.watch.drawn[:12] for part in self.parts],
                "times": times_hash(facts),
            }
        )

    def expect(self, state: str) -> str:
        """How the files differ from the `state` of another process; "" if they do not."""
        was, now = json.loads(state), json.loads(self.state)
        if len(was["facts"]) != len(self.parts):
            return f"there were {len(was['facts'])} databases, now there are {len(self.parts)}"
        for what, words in (("facts", "was replaced or written to"), ("drawn", "was overwritten")):
            for part, then, here in zip(self.parts, was[what], now[what], strict=True):
                if then != here:
                    return f"{part.store.file}: {words}"
        return ""

    def close(self) -> None:
        """Let all of them go. Idempotent."""
        parts, self.parts = self.parts, []
        for part in parts:
            part.close()


class _Scattered:
    """Values of any part, one object each."""

    def __init__(self, reader: PartsReader) -> None:
        self._reader = reader

    def values(self, indices: Sequence[int] | np.ndarray) -> list[memoryview | None]:
        return self._reader.values_at(indices)

    def pages(self, row_bytes: int) -> Pages | None:
        return None


class PartsBulk:
    """Copies rows of several databases of loaderd's own: a `BulkReader` for all of them."""

    def __init__(
        self,
        reader: PartsReader,
        everywhere: BulkReader,
        specs: tuple[FieldSpec, ...],
        finite: bool,
    ) -> None:
        self._reader = reader
        self._everywhere = everywhere
        self._specs = specs
        self._finite = finite
        self._of_part: dict[int, BulkReader | None] = {}

    def write(self, indices: np.ndarray, arrays: Mapping[str, np.ndarray]) -> bool:
        """As `BulkReader.write`."""
        numbers = self._reader.numbers_of(indices)
        ends = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(indices)]
        if len(ends) - 1 > RUNS:
            return self._everywhere.write(indices, arrays)
        for begin, end in pairwise(ends):
            bulk = self._bulk(int(numbers[begin]))
            some = {name: array[begin:end] for name, array in arrays.items()}
            places = indices[begin:end] - self._reader.firsts[int(numbers[begin])]
            if bulk is None or not bulk.write(places, some):
                return False
        return True

    def _bulk(self, number: int) -> BulkReader | None:
        """What copies rows of one part."""
        part, _ = self._reader.locate(self._reader.firsts[number])
        if number not in self._of_part:
            assert isinstance(part.reader, OwnLayout)
            self._of_part[number] = bulk_of(part.reader, self._specs, self._finite)
        return self._of_part[number]


def _hash(texts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:32]
