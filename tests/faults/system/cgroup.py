"""A cgroup of one's own with a limit on memory, in which the kernel's OOM killer really kills."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loaderd_testing.deadlines import until

ROOT = Path("/sys/fs/cgroup")
# (where the hierarchy of the memory controller is, the file of its limit, the file with the count
# of kills)
KINDS = (
    (ROOT / "memory", "memory.limit_in_bytes", "memory.oom_control"),
    (ROOT, "memory.max", "memory.events"),
)


class MemoryCgroup:
    def __init__(self, folder: Path, limit: str, events: str) -> None:
        self._folder, self._limit, self._events = folder, limit, events

    @property
    def procs(self) -> Path:
        """Whoever writes its pid here is in it, and so are its children."""
        return self._folder / "cgroup.procs"

    def limit(self, size: int) -> None:
        (self._folder / self._limit).write_text(str(size))
        swap = self._folder / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")

    def kills(self) -> int:
        lines = (self._folder / self._events).read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


@contextmanager
def memory_cgroup() -> Iterator[MemoryCgroup]:
    """Raises OSError where the machine does not let us."""
    where, limit, events = next(
        (kind for kind in KINDS if (kind[0] / "cgroup.procs").exists()), KINDS[-1]
    )
    folder = where / f"loaderd-tests-{os.getpid()}"
    folder.mkdir()
    try:
        if not (folder / limit).exists():
            raise OSError(f"{folder} has no {limit}: the memory controller is not passed down")
        yield MemoryCgroup(folder, limit, events)
    finally:
        until("the end of all in the cgroup", lambda: not (folder / "cgroup.procs").read_text())
        folder.rmdir()


def lack() -> str:
    """Why there can be none here, or ""."""
    try:
        with memory_cgroup() as group:
            group.limit(1 << 30)
    except OSError as error:
        return f"no memory cgroup of one's own: {error}"
    return ""
