"""Tar shards as webdataset writes them: files with one name up to the first dot are one sample.

Shards are gone through once, header by header, and where each file lies goes to a `Spool`. Then
samples are read in any order. Nothing is unpacked: whatever a name in a tar says, it is just a
name. Links and devices are no files.
"""

from __future__ import annotations

import json
import os
import re
import tarfile
from collections.abc import Iterator
from functools import partial
from typing import IO, Any

import msgpack

from loaderd.data.errors import SampleFault, SourceError
from loaderd.data.packing.fields import chosen, sample_of
from loaderd.data.packing.files import IMAGE_ENDINGS, MAX_FILE, fingerprint_of, source_files
from loaderd.data.packing.source import PackItem, SourceOptions, shown
from loaderd.data.packing.spool import Spool
from loaderd.data.sample import BadValue, Sample
from loaderd.data.values.numpy_files import read_npy, read_npz
from loaderd.data.values.pickles import unpickle
from loaderd_wire.packing import packed

MAX_HEADER = 1 << 20  # bytes that a tar's header may make us read at once
MAX_FILES = 4096  # of one sample
# The sample's name is all up to the first dot behind the last slash, as webdataset has it.
NAME = re.compile(r"((?:.*/)?[^.]+)\.([^/]*)", re.DOTALL)
META = re.compile(r"__[^/]*__($|/)")  # webdataset's own remarks
IMAGES = frozenset(IMAGE_ENDINGS)
NUMBERS = frozenset(["cls", "cls2", "class", "count", "index", "inx", "id"])
TEXTS = frozenset(["txt", "text", "transcript"])
PICKLES = frozenset(["pyd", "pkl", "pickle"])
TABLES = frozenset(["json", "jsn", "npy", "npz", "mp", "msg", "msgpack"])
CALLED = {"cls": "label", **dict.fromkeys(IMAGES, "image")}
COMPRESSED = {b"\x1f\x8b": "gunzip", b"BZ": "bunzip2", b"\xfd7": "unxz", b"\x28\xb5": "zstd -d"}
Part = tuple[bytes, int, int]  # a file of a sample: ending, where its bytes begin, how many


