"""What can be packed: a folder of images, any map-style dataset."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from loaderd.config.stream import StreamConfig
from loaderd.data.errors import SampleFault, SourceError
from loaderd.data.images.decode import codec_of, decode
from loaderd.data.images.image_error import NoMemory
from loaderd.data.images.pixel_source import ImagePart, open_image
from loaderd.data.jpeg.headers import NotRewritable
from loaderd.data.jpeg.rewrite import available, can_rewrite, rewrite
from loaderd.data.packing.image_folder import NO_LABEL, Found, Listing
from loaderd.data.packing.library_output import LibraryOutput
from loaderd.data.packing.pack_state import LISTED
from loaderd.data.packing.part_file import absent
from loaderd.data.packing.writer import OnBad, OnProgress, PackedSample, PackReport, pack
from loaderd.data.sample import Sample
from loaderd.data.sources.dataset import DatasetSource
from loaderd.system.stderr import CapturedStderr

MAX_FILE = 1 << 30
WAIT_S = 10.0  # for one file, until it is told of
REWRITTEN, KEPT = "rewritten for random access", "kept as they are"


OnWait = Callable[[str, float], None]  # (name, seconds so far)


def _quiet(*args: object) -> None:
    pass


class _Folder:
    """The images of a listing as samples: `image` as its file's bytes or a JPEG rewritten, `label`
    if there are classes.
    """

    kind = "imagefolder"
    named = True
    form = "dict"

    def __init__(
        self, listing: Listing, verify: bool, means: str, printed: LibraryOutput, waits: OnWait
    ) -> None:
        """means: what rewrites JPEGs for random access, "" if nothing does.

        printed: listens to what decoders print.
        """
        self._listing = listing
        self._verify = verify
        self._means = means
        self._printed = printed
        self._waits = waits
        self.total = listing.total
        # Two means may give different bytes, of the same pixels.
        self.fingerprint = f"{self.kind} {verify} {means} {listing.fingerprint}"
        self.classes = listing.classes

    def each(self, start: int) -> Generator[tuple[bytes, Callable[[], PackedSample]]]:
        """The work on a file is nearly all done without the interpreter's lock: threads are enough
        to use all cores.
        """
        threads = len(os.sched_getaffinity(0))
        pool = ThreadPoolExecutor(threads, "pack")
        try:
            ahead: deque[tuple[Found, Future[PackedSample]]] = deque()
            for found in self._listing.files(start):
                ahead.append((found, pool.submit(self._make, found)))
                if len(ahead) > 2 * threads:
                    yield self._next(ahead)
            while ahead:
                yield self._next(ahead)
        finally:
            pool.shutdown(cancel_futures=True)

    def _next(
        self, ahead: deque[tuple[Found, Future[PackedSample]]]
    ) -> tuple[bytes, Callable[[], PackedSample]]:
        found, future = ahead.popleft()
        return found.path, partial(self._result, found, future, ahead)

    def _result(
        self,
        found: Found,
        future: Future[PackedSample],
        ahead: deque[tuple[Found, Future[PackedSample]]],
    ) -> PackedSample:
        try:
            self._await(found, future)
            return future.result()
        except (MemoryError, NoMemory):  # perhaps for others that took it at the same moment
            wait([other for _, other in ahead])
            return self._make(found)
        finally:
            if self._printed.listen():
                wait([other for _, other in ahead])
                self._printed.listen()
                self._printed.find(
                    (_shown(one), partial(self._again, one))
                    for one in (found, *(other for other, _ in ahead))
                )

    def _await(self, found: Found, future: Future[PackedSample]) -> None:
        """A file of a dead network or FUSE mount may never be read: it is named, and waited for."""
        waited_s = 0.0
        while not wait([future], step_s := max(WAIT_S, waited_s)).done:
            waited_s += step_s
            self._waits(_shown(found), waited_s)

    def _again(self, found: Found) -> None:
        with suppress(Exception):  # it is told where the sample is made
            self._make(found)

    def _make(self, found: Found) -> PackedSample:
        try:
            with open(os.path.join(os.fsencode(self._listing.folder), found.path), "rb") as file:
                if os.fstat(file.fileno()).st_size > MAX_FILE:
                    raise SampleFault(
                        "read", "ValueError", f"the file is larger than {MAX_FILE:,} bytes"
                    )
                data = file.read()
        except OSError as error:
            raise SampleFault("read", type(error).__name__, error.strerror or str(error)) from None
        data, remark = self._stored(data)
        sample = Sample({"image": data}, encoded=("image",))
        if found.label != NO_LABEL:
            sample["label"] = np.array(found.label, np.int64)
        return PackedSample(sample, remark)

    def _stored(self, data: bytes) -> tuple[bytes, str]:
        """What is kept of a file, and what became of it.

        Raises ValueError if it is no image, which makes it a bad sample.
        """
        remark = ""
        if self._means and codec_of(data) == "jpeg":
            try:
                return _rewritten(data), REWRITTEN
            except NotRewritable as error:
                remark = f"{KEPT}: {str(error).partition(':')[0]}"
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - it is only kept as it is, if decoders take it
                remark = f"{KEPT}: {type(error).__name__}"
        if self._verify:
            decode(data)
        elif not data:
            raise SampleFault("read", "ValueError", "the file is empty")
        return data, remark


def _shown(found: Found) -> str:
    return found.path.decode("utf-8", "backslashreplace")


def _rewritten(data: bytes) -> bytes:
    """The JPEG for random access.

    That reads every coefficient, more strictly than decoders do; so that they take what comes out
    is known from a pixel of it. Raises NotRewritable.
    """
    out = rewrite(data)
    try:
        open_image(out, "rgb").read(ImagePart(0, 0, 1, 1))
    except ValueError as error:
        raise NotRewritable(f"no decoder can read it: {error}") from None
    return out


def _means() -> str:
    """What rewrites JPEGs here, as far as it decides about their bytes."""
    return available().partition(" ")[0] if can_rewrite() else ""


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
    """Pack a folder of images, one subfolder a class as torchvision's ImageFolder has it, or a flat
    folder without labels.

    random_access: rewrite JPEGs without loss, so that a crop can be decoded without the rest of the
    image; the report's tally counts them, and those that stay as they are with the reason.
    Everything else keeps its bytes, and so does all where nothing is there that rewrites.
    verify: decode each, and leave out (and report) those that cannot be. classes: names of the
    labels in their order, None for the names of
    the subfolders, sorted. waits: is told of a file that takes long. Raises SourceError.
    """
    target = os.path.abspath(target)
    means = _means() if random_access else ""
    with (
        CapturedStderr() as stderr,
        Listing(os.path.abspath(folder), _place(target), classes) as listing,
    ):
        for name, reason in listing.unreadable:
            bad(name, reason)
        printed = LibraryOutput(stderr.lines)
        report = pack(_Folder(listing, verify, means, printed, waits), target, progress, bad)
        listed = (*listing.unreadable, *report.bad)[:LISTED]
        notes = (*listing.notes, *printed.notes)
        return replace(
            report, bad=listed, bad_count=report.bad_count + len(listing.unreadable), notes=notes
        )


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

    def each(self, start: int) -> Generator[tuple[bytes, Callable[[], PackedSample]]]:
        for index in range(start, self.total):
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
) -> PackReport:
    """Pack every sample of the map-style dataset "pkg.module:Class", built as Class(**args), baked
    as it comes.

    Pillow images become pixels by `mode`. A sample that raises is left out and reported. Raises
    SourceError.
    """
    target = os.path.abspath(target)
    _place(target)
    source = DatasetSource(StreamConfig("pack", dataset=dataset, dataset_args=args, mode=mode))
    try:
        return pack(_Dataset(source, mode), target, progress, bad)
    finally:
        source.close()


def _place(target: str) -> str:
    """The folder that the target will lie in. Raises SourceError if there is none."""
    folder = os.path.dirname(target)
    if not os.path.isdir(folder):
        raise SourceError(f"{target}: there is no folder {folder}")
    absent(target)
    return folder
