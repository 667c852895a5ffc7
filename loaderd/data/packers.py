"""What can be packed: a folder of images, any map-style dataset."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from loaderd.data.dataset import DatasetSource
from loaderd.data.faults import SampleFault, SourceError
from loaderd.data.folder import NO_LABEL, Listing
from loaderd.data.images import decode
from loaderd.data.pack import LISTED, OnBad, OnProgress, PackReport, pack
from loaderd.data.plan import StreamPlan
from loaderd.data.sample import Sample

MAX_FILE = 1 << 30


def _quiet(*args: object) -> None:
    pass


class _Folder:
    """The images of a listing as samples: `image` as its file's bytes, `label` if there are classes."""

    kind = "imagefolder"
    named = True
    form = "dict"

    def __init__(self, listing: Listing, verify: bool) -> None:
        self._listing = listing
        self._verify = verify
        self.total = listing.total
        self.fingerprint = f"{self.kind} {verify} {listing.fingerprint}"
        self.classes = listing.classes

    def each(self, start: int) -> Iterator[tuple[bytes, Callable[[], Sample]]]:
        for found in self._listing.files(start):
            yield found.path, partial(self._make, found.path, found.label)

    def _make(self, path: bytes, label: int) -> Sample:
        try:
            with open(os.path.join(os.fsencode(self._listing.folder), path), "rb") as file:
                data = file.read(MAX_FILE + 1)
        except OSError as error:
            raise SampleFault("read", type(error).__name__, error.strerror or str(error)) from None
        if len(data) > MAX_FILE:
            raise SampleFault("read", "ValueError", f"the file is larger than {MAX_FILE} bytes")
        if self._verify:
            decode(data)  # an ImageError is a ValueError, which makes it a bad sample
        elif not data:
            raise SampleFault("read", "ValueError", "the file is empty")
        sample = Sample({"image": data}, encoded=("image",))
        if label != NO_LABEL:
            sample["label"] = np.array(label, np.int64)
        return sample


def pack_imagefolder(folder: str, target: str, *, progress: OnProgress = _quiet, bad: OnBad = _quiet, verify: bool = True) -> PackReport:
    """Pack a folder of images, one subfolder a class as torchvision's ImageFolder has it, or a flat folder without labels.

    Files keep their bytes. verify: decode each, and leave out (and report) those that cannot be. Raises SourceError.
    """
    target = os.path.abspath(target)
    with Listing(os.path.abspath(folder), _place(target)) as listing:
        notes = [f"{listing.ignored} files were ignored: no images by name, or beside the class folders"] if listing.ignored else []
        if listing.empty:
            more = ", ..." if len(listing.empty) > 5 else ""
            notes.append(f"{len(listing.empty)} classes have no images: {', '.join(listing.empty[:5])}{more}")
        for name, reason in listing.unreadable:
            bad(name, reason)
        report = pack(_Folder(listing, verify), target, progress, bad, tuple(notes))
        listed = (*listing.unreadable, *report.bad)[:LISTED]
        return replace(report, bad=listed, bad_count=report.bad_count + len(listing.unreadable))


class _Dataset:
    """A user's dataset, sample by sample, as it comes."""

    kind = "dataset"
    named = False

    def __init__(self, source: DatasetSource, mode: str) -> None:
        self._source = source
        self._mode = mode
        self.total = source.total
        self.fingerprint = f"{self.kind} {source.identity} {mode}"
        self.classes = source.classes

    @property
    def form(self) -> str:
        return self._source.form or "dict"

    def each(self, start: int) -> Iterator[tuple[bytes, Callable[[], Sample]]]:
        for index in range(start, self.total):
            yield b"%d" % index, partial(self._make, index)

    def _make(self, index: int) -> Sample:
        try:
            return self._source.read(index, self._mode)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
            fault = SampleFault.of("read", error)
            raise SampleFault(fault.stage, fault.error, f"{fault.error}: {fault.message}", fault.traceback) from None


def pack_dataset(
    dataset: str,
    args: dict[str, Any],
    target: str,
    *,
    progress: OnProgress = _quiet,
    bad: OnBad = _quiet,
    mode: str = "rgb",
) -> PackReport:
    """Pack every sample of the map-style dataset "pkg.module:Class", built as Class(**args), baked as it comes.

    Pillow images become pixels by `mode`. A sample that raises is left out and reported. Raises SourceError.
    """
    source = DatasetSource(StreamPlan("pack", dataset=dataset, dataset_args=args, mode=mode))
    try:
        return pack(_Dataset(source, mode), os.path.abspath(target), progress, bad)
    finally:
        source.close()


def _place(target: str) -> str:
    """The folder that the target will lie in. Raises SourceError if there is none."""
    folder = os.path.dirname(target)
    if not os.path.isdir(folder):
        raise SourceError(f"{target}: there is no folder {folder}")
    if os.path.lexists(target):
        raise SourceError(f"{target}: is there already; remove it, or choose another name")
    return folder
