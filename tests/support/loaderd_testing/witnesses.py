"""What was going on while a test waited in vain. `conftest.py` puts it below the test's failure.

Whoever starts a daemon or a trainer is a witness of it: `WITNESSES[key] = tell`, until it has ended.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from loaderd.system.processes import DUMP_SIGNAL
from loaderd_testing.deadlines import LEAVING_S, until

WITNESSES: dict[object, Callable[[], str]] = {}
STACKS = "stacks-of-a-test"  # name of the memory that a process writes its stacks into
SETTLED = 5  # looks at stacks that do not grow any longer


def told() -> str:
    """What all witnesses say. What one of them cannot say holds up no other."""
    return "\n\n".join(filter(None, map(_said, list(WITNESSES.values()))))


def _said(tell: Callable[[], str]) -> str:
    try:
        return tell()
    except Exception:  # noqa: BLE001 - whatever keeps it from that
        return traceback.format_exc().rstrip()


def parts(**tells: Callable[[], str]) -> str:
    """What each of these says, below its name."""
    return "\n".join(f"--- {name}\n{_said(tell)}" for name, tell in tells.items())


def tell_stacks() -> None:
    """From now on this process answers DUMP_SIGNAL with its stacks, for `processes`."""
    for known in os.listdir("/proc/self/fd"):  # of the process that it was forked from
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            if STACKS in os.readlink(f"/proc/self/fd/{known}"):
                os.close(int(known))
    fd = os.memfd_create(STACKS, os.MFD_CLOEXEC)
    faulthandler.register(DUMP_SIGNAL, fd, all_threads=True, chain=False)


def processes(*pids: int) -> str:
    """These processes and their descendants: where each thread stands in the kernel, and the Python
    stacks of those that `tell_stacks`.
    """
    return "\n".join(_said(lambda pid=pid: _process(pid)) for pid in _trees(pids))


def _trees(pids: tuple[int, ...]) -> Iterator[int]:
    for pid in pids:
        yield pid
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
            yield from _trees(tuple(int(child) for child in text.split()))


def _process(pid: int) -> str:
    folder = Path(f"/proc/{pid}")
    lines = [f"process {pid}: {_words(folder)[:200]}"]
    for thread in sorted((folder / "task").iterdir(), key=lambda path: int(path.name)):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            name, rest = (thread / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
            lines.append(f"  thread {thread.name} {name} {rest.split()[0]}: {_kernel(thread)}")
    return "\n".join([*lines, *_stacks(folder)])


def _words(folder: Path) -> str:
    return (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()


def _kernel(thread: Path) -> str:
    """The calls in the kernel, the innermost first; where only root may see them, its name."""
    try:
        calls = [
            line.split()[-1].split("+")[0] for line in (thread / "stack").read_text().splitlines()
        ]
    except PermissionError:
        calls = []
    return " < ".join(calls[:6]) or (thread / "wchan").read_text()


def _stacks(folder: Path) -> Iterator[str]:
    """Its Python stacks, asked for now."""
    memory = next((one for one in (folder / "fd").iterdir() if STACKS in os.readlink(one)), None)
    if memory is None:
        return
    begin, sizes = memory.stat().st_size, [0] * SETTLED
    os.kill(int(folder.name), DUMP_SIGNAL)

    def written() -> bool:
        sizes.append(memory.stat().st_size)
        return begin < sizes[-1] == sizes[-SETTLED]

    until(f"stacks of process {folder.name}", written, LEAVING_S)
    yield memory.read_bytes()[begin:].decode(errors="replace")
