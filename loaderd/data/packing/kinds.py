"""The kinds of sources that `pack` takes: one table, which imports none of them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # the command line is parsed by this table, and would wait for numpy
    from loaderd.data.packing.source import OpenSource, SourceOptions

EVERY = frozenset(["split", "shuffle", "shard"])  # options of all kinds
ARRAYS = EVERY | {"workers"}
IMAGES = ARRAYS | {"random_access", "resize", "quality"}

OPTIONS = (*sorted(IMAGES), "args", "classes", "classes_from", "fields")


class PackKind(NamedTuple):
    """A kind of source.

    Attributes:
        src: What SRC is, for people.
        opener: "module:Class" below this package, called as Class(src, spool_folder, said); "" for
            a dataset of the user's.
        takes: Options that go with it.
        many: SRC may be several files.
    """

    src: str
    opener: str
    takes: frozenset[str]
    many: bool = False


def _kind(src: str, opener: str, *more: str) -> PackKind:
    return PackKind(src, opener, IMAGES.union(more))


def _many(src: str, opener: str, *more: str, without: str = "") -> PackKind:
    return PackKind(src, opener, IMAGES.union(more) - {without}, many=True)


TABLE = ("fields", "args", "classes", "classes_from")
KINDS = {
    "imagefolder": PackKind(
        "a folder of images, one subfolder for each class",
        "folder_source:ImageFolderSource",
        IMAGES | {"classes", "classes_from"},
    ),
    "dataset": PackKind("pkg.module:Class, a map-style dataset", "", EVERY | {"args"}),
    "webdataset": _many("tar shards, as shards/*.tar", "webdataset:WebDatasetSource", "fields"),
    "parquet": _many(  # whose rows are only read in their order
        "files, as data/*.parquet", "parquet:ParquetSource", "fields", without="shuffle"
    ),
    "csv": _kind("a table with a column of paths", "csv_table:CsvSource", *TABLE),
    "jsonl": _kind("a file with a JSON object a line", "json_lines:JsonLinesSource", *TABLE),
    "npy": PackKind(
        ".npy or .npz files", "array_files:ArrayFilesSource", ARRAYS | {"fields", "args"}, many=True
    ),
    "mnist": PackKind("its files, or their folder", "mnist:MnistSource", ARRAYS),
    "cifar": PackKind("its files, or their folder", "cifar:CifarSource", ARRAYS),
    "coco": PackKind(  # whose boxes would not follow
        "its annotations (JSON)", "coco:CocoSource", IMAGES - {"resize"} | {"fields", "args"}
    ),
    "lmdb": _many("other databases", "database:DatabaseSource", "fields", "args"),
}


def opened(kind: str, src: str, said: SourceOptions) -> OpenSource:
    """What opens a source of this kind, which is not "dataset"."""
    module, _, name = KINDS[kind].opener.partition(":")
    source = getattr(importlib.import_module(f"loaderd.data.packing.{module}"), name)
    return lambda spool_folder: source(src, spool_folder, said)


def that_take(option: str) -> list[str]:
    """The kinds that an option goes with."""
    return [name for name, kind in KINDS.items() if option in kind.takes]
