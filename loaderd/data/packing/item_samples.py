"""The samples of a source, read and made side by side, in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial

from loaderd.data.images.image_error import NoMemory
from loaderd.data.packing.library_output import LibraryOutput
from loaderd.data.packing.selection import Selection
from loaderd.data.packing.source import PackItem, PackSource, shown
from loaderd.data.packing.stored_images import StoredImages
from loaderd.data.packing.writer import PackedSample

WAIT_S = 10.0  # for one sample, until it is told of
OnWait = Callable[[str, float], None]  # (name, seconds so far)
Making = tuple[PackItem, Future[PackedSample]]


class ItemSamples:
    """A source's samples as `pack` takes them, their images looked at and changed."""

    def __init__(
        self,
        source: PackSource,
        selection: Selection,
        images: StoredImages,
        printed: LibraryOutput,
        waits: OnWait,
        workers: int = 0,
    ) -> None:
        """Take a source.

        Args:
            source: It stays open meanwhile.
            selection: Which of its samples.
            images: What becomes of their images.
            printed: Listens to what decoders print.
            waits: Is told of a sample that takes long.
            workers: Threads; 0: one for each core.
        """
        self._source = source
        self._selection = selection
        self._images = images
        self._printed = printed
        self._waits = waits
        self._threads = workers or len(os.sched_getaffinity(0))
        self.kind = source.kind
        self.named = source.named
        # text of a table or of JSON may be none that UTF-8 can hold
        self.classes = tuple(
            name.encode("utf-8", "backslashreplace").decode() for name in source.classes
        )
        self.total = selection.samples
        words = " ".join(filter(None, (source.kind, images.words, selection.words)))
        self.fingerprint = f"{words} {source.fingerprint}"

    @property
    def form(self) -> str:
        """That of the source: "dict" or "tuple"."""
        return self._source.form

    def each(self, start: int) -> Generator[tuple[bytes, Callable[[], PackedSample]]]:
        """The samples, made by threads.

        The work on an image is nearly all done without the interpreter's lock: threads are enough
        to use all cores.
        """
        pool = ThreadPoolExecutor(self._threads, "pack")
        try:
            ahead: deque[Making] = deque()
            for place in range(start, self.total):
                item = self._source.item(self._selection[place])
                ahead.append((item, pool.submit(self._make, item)))
                if len(ahead) > 2 * self._threads:
                    yield self._next(ahead)
            while ahead:
                yield self._next(ahead)
        finally:
            pool.shutdown(cancel_futures=True)

    def _next(self, ahead: deque[Making]) -> tuple[bytes, Callable[[], PackedSample]]:
        item, future = ahead.popleft()
        return item.name, partial(self._result, item, future, ahead)

    def _result(
        self, item: PackItem, future: Future[PackedSample], ahead: deque[Making]
    ) -> PackedSample:
        try:
            self._await(item, future)
            return future.result()
        except (MemoryError, NoMemory):  # perhaps for others that took it at the same moment
            wait([other for _, other in ahead])
            return self._make(item)
        finally:
            if self._printed.listen():
                wait([other for _, other in ahead])
                self._printed.listen()
                self._printed.find(
                    (shown(one.name), partial(self._again, one))
                    for one in (item, *(other for other, _ in ahead))
                )

    def _await(self, item: PackItem, future: Future[PackedSample]) -> None:
        """A file of a dead network or FUSE mount may never be read: it is named, and waited for."""
        waited_s = 0.0
        while not wait([future], step_s := max(WAIT_S, waited_s)).done:
            waited_s += step_s
            self._waits(shown(item.name), waited_s)

    def _again(self, item: PackItem) -> None:
        with suppress(Exception):  # it is told where the sample is made
            self._make(item)

    def _make(self, item: PackItem) -> PackedSample:
        sample = item.read()
        remarks: dict[str, None] = {}
        for name in [name for name in sample if name in sample.encoded]:
            try:
                sample[name], remark = self._images.stored(sample[name])
            except ValueError as error:
                if len(sample.encoded) == 1:
                    raise
                raise type(error)(f"field {name!r}: {error}") from None
            remarks[remark] = None
        return PackedSample(sample, next(filter(None, remarks), ""))
