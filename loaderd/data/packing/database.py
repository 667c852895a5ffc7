"""Another LMDB as a source, or several, in any layout that a stream can read."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from loaderd.config.parts import as_parts
from loaderd.config.schema import CONFIG
from loaderd.config.stream import StreamConfig
from loaderd.data.errors import SampleFault, SourceError
from loaderd.data.packing.fields import chosen
from loaderd.data.packing.source import PackItem, SourceOptions
from loaderd.data.sample import Sample
from loaderd.data.sources.source import Source

WORDS = (
    "layout", "layout_args", "key_format", "count", "dtype", "shape", "fields", "index_file",
    "allow_pickle",
)  # fmt: skip


class DatabaseSource:
    """The samples of a database, as a stream reads them."""

    kind = "lmdb"

    def __init__(self, path: str, spool_folder: str, said: SourceOptions) -> None:
        """Open it. Raises SourceError."""
        self._fields = said.fields
        self._source = Source(stream_of([path, *said.more], said.args))
        source = self._source
        self.total = source.total
        self.named = source.keys == "stored"
        self.classes = source.classes
        self.fingerprint = f"{source.identity} {source.values} {' '.join(said.fields)}"
        self.unreadable: tuple[tuple[str, str], ...] = ()
        self.notes = source.warnings

    def __enter__(self) -> DatabaseSource:
        return self

    def __exit__(self, *exc: object) -> None:
        self._source.close()

    @property
    def form(self) -> str:
        """That of the database: "dict" or "tuple"."""
        return self._source.form

    def item(self, index: int) -> PackItem:
        """The database is read by one thread; the rest of the work is done by others."""
        name = b"%d" % index
        try:
            name = self._source.key(index).encode("utf-8", "backslashreplace")
            return PackItem(name, partial(_same, self._taken(index)))
        except Exception as error:  # noqa: BLE001 - a layout of the user's may raise anything
            fault = SampleFault.of("read", error)
            return PackItem(name, partial(_raise, fault))

    def _taken(self, index: int) -> Sample:
        return chosen(self._source.read(index), self._fields)


def _same(sample: Sample) -> Sample:
    """A copy of the outer part: whoever changes it may be asked for it again."""
    made = Sample(sample, encoded=tuple(sample.encoded), images=tuple(sample.images))
    return made


def _raise(error: Exception) -> Sample:
    raise error


def stream_of(paths: list[str], words: Any) -> StreamConfig:
    """The stream that reads the databases as these words of a stream say. Raises SourceError."""
    unknown = [word for word in words if word not in WORDS]
    if unknown:
        raise SourceError(f"--args: unknown word {unknown[0]!r}; there are {', '.join(WORDS)}")
    whole = [os.path.abspath(path) for path in paths]
    lmdb, parts = whole[0], as_parts(tuple(whole) if len(whole) > 1 else whole[0])
    said = {"lmdb": lmdb, **words}
    faults: list[str] = []
    where = "streams.pack."
    values = CONFIG.read(
        {"streams": {"pack": said}},
        lambda place, text: faults.append(f"{place.removeprefix(where)}: {text}"),
    )
    if faults:
        raise SourceError(f"--args: {'; '.join(faults)}")
    table = values["streams"]["pack"]
    read = {word: table[word] for word in WORDS}
    if read["index_file"]:
        read["index_file"] = os.path.abspath(read["index_file"])
    # Samples are not delivered, so that shapes may differ; `pack` compares what has to be alike.
    survey = {"free": (), "collated": False}
    one = None if parts else lmdb
    return StreamConfig("pack", lmdb=one, parts=parts, survey=survey, **read)
