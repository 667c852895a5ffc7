"""Where a stream's samples come from, opened: an LMDB with its layout, or a user's dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from loaderd.config.stream import StreamConfig
from loaderd.data import class_names
from loaderd.data.errors import SourceError
from loaderd.data.labels import LabelMap
from loaderd.data.lmdb.bulk_rows import RowCopier
from loaderd.data.sample import Sample
from loaderd.data.selection.selection import ALL, SampleSelection
from loaderd.data.sources.database import OpenDatabase
from loaderd.data.sources.dataset import DatasetSource
from loaderd.data.sources.layouts import KeyedReader, OwnLayout
from loaderd.data.sources.parts import PartsReader
from loaderd_wire.slots import FieldSpec


class Source:
    """The samples of one stream.

    Open it after the fork, in the process that reads. Close it, or use it as a context manager.

    Attributes:
        plan: The stream's settings.
        total: Number of samples.
        identity: Names the content, never path or time.
        layout: "loaderd", the name of another project's layout, or the user's class.
        codec: How the values of another project's database are coded, "" if that is not known.
        values: A hash over some of the stored values, or of what a dataset holds; "" where
            `identity` has all of them, or where a dataset holds nothing that can be looked at.
        keys: "index" if a sample's name is its index, "stored" if it has one of its own.
        classes: Names of the labels, () if unknown.
        warnings: Lines to show.
        parts: The path of each of several databases, () for one, or a dataset.
        firsts: Of each of them but the first one the place of its first sample.
        many: `fetch` is there.
        selection: Which samples the stream uses, as whoever opened it has found or was told.
        user_code: Somebody else's code reads or parses.
        sources: Those of a mixture, which this is not.
    """

    sources: Sequence[Source] = ()

    def __init__(self, plan: StreamConfig) -> None:
        """Open what a stream reads.

        Raises:
            SourceError: It cannot be opened; the text names path and reason.
        """
        if [plan.lmdb is not None, plan.dataset is not None, bool(plan.parts)].count(True) != 1:
            raise SourceError(f"stream {plan.name}: set one of lmdb, parts and dataset")
        self.plan = plan
        self._closed = False
        self._modes = plan.modes()
        self._data: OpenDatabase | PartsReader | DatasetSource
        self._reader: OwnLayout | KeyedReader | PartsReader | DatasetSource
        if plan.lmdb is not None:
            self._data = OpenDatabase(plan)
            self._reader = self._data.reader
        else:
            self._data = self._reader = PartsReader(plan) if plan.parts else DatasetSource(plan)
        self.warnings = self._data.warnings
        self.total = self._reader.total
        self.identity = self._reader.identity
        self.layout = self._reader.name
        self.codec = self._data.codec
        self.keys = "stored" if self._reader.stored_names else "index"
        self.classes = self._reader.classes
        self._labels: LabelMap | None = None
        if plan.classes is not None:
            try:
                given = class_names.of_path(plan.classes)
                self._labels = LabelMap(self.classes, given, plan.data_name, plan.classes)
            except BaseException:
                self.close()
                raise
            self.classes = given
        self.user_code = self._reader.user_code
        # What `pack` stored as identity is a hash over all values. Of others' databases a part is
        # looked at.
        self.selection: SampleSelection = ALL
        self.values = self._data.values
        self.parts = self._data.names if isinstance(self._data, PartsReader) else ()
        self.firsts = tuple(self._data.firsts[1:-1]) if isinstance(self._data, PartsReader) else ()
        self.many = isinstance(self._reader, DatasetSource) and self._reader.many

    @property
    def form(self) -> str:
        """ "dict" or "tuple"; "" for a dataset until a first sample was read."""
        return self._reader.form

    @property
    def dataset(self) -> Any:
        """The user's dataset object, or None for an LMDB."""
        return self._reader.inner if isinstance(self._reader, DatasetSource) else None

    def awaits(self, epoch: int) -> bool:
        """Whether `tell` is to be called before samples of this epoch are read."""
        return isinstance(self._reader, DatasetSource) and self._reader.awaits(epoch)

    def tell(self, epoch: int) -> None:
        """Tell the dataset the epoch of the samples to come. Raises whatever it raises."""
        assert isinstance(self._reader, DatasetSource)
        self._reader.tell(epoch)

    @property
    def targets(self) -> list[int] | None:
        """The labels of a dataset that lists them as torchvision's do; None for others."""
        listed: Any = getattr(self.dataset, "targets", None)
        if hasattr(listed, "tolist"):
            listed = listed.tolist()
        good = isinstance(listed, list) and len(listed) == self.total
        return listed if good and all(type(label) is int for label in listed) else None

    @property
    def state(self) -> str:
        """What of the file must stay as it is, as text for `expect` in another process.

        "" for a dataset.
        """
        return self._data.state

    def expect(self, state: str) -> str:
        """Compare the file from now on with what it was in another process.

        Args:
            state: `state` of the Source there.

        Returns:
            What is not as it was there; "" if nothing.
        """
        return self._data.expect(state) if state else ""

    def key(self, index: int) -> str:
        """The sample's name: what `pack` stored, else the LMDB key as text or hex, else the index.

        Raises:
            IndexError: There is no such sample.
            Exception: What reading raises.
        """
        self._check(index)
        return self._reader.key(index)

    def label(self, index: int) -> str:
        """The sample's name for messages: `key`."""
        return self.key(index)

    def read(self, index: int) -> Sample:
        """A sample as it is stored. Views are valid while this is open.

        Raises:
            IndexError: There is no such sample.
            Exception: What the data or the user's code raises.
        """
        self._check(index)
        sample = self._reader.read(index, self._modes)
        return sample if self._labels is None else self._labels.map(sample)

    @property
    def value(self) -> Callable[[int], Any]:
        """A function from an index to what the user's code makes of that sample, not yet looked at.

        It becomes a sample by `take`. Only where `user_code`.
        """
        assert not isinstance(self._reader, OwnLayout)
        return self._reader.value

    @property
    def relabels(self) -> bool:
        """Whether labels are mapped, so that samples are not as they are stored."""
        return self._labels is not None

    def bulk(self, specs: tuple[FieldSpec, ...]) -> RowCopier | None:
        """What copies rows of some fields in bulk, valid while this is open.

        Args:
            specs: The fields of every sample.

        Returns:
            The reader; None where samples are not stored as such rows, or have names.
        """
        return self._data.bulk(specs, self.plan.nonfinite == "error")

    def fetch(self, indices: Sequence[int]) -> list[Any]:
        """The dataset's own values for some indices at once; each becomes a sample by `take`.

        Only where `many`.
        """
        assert isinstance(self._reader, DatasetSource)
        for index in indices:
            self._check(index)
        return self._reader.fetch(indices)

    def take(self, value: Any) -> Sample:
        """A value of the user's code as a sample."""
        assert not isinstance(self._reader, OwnLayout)
        sample = self._reader.take(value, self._modes)
        return sample if self._labels is None else self._labels.map(sample)

    def part(self, index: int) -> str:
        """The path of the database that a sample comes from; "" where there are not several."""
        return self._data.part(index) if isinstance(self._data, PartsReader) else ""

    def _check(self, index: int) -> None:
        if not 0 <= index < self.total:
            raise IndexError(f"sample {index} of {self.total}")

    def changed(self) -> str:
        """Look whether the data is what was opened.

        Returns:
            What changed, old and new, with the path; "" if nothing, and always for a dataset.
        """
        return self._data.changed()

    def notes(self) -> list[str]:
        """Lines to be told, each once: what has changed and does no harm."""
        return self._data.told()

    def close(self) -> None:
        """Let it go; nothing that `read` returned may be touched after that. Idempotent."""
        if not self._closed:
            self._closed = True
            self._data.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
