"""What tests may leave behind: processes, descriptors, mappings, files.

Each is compared with what was there before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

KERNEL = 2  # pid of the parent of the kernel's threads
# Regular files belong to pytest's own capture and logs, eventfds to the ZeroMQ context, which lives
# as long as the process.
OURS = ("/memfd:", "socket:", "anon_inode:[pidfd]", "pidfd:", "pipe:")

# (pid, inode in /proc) of processes that no test has started. What is in there of theirs is read
# once: it takes longer than all else together.
STRANGERS: set[tuple[int, int]] = set()

# Pids, and descriptors of this process, that stay for the tests to come, whichever came first.
KEPT_PIDS: set[int] = set()
KEPT_FDS: set[int] = set()


class Leaks:
    """What has come since this was made, of this run of the tests.

    Args:
        folder: the run's own, which is in the environment of whatever it starts; default sockets
            and temporary files lie below it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before = self._now()

    def found(self) -> list[str]:
        return [what for key, what in self._now().items() if self._before.get(key) != what]

    def _now(self) -> dict[str, str]:
        looks: tuple[Callable[[], Iterator[str]], ...] = (
            self._processes,
            _descriptors,
            _mappings,
            self._files,
        )
        return {line.split(":")[0]: line for look in looks for line in look()}

    def _processes(self) -> Iterator[str]:
        """Descendants, and orphans: what has our folder in its environment, whoever is its parent
        now.
        """
        all_ = {one.pid: one for one in _all_processes()}
        for one in all_.values():
            child = one.parent == os.getpid()
            if one.pid not in {os.getpid(), *KEPT_PIDS} and (
                child or (one.state not in "ZX" and (_descends(one, all_) or self._marked(one)))
            ):
                yield (
                    f"process {one.pid} ({one.command() or 'ended, not waited for'}) of "
                    f"{one.parent}, started {one.start}"
                ).replace(":", " ")

    def _marked(self, one: Process) -> bool:
        environment = _read(f"/proc/{one.pid}/environ")
        if os.fsencode(self._folder) + b"\0" in environment + b"\0":
            return True
        if environment or KERNEL in (one.pid, one.parent):  # else it is just being started, or ends
            STRANGERS.add((one.pid, one.inode))
        return False

    def _files(self) -> Iterator[str]:
        """Files in the folders for default sockets and for temporary files, but the lock files,
        which the next start sweeps.
        """
        for top in ("loaderd", "tmp"):
            # a folder that is removed at this moment is passed over
            for folder, folders, files in os.walk(self._folder / top):
                for name in sorted(folders + files):
                    if not name.endswith(".lock"):
                        yield f"file {os.path.join(folder, name)}"


class Process(NamedTuple):
    pid: int
    parent: int
    state: str
    start: str
    inode: int

    def command(self) -> str:
        return (
            _read(f"/proc/{self.pid}/cmdline")
            .replace(b"\0", b" ")
            .decode(errors="replace")[:100]
            .strip()
        )


def _all_processes() -> Iterator[Process]:
    """All but the strangers, whose children are no tests' either."""
    with os.scandir("/proc") as entries:
        pids = {(int(one.name), one.inode()) for one in entries if one.name.isdigit()}
    for pid, inode in pids - STRANGERS:
        if stat := _read(f"/proc/{pid}/stat").decode(errors="replace"):
            fields = stat.rsplit(")", 1)[1].split()
            yield Process(pid, int(fields[1]), fields[0], fields[19], inode)


def _descends(one: Process, all_: dict[int, Process]) -> bool:
    seen = one
    while seen.parent in all_:
        seen = all_[seen.parent]
        if seen.pid in KEPT_PIDS:  # what it has below it stays with it
            return False
        if seen.pid == os.getpid():
            return True
    return False


def _descriptors() -> Iterator[str]:
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:  # the listing's own
            continue
        if target.startswith(OURS) and int(fd) not in KEPT_FDS:
            yield f"fd {fd}: {target}"


def _mappings() -> Iterator[str]:
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/memfd:" in line:
            begin, _, name = line.partition(" ")
            yield f"mapping {begin}: {name.split('/memfd:')[1]}"


def _read(path: str) -> bytes:
    """b"" for a process that has ended or belongs to somebody else."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        found = b""
        while part := os.read(fd, 1 << 16):
            found += part
        return found
    except OSError:
        return b""
    finally:
        os.close(fd)
