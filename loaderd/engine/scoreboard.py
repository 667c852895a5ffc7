"""The scoreboard: shared memory in which each worker says what it is doing.

Whoever must judge a worker after its death reads it there.

line (LINE bytes): word uint64 | pad to 16 | key of even rows | key of odd rows
key: length uint16, then up to KEY bytes UTF-8

The word is one aligned store. A row's key is written before its word and into the buffer of the
row's parity, so that the key of the row that the word names is not overwritten while the word names
it, unless by another of the same row. A buffer is all zeros before a key is written to it: one with
a zero inside is being written.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import weakref
from typing import Protocol

from loaderd.core.jobs import IMPORTING, stamp, unstamp

LINE = 512
KEY = 120
KEY_AT = 16
KEY_BYTES = 128
KEY_FORM = struct.Struct(f"<H{KEY}s")  # packing zeroes all of it first
# tries to read word and key without the worker moving on meanwhile; after that the word goes out
# without a key
READS = 8


class Scoreboard:
    """The daemon's side. Owns the memfd `fd` and the mapping."""

    def __init__(self, lines: int) -> None:
        self.lines = lines
        size = -(-lines * LINE // mmap.PAGESIZE) * mmap.PAGESIZE
        self.fd = os.memfd_create("loaderd-scoreboard", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, size)
        self._map = mmap.mmap(self.fd, size)
        self._words = memoryview(self._map).cast("Q")

    def read(self, line: int) -> tuple[int, str]:
        """Read a line.

        Returns:
            (word, key), which belong together. The key is "" where the worker was too quick, or has
            given none.
        """
        at = line * LINE // 8
        word = self._words[at]
        for _ in range(READS):
            key = self._key(line, unstamp(word)[1])
            again = self._words[at]
            if again == word and key == self._key(line, unstamp(word)[1]):
                return word, key
            word = again
        return word, ""

    def clear(self, line: int) -> None:
        """Make a line new, for the next worker. Its last one must be dead."""
        self._map[line * LINE : (line + 1) * LINE] = bytes(LINE)

    def close(self) -> None:
        """Idempotent."""
        if self.fd >= 0:
            self._words.release()
            self._map.close()
            os.close(self.fd)
            self.fd = -1

    def _key(self, line: int, row: int) -> str:
        at = line * LINE + KEY_AT + (row & 1) * KEY_BYTES
        size = min(int.from_bytes(self._map[at : at + 2], "little"), KEY)
        text = self._map[at + 2 : at + 2 + size]
        return "" if b"\0" in text else text.decode("utf-8", "replace")


class StatusWriter(Protocol):
    """Where a process that makes rows writes down what it is about to do.

    A worker's is its `StatusLine`.
    """

    def stamp(self, job: int, row: int, stage: int, candidate: int = 0) -> None:
        """What comes next: this stage of this row."""
        ...

    def importing(self, on: bool) -> None:
        """An import in the middle of it begins or ends."""
        ...

    def name(self, row: int, key: str) -> None:
        """The key that belongs to `row`; before the row's first stamp. "" for none."""
        ...

    def idle(self) -> None:
        """Nothing is being made."""
        ...


class StatusLine:
    """A worker's own line. Children that user code forks don't have it mapped.

    Does nothing in any other process than the one that made it: whoever falls back into the
    worker's loop in a forked child stops, by the line that isn't there if the fork was behind
    Python's back.
    """

    def __init__(self, fd: int, line: int) -> None:
        first = line * LINE // mmap.PAGESIZE * mmap.PAGESIZE
        self._map = mmap.mmap(fd, mmap.PAGESIZE, offset=first)
        self._map.madvise(mmap.MADV_DONTFORK)
        at = line * LINE - first
        self._word = ctypes.c_uint64.from_buffer(self._map, at)
        self._key_at = at + KEY_AT
        self.ours = True  # this is the process that made it
        _lines.add(self)

    def stamp(self, job: int, row: int, stage: int, candidate: int = 0) -> None:
        """Say what comes next. Ends a process that is not the worker."""
        if not self.ours:
            os._exit(1)
        self._word.value = stamp(job, row, stage, candidate)

    def importing(self, on: bool) -> None:
        """Put the mark on what has been stamped, or take it off. Nothing in any other process."""
        if self.ours and (word := self._word.value):
            self._word.value = word | IMPORTING if on else word & ~IMPORTING

    def name(self, row: int, key: str) -> None:
        """The key that belongs to `row`; before the row's first stamp. "" for none."""
        if not self.ours:
            os._exit(1)
        text = key.encode("utf-8", "replace")[:KEY]
        KEY_FORM.pack_into(self._map, self._key_at + (row & 1) * KEY_BYTES, len(text), text)

    def copy(self, word: int, key: str) -> None:
        """Say what another line says: this process stands for the worker of that one."""
        self.name(unstamp(word)[1], key)
        self._word.value = word

    def idle(self) -> None:
        """Say that nothing is being made. A forked child ends here, as it does at `stamp`."""
        self.stamp(0, 0, 0)


_lines: weakref.WeakSet[StatusLine] = weakref.WeakSet()


def _disown() -> None:
    for line in _lines:
        line.ours = False


os.register_at_fork(after_in_child=_disown)
