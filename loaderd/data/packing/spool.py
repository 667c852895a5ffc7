"""A list of records in unnamed temporary files.

What a source holds is found once, and none of it is kept in memory.
"""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
from typing import IO

from loaderd.data.errors import writing

END = struct.Struct("<Q")


class Spool:
    """Records by number, written once and then read in any order. It owns two temporary files.

    `append` until `seal`, then `spool[n]`, from any thread.
    """

    def __init__(self, folder: str) -> None:
        """Begin without a record.

        Args:
            folder: Where the temporary files go.

        Raises:
            WriteFault: They cannot be made.
        """
        self._folder = folder
        self._count = 0
        self._end = 0
        with writing(folder), contextlib.ExitStack() as stack:
            self._records = stack.enter_context(_file(folder))
            self._ends = stack.enter_context(_file(folder))
            stack.pop_all()

    def __len__(self) -> int:
        return self._count

    def append(self, record: bytes) -> None:
        """Add a record. Raises WriteFault."""
        self._end += len(record)
        self._count += 1
        with writing(self._folder):
            self._records.write(record)
            self._ends.write(END.pack(self._end))

    def seal(self) -> None:
        """Whatever was added can be read from now on. Raises WriteFault."""
        with writing(self._folder):
            self._records.flush()
            self._ends.flush()

    def __getitem__(self, number: int) -> bytes:
        """A record. Raises IndexError."""
        if not 0 <= number < self._count:
            raise IndexError(number)
        ends = os.pread(self._ends.fileno(), 2 * END.size, max(0, number - 1) * END.size)
        begin = END.unpack_from(ends)[0] if number else 0
        end = END.unpack_from(ends, END.size if number else 0)[0]
        return os.pread(self._records.fileno(), end - begin, begin)

    def close(self) -> None:
        """Give the disk space back. Idempotent, and raises nothing."""
        for file in (self._records, self._ends):
            with contextlib.suppress(OSError):  # what a full disk has not taken is tried once more
                file.close()


def _file(folder: str) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=folder)