class _Headers:
    """A tar as `tarfile` reads its headers: no length in them makes it take much memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek = file.seek
        self.tell = file.tell

    def read(self, size: int) -> bytes:
        if not 0 <= size <= MAX_HEADER:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        return self._file.read(size)


def members(path: str) -> Iterator[tarfile.TarInfo]:
    """The members of a tar in their order, none of them kept.

    Raises SourceError that says behind which member it is damaged.
    """
    behind = "at its beginning"
    try:
        with open(path, "rb") as file:
            magic = file.read(2)
            if magic in COMPRESSED:
                raise SourceError(
                    "it is compressed, so that its files cannot be found in it: unpack the shard "
                    f"first, with {COMPRESSED[magic]}"
                )
            file.seek(0)
            end = os.fstat(file.fileno()).st_size
            headers: Any = _Headers(file)
            with tarfile.open(fileobj=headers, mode="r:", encoding="utf-8") as tar:
                last = -1
                while (member := tar.next()) is not None:
                    tar.members = []  # pyright: ignore[reportAttributeAccessIssue] - else it keeps them
                    if member.offset <= last or member.size < 0:
                        raise tarfile.ReadError("its members go round in a circle")
                    if member.isreg() and member.offset_data + member.size > end:
                        raise tarfile.ReadError("it is truncated")
                    last, behind = member.offset, f"behind {member.name!r}"
                    yield member
                _check_end(file, last if last < 0 else tar.offset)
    except SourceError:
        raise
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror or error}") from None
    except Exception as error:  # noqa: BLE001 - tarfile raises many kinds for damaged headers: ReadError, ValueError, RecursionError, ...
        raise SourceError(f"damaged {behind}: {str(error) or type(error).__name__}") from None


def _check_end(file: IO[bytes], offset: int) -> None:
    """Raises ReadError unless the block there is one of zeros.

    tarfile takes a damaged header, or the end of the file, for the tar's own end.
    """
    if offset < 0:
        return
    file.seek(offset)
    block = file.read(tarfile.BLOCKSIZE)
    if any(block) or not block:
        raise tarfile.ReadError("a damaged header" if block else "it is truncated")


class WebDatasetSource:
    """Shards as a source.

    Fields: an image is `image`, the number in .cls is `label`; other files are called by their
    ending, as "seg" for .seg.png, "txt", "json.width".
    """

    kind = "webdataset"
    named = True
    form = "dict"
    classes = ()

    def __init__(self, pattern: str, spool_folder: str, said: SourceOptions) -> None:
        """Go through all shards.

        Args:
            pattern: Shards: a file, a glob, or a folder.
            spool_folder: Where temporary files go.
            said: Which fields.

        Raises:
            SourceError: There are no shards, or no samples in them.
            WriteFault: The temporary files cannot be written.
        """
        self._shards = source_files(
            [pattern, *said.more], (".tar",), "tar shards, such as 'shards/*.tar'"
        )
        self._fields = said.fields
        self.fingerprint = fingerprint_of(self._shards, said.fields)
        self.unreadable: list[tuple[str, str]] = []
        self._skipped: dict[str, tuple[int, str]] = {}
        self._spool = Spool(spool_folder)
        try:
            for number, path in enumerate(self._shards):
                self._index(number, path)
                said.looking(number + 1, len(self._shards))
            self._spool.seal()
            self.total = len(self._spool)
            if not self.total:
                why = f": {self.unreadable[0][1]}" if self.unreadable else ""
                raise SourceError(f"{pattern}: has no samples{why}")
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> WebDatasetSource:
        return self

    def __exit__(self, *exc: object) -> None:
        self._spool.close()

    @property
    def notes(self) -> list[str]:
        """A line for each kind of entry that was ignored, with an example."""
        return [
            f"{count:,} {'entries' if count > 1 else 'entry'} ignored, {what}: such as {example}"
            for what, (count, example) in self._skipped.items()
        ]

    def _index(self, number: int, path: str) -> None:
        """Spool the samples of a shard: neighbours of one name."""
        key, parts = "", []
        try:
            for member in members(path):
                found = self._part(member)
                if found is None:
                    continue
                if found[0] != key and parts:
                    self._keep(number, key, parts)
                    parts = []
                key = found[0]
                ending = found[1].encode("utf-8", "surrogateescape")
                parts.append((ending, member.offset_data, member.size))
                if len(parts) > MAX_FILES:
                    raise SourceError(f"sample {key!r} has more than {MAX_FILES:,} files")
        except SourceError as error:
            lost = f"; its last sample, {key!r}, may lack files and is left out" if parts else ""
            self.unreadable.append((os.path.basename(path), f"{error}{lost}"))
        else:
            if parts:
                self._keep(number, key, parts)

    def _part(self, member: tarfile.TarInfo) -> tuple[str, str] | None:
        """(name of the sample, ending) of a member; None for one that belongs to none."""
        if member.isdir() or META.search(member.name):
            return None
        what = ""
        if not member.isreg():
            what = "links and devices, not files"
        elif member.issparse() or member.type == tarfile.GNUTYPE_SPARSE:
            what = "sparse files"
        match = NAME.fullmatch(member.name)
        if not what and match is None:
            what = "without an ending"
        if what or match is None:
            count, example = self._skipped.get(what, (0, member.name))
            self._skipped[what] = (count + 1, example)
            return None
        return match[1], match[2].lower()

    def _keep(self, shard: int, key: str, parts: list[Part]) -> None:
        self._spool.append(packed([shard, key.encode("utf-8", "surrogateescape"), parts]))

    def item(self, index: int) -> PackItem:
        """Named by its key: what the names of its files have in common."""
        shard, key, parts = msgpack.unpackb(self._spool[index], use_list=False)
        return PackItem(key, partial(self._read, self._shards[shard], parts))

    def _read(self, path: str, parts: tuple[Part, ...]) -> Sample:
        values: dict[str, Any] = {}
        images: list[str] = []
        several = sum(shown(ending) in IMAGES for ending, *_ in parts) > 1
        with open(path, "rb", buffering=0) as file:
            for ending, begin, size in parts:
                field, last = field_of(shown(ending), several)
                if not self._wanted(field):
                    continue
                if field in values:
                    raise BadValue(f"two of its files would be the field {field!r}")
                values[field] = _read_part(file, last, begin, size, field)
                if last in IMAGES:
                    images.append(field)
        return chosen(sample_of(values, images), self._fields)

    def _wanted(self, field: str) -> bool:
        return not self._fields or any(
            f"{one}.".startswith(f"{field}.") or field.startswith(f"{one}.") for one in self._fields
        )


def field_of(ending: str, several: bool = False) -> tuple[str, str]:
    """(the field that a file with this ending is, the last part of the ending).

    several: the sample has images of several endings, which are called by these.
    """
    first, _, last = ending.rpartition(".")
    if several and ending in IMAGES:
        return ending, last
    known = last in IMAGES | NUMBERS | TEXTS | PICKLES | TABLES
    return (first if first and known else CALLED.get(ending, ending)), last


def _read_part(file: IO[bytes], last: str, begin: int, size: int, field: str) -> Any:
    """A file of a sample, decoded. Raises BadValue that names the field."""
    if size > MAX_FILE:
        raise BadValue(f"field {field!r} has {size:,} bytes, more than {MAX_FILE:,}")
    data = os.pread(file.fileno(), size, begin)
    if len(data) != size:
        raise BadValue(f"field {field!r}: its shard has become shorter")
    try:
        return value_of(last, data)
    except Exception as error:  # noqa: BLE001 - of bytes that are not what their name says, readers raise anything
        raise BadValue(f"field {field!r}: {SampleFault.of('read', error).message}") from None


def value_of(last: str, data: bytes) -> Any:
    """What webdataset makes of a file of this ending. Pickles are interpreted, not run.

    Raises any Exception.
    """
    if last in NUMBERS:
        return int(data)
    if last in TEXTS:
        return data.decode()
    if last in ("json", "jsn"):
        return json.loads(data)
    if last == "npy":
        return read_npy(data)
    if last == "npz":
        return read_npz(data)
    if last in PICKLES:
        return unpickle(data)
    return msgpack.unpackb(data) if last in TABLES else data
