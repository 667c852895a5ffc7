"""Whether an LMDB file is whole, before the library opens it.

The verifier that the `lmdb` package ships walks its every page. It runs in a process of its own: a
file made to do harm may take the process with it, or make it eat memory.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from dataclasses import dataclass

from loaderd.data.lmdb.file_facts import open_file, read_facts

SPARE_BYTES = 2 << 30  # of address space, beyond what the verifier notes of each page
# pages that nobody uses and nobody may reuse: a crash of whoever wrote the file; reading goes right
HARMLESS = " a leak "
HELP = "verifying a file needs lmdb 3.0 or newer: pip install -U lmdb"
CHILD = """
import resource, runpy, sys
from loaderd.system.processes import die_with_parent
file, parent, room = sys.argv[1:]
die_with_parent(int(parent))
resource.setrlimit(resource.RLIMIT_AS, (int(room), int(room)))
sys.argv = ["lmdb", "verify", "-s", file]
runpy.run_module("lmdb", run_name="__main__")
"""


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What the verifier found.

    Attributes:
        problems: What is wrong with the file, () if it is sound.
        remark: What else should be said, or "".
        state: Of the file that was verified.
    """

    problems: tuple[str, ...]
    remark: str
    state: str


def state_of(path: str) -> str:
    """Which state of which file lies there.

    Raises:
        SourceError: It is no LMDB, or cut short.
    """
    fd, file = open_file(path)
    try:
        return str(read_facts(fd, file))
    finally:
        os.close(fd)


def verify(path: str) -> VerifyResult:
    """Walk the file's every page without opening it as a database.

    That takes seconds for each million pages.

    Raises:
        SourceError: As `state_of`.
    """
    state = state_of(path)
    if not can_verify():
        return VerifyResult((), f"not verified: {HELP}", state)
    fd, file = open_file(path)
    room = SPARE_BYTES + os.fstat(fd).st_size // 64
    os.close(fd)
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, file, str(os.getpid()), str(room)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="backslashreplace",
    ) as child:
        try:
            out, error = child.communicate()
        except BaseException:
            child.kill()
            raise
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        return VerifyResult((f"it killed the process that verified it ({name})",), "", state)
    lines = out.splitlines()
    if child.returncode == 0 and lines[-1:] == ["verify: OK"]:
        return VerifyResult((), "", state)
    harmless = [line for line in lines if HARMLESS in line]
    problems = [line for line in lines if HARMLESS not in line]
    if not lines:
        problems = [
            (error.strip().splitlines() or ["the verifier ended without output"])[-1].removeprefix(
                "lmdb.tool: "
            )
        ]
    return VerifyResult(tuple(problems), "; ".join(harmless), state)


def can_verify() -> bool:
    """True if the installed `lmdb` has a verifier. Imports nothing."""
    found = importlib.util.find_spec("lmdb")
    return any(
        os.path.exists(os.path.join(folder, "verify.py"))
        for folder in (found and found.submodule_search_locations) or ()
    )
