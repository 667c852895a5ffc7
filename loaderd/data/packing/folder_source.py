"""A folder of images as a source: loaderd pack imagefolder."""

from __future__ import annotations

import os
from functools import partial

import numpy as np

from loaderd.data.packing.files import read_file
from loaderd.data.packing.image_folder import NO_LABEL, Found, Listing
from loaderd.data.packing.source import PackItem, SourceOptions
from loaderd.data.sample import Sample


class ImageFolderSource:
    """The images of a listing as samples: `image`, and `label` if there are classes."""

    kind = "imagefolder"
    named = True
    form = "dict"

    def __init__(self, folder: str, spool_folder: str, said: SourceOptions) -> None:
        """List a folder. Arguments and errors are those of `Listing`."""
        folder = os.path.abspath(folder)
        self._folder = os.fsencode(folder)
        self._listing = Listing(folder, spool_folder, said.classes)
        self.total = self._listing.total
        self.fingerprint = self._listing.fingerprint
        self.classes = self._listing.classes
        self.unreadable = self._listing.unreadable
        self.notes = self._listing.notes

    def __enter__(self) -> ImageFolderSource:
        return self

    def __exit__(self, *exc: object) -> None:
        self._listing.__exit__()

    def item(self, index: int) -> PackItem:
        """Named by its path below the folder."""
        found = self._listing.file(index)
        return PackItem(found.path, partial(self._read, found))

    def _read(self, found: Found) -> Sample:
        sample = Sample(
            {"image": read_file(os.path.join(self._folder, found.path))}, encoded=("image",)
        )
        if found.label != NO_LABEL:
            sample["label"] = np.array(found.label, np.int64)
        return sample
