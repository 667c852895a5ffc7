"""What can be packed: any source of items, a folder of images, any map-style dataset."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from loaderd.config.stream import StreamConfig
from loaderd.data.errors import SampleFault, SourceError
from loaderd.data.packing.folder_source import ImageFolderSource
from loaderd.data.packing.item_samples import ItemSamples, OnWait
from loaderd.data.packing.library_output import LibraryOutput
from loaderd.data.packing.pack_state import LISTED
from loaderd.data.packing.part_file import absent
from loaderd.data.packing.selection import ALL, Selection
from loaderd.data.packing.shards import ShardedPack
from loaderd.data.packing.source import OpenSource, SourceOptions
from loaderd.data.packing.stored_images import StoredImages, means
from loaderd.data.packing.writer import (
    OnBad,
    OnProgress,
    PackedSample,
    PackReport,
    Samples,
    pack,
)
from loaderd.data.sources.dataset import DatasetSource
from loaderd.system.stderr import CapturedStderr


def _quiet(*args: object) -> None:
    pass


@dataclass(frozen=True, slots=True)
class PackOptions:
    """How a source is packed.

    Attributes:
        verify: Decode each image, and leave out (and report) those that cannot be.
        random_access: Rewrite JPEGs without loss, so that a crop can be decoded without the rest of
            the image; the report's tally counts them, and those that stay as they are with the
            reason. Everything else keeps its bytes, and so does all where nothing is there that
            rewrites.
        resize: Pixels that the shorter side of an image has at most; 0 for any number.
        quality: JPEG quality of what is encoded again; 0: only what is made smaller.
        workers: Threads that do it; 0: one for each core.
        split: Which samples.
        shuffle: Seed of the order that they are stored in; None for the source's own.
        shard_bytes: Of a database at most, of which there are then as many as it takes; 0: one.
    """

    verify: bool = True
    random_access: bool = True
    resize: int = 0
    quality: int = 0
    workers: int = 0
    split: str = ALL
    shuffle: int | None = None
    shard_bytes: int = 0

    def images(self) -> StoredImages:
        """What becomes of the images; nothing is rewritten where nothing is there that can."""
        rewrites = means() if self.random_access else ""
        return StoredImages(self.verify, rewrites, self.resize, self.quality)

    def selection(self, total: int) -> Selection:
        """Which of `total` samples are packed, and in which order."""
        return Selection(total, self.split, self.shuffle)


def _packed(
    samples: Samples, target: str, options: PackOptions, progress: OnProgress, bad: OnBad
) -> PackReport:
    """Into one database, or into shards."""
    if options.shard_bytes:
        return ShardedPack(samples, target, options.shard_bytes, progress, bad).run()
    return pack(samples, target, progress, bad)


def pack_source(
    opened: OpenSource,
    target: str,
    options: PackOptions,
    *,
    progress: OnProgress = _quiet,
    bad: OnBad = _quiet,
    waits: OnWait = _quiet,
) -> PackReport:
    """Pack what a source has into the database `target`.

    Args:
        opened: Opens the source; is given a folder for temporary files.
        target: A file that must not exist.
        options: What becomes of its samples.
        progress: Is told how far it is.
        bad: Is told of each sample that is left out.
        waits: Is told of a sample that takes long.

    Raises:
        SourceError: In one line.
    """
    target = os.path.abspath(target)
    images = options.images()
    with CapturedStderr() as stderr, opened(_place(target)) as source:
        for name, reason in source.unreadable:
            bad(name, reason)
        printed = LibraryOutput(stderr.lines)
        selection = options.selection(source.total)
        samples = ItemSamples(source, selection, images, printed, waits, options.workers)
        report = _packed(samples, target, options, progress, bad)
        return replace(
            report,
            bad=(*source.unreadable, *report.bad)[:LISTED],
            bad_count=report.bad_count + len(source.unreadable),
            notes=(*source.notes, *printed.notes),
        )


def pack_imagefolder(
    folder: str,
    target: str,
    *,
    progress: OnProgress = _quiet,
    bad: OnBad = _quiet,
    verify: bool = True,
    random_access: bool = True,
    classes: tuple[str, ...] | None = None,
    waits: OnWait = _quiet,
) -> PackReport:
    """Pack a folder of images, one subfolder a class as torchvision's ImageFolder has it.

    Or a flat folder without labels.

    classes: names of the labels in their order, None for the names of the subfolders, sorted.
    Otherwise as `pack_source`.
    """
    return pack_source(
        lambda spool_folder: ImageFolderSource(
            folder, spool_folder, SourceOptions(classes=classes)
        ),
        target,
        PackOptions(verify, random_access),
        progress=progress,
        bad=bad,
        waits=waits,
    )


class _Dataset:
    """A user's dataset, sample by sample, as it comes."""

    kind = "dataset"
    named = False

    def __init__(self, source: DatasetSource, mode: str, selection: Selection) -> None:
        self._source = source
        self._mode = mode
        self._selection = selection
        self.total = selection.samples
        words = f" {selection.words}" if selection.words else ""
        self.fingerprint = f"{self.kind} {source.identity} {mode}{words}"
        self.classes = source.classes

    @property
    def form(self) -> str:
        return self._source.form or "dict"

    def each(self, start: int) -> Generator[tuple[bytes, Callable[[], PackedSample]]]:
        for place in range(start, self.total):
            index = self._selection[place]
            yield b"%d" % index, partial(self._make, index)

    def _make(self, index: int) -> PackedSample:
        try:
            return PackedSample(self._source.read(index, self._mode))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - user code may raise anything, of libraries in Rust also what is no Exception
            fault = SampleFault.of("read", error)
            raise SampleFault(
                fault.stage, fault.error, f"{fault.error}: {fault.message}", fault.traceback
            ) from None


def pack_dataset(
    dataset: str,
    args: dict[str, Any],
    target: str,
    *,
    progress: OnProgress = _quiet,
    bad: OnBad = _quiet,
    mode: str = "rgb",
    options: PackOptions | None = None,
) -> PackReport:
    """Pack every sample of a map-style dataset, as it comes.

    A sample that raises is left out and reported.

    Args:
        dataset: "pkg.module:Class".
        args: It is built as Class(**args).
        target: The database.
        progress: Called as (looked at, of how many).
        bad: Called as (name, reason).
        mode: What Pillow images become.
        options: Which samples, and in what order.

    Raises:
        SourceError: It cannot be packed.
    """
    target = os.path.abspath(target)
    _place(target)
    source = DatasetSource(StreamConfig("pack", dataset=dataset, dataset_args=args, mode=mode))
    try:
        options = options or PackOptions()
        selection = options.selection(source.total)
        return _packed(_Dataset(source, mode, selection), target, options, progress, bad)
    finally:
        source.close()


def _place(target: str) -> str:
    """The folder that the target will lie in. Raises SourceError if there is none."""
    folder = os.path.dirname(target)
    if not os.path.isdir(folder):
        raise SourceError(f"{target}: there is no folder {folder}")
    absent(target)
    return folder
