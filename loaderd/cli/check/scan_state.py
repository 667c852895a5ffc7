"""The files of a scan that may be broken off and gone on with.

They hold how far it is and what it has seen, bad samples, and a hash for each sample.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from types import TracebackType
from typing import IO, Any

import numpy as np

from loaderd.cli.exit_codes import NO_START, CommandError
from loaderd.system.file_locks import lies_at
from loaderd_wire.errors import BadSample

CHUNK = 1 << 20  # hashes looked at together
VERSION = 1


class ScanState:
    """Use as a context manager.

    `state` is what an earlier run kept, {} if there was none; what it holds is the scan's affair.

    Where another scan of the same stream runs, or with `anew`, nothing of an earlier one is found;
    `keeps` says whether this one's will be. Raises CommandError where nothing can be written.
    """

    def __init__(self, folder: str, config: str, stream: str, *, anew: bool) -> None:
        name = hashlib.sha256(f"{config}\0{stream}".encode("utf-8", "surrogateescape")).hexdigest()[
            :16
        ]
        self.path = os.path.join(folder, name)
        try:
            self._lock, self.keeps = _claimed(self.path)
            if not self.keeps:
                self.path = tempfile.mkdtemp(prefix="loaderd-check-")
            self.state = {} if anew or not self.keeps else self._read()
            mode = "r+b" if self.state else "w+b"
            self._hashes: IO[bytes] = open(os.path.join(self.path, "hashes"), mode)  # noqa: SIM115 - closed in __exit__
            self._bad: IO[bytes] = open(os.path.join(self.path, "bad.jsonl"), mode)  # noqa: SIM115 - as well
        except OSError as error:
            raise CommandError(
                f"{error.filename}: {error.strerror}; set XDG_CACHE_HOME to a writable folder",
                NO_START,
            ) from None
        for file, size in (
            (self._hashes, self.state.get("hashes", 0)),
            (self._bad, self.state.get("bad", 0)),
        ):
            file.truncate(size)  # what was written after the state was last kept
            file.seek(0, os.SEEK_END)

    def _read(self) -> dict[str, Any]:
        try:
            with open(os.path.join(self.path, "state.json"), encoding="utf-8") as file:
                state = json.load(file)
            whole = all(
                os.path.getsize(os.path.join(self.path, name)) >= state[key]
                for name, key in (("hashes", "hashes"), ("bad.jsonl", "bad"))
            )
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        return state if whole and state.get("version") == VERSION else {}

    def forget(self) -> None:
        """Nothing of an earlier run counts."""
        self.state = {}
        for file in (self._hashes, self._bad):
            file.seek(0)
            file.truncate()

    def add(self, hashes: np.ndarray) -> None:
        """uint64, one for each position of the order, 0 where there is no sample."""
        self._hashes.write(np.ascontiguousarray(hashes, "<u8").data)

    def set_aside(self, stream: str, sample: BadSample) -> None:
        """Append a bad sample to the file of bad samples; it is written before the next `save`."""
        self._bad.write(
            json.dumps({"stream": stream, **asdict(sample)}, ensure_ascii=False).encode(
                "utf-8", "backslashreplace"
            )
            + b"\n"
        )

    def bad(self) -> Iterator[BadSample]:
        """All that were set aside, of earlier runs too, in order."""
        self._bad.flush()
        with open(self._bad.name, encoding="utf-8") as file:
            for line in file:
                entry = json.loads(line)
                entry.pop("stream")
                yield BadSample(**entry)

    def bad_lines(self, to: IO[str]) -> None:
        """Copy them as JSON lines."""
        self._bad.flush()
        with open(self._bad.name, encoding="utf-8") as file:
            shutil.copyfileobj(file, to)

    def save(self, **state: Any) -> None:
        """Keep this, and everything that was added before.

        A run that comes later finds all of it or what was saved before.
        """
        for file in (self._hashes, self._bad):
            file.flush()
            os.fsync(file.fileno())
        state |= {"version": VERSION, "hashes": self._hashes.tell(), "bad": self._bad.tell()}
        path = os.path.join(self.path, "state.json")
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(state, file)
        os.replace(path + ".new", path)

    def duplicates(self, groups: int, each: int) -> tuple[int, list[list[int]]]:
        """Find equal samples.

        The hashes are sorted in a file, 8 bytes a sample as they are: memory is the kernel's page
        cache and a few MB.

        Args:
            groups: Sets of equal samples to be named.
            each: Positions of a set, at most.

        Returns:
            (samples that are copies of one before, the positions of the first sets).
        """
        self._hashes.flush()
        if os.path.getsize(self._hashes.name) < 16:
            return 0, []
        path = os.path.join(self.path, "sorted")
        shutil.copyfile(self._hashes.name, path)
        ordered = np.memmap(path, "<u8", "r+")
        ordered.sort()
        copies, values = 0, np.zeros(0, np.uint64)
        for at in range(0, len(ordered) - 1, CHUNK):
            part = np.array(ordered[at : at + CHUNK + 1])
            same = part[1:][(part[1:] == part[:-1]) & (part[1:] != 0)]
            copies += len(same)
            if len(values) < groups:
                values = np.unique(np.concatenate([values, same]))[:groups]
        del ordered
        os.remove(path)
        return copies, self._positions(values, each)

    def _positions(self, values: np.ndarray, each: int) -> list[list[int]]:
        found: dict[int, list[int]] = {int(value): [] for value in values}
        hashes = np.memmap(self._hashes.name, "<u8", "r")
        for at in range(0, len(hashes) if found else 0, CHUNK):
            part = np.asarray(hashes[at : at + CHUNK])
            for row in np.flatnonzero(np.isin(part, values)):
                group = found[int(part[row])]
                if len(group) < each:
                    group.append(at + int(row))
        return sorted(found.values())

    def finish(self) -> None:
        """Nothing is to be gone on with."""
        self.keeps = False

    def __enter__(self) -> ScanState:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._hashes.close()
        self._bad.close()
        if not self.keeps or not os.path.exists(os.path.join(self.path, "state.json")):
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _claimed(folder: str) -> tuple[int, bool]:
    """Make the folder of a scan if there is none, and try to get its lock.

    A scan that ends at the same time may remove the folder: then it is made again.

    Returns:
        (a descriptor of the lock file, whether the lock is ours).

    Raises:
        OSError: The folder or the file cannot be made.
    """
    path = os.path.join(folder, "lock")
    while True:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            continue
        ours = _locked(fd)
        if not ours or lies_at(fd, path):
            return fd, ours
        os.close(fd)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
