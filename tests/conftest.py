"""What every test may ask for, and the promise that a skip has only one cause: something that this
machine lacks.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from loaderd_testing import costs
from loaderd_testing.bytecode import write_bytecode
from loaderd_testing.deadlines import DEADLINE_S, LEAVING_S, WaitedInVainError
from loaderd_testing.leaks import Leaks
from loaderd_testing.witnesses import told
from loaderd_wire.errors import StallError

# Hypothesis without its stopwatch and without a memory between runs: the same examples everywhere,
# however slow the machine. Before the test files, whose own settings are made of these.
settings.register_profile("loaderd", deadline=None, database=None, derandomize=True)
settings.load_profile("loaderd")

pytest_plugins = ["loaderd_testing.loop_fixtures", "loaderd_testing.engine_fixtures"]


def _userns() -> str:
    """Why a process here cannot have namespaces of its own (user, mount, PID, IPC, network, UTS),
    or "".
    """
    try:
        done = subprocess.run(
            [
                "unshare",
                "--user",
                "--map-root-user",
                "--mount",
                "--pid",
                "--ipc",
                "--net",
                "--uts",
                "--fork",
                "true",
            ],
            capture_output=True,
            timeout=DEADLINE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no user namespaces: {error}"
    return (
        ""
        if done.returncode == 0
        else f"no user namespaces: {done.stderr.decode(errors='replace').strip()}"
    )


def _second_uid() -> str:
    """Why nothing here can run as another user, or ""."""
    return "" if os.geteuid() == 0 else "only root can start a process under a second uid"


def _pidfd() -> str:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return f"no pidfd_open: {error}"
    return ""


def _extensions() -> str:
    """Why JPEGs are neither rewritten nor cropped, and rows not found, by code of ours, or ""."""
    from loaderd.data.jpeg import fused_decode, rewrite
    from loaderd.data.lmdb import page_reader

    built = fused_decode.library() and rewrite.can_rewrite() and page_reader.library()
    return "" if built else "the extensions have not been built: no C compiler"


def _jpegtran() -> str:
    return (
        ""
        if shutil.which("jpegtran")
        else "no jpegtran program (Debian: apt-get install libjpeg-turbo-progs)"
    )


def _chromium() -> str:
    return "" if shutil.which("chromium") else "no chromium (Debian: apt-get install chromium)"


def _program(name: str, package: str) -> Callable[[], str]:
    """Why a program that checks a file cannot be run, or ""."""
    return lambda: "" if shutil.which(name) else f"no {name} (Debian: apt-get install {package})"


def _memory_cgroup() -> str:
    from faults.system import cgroup

    return cgroup.lack()


def _ray() -> str:
    """Why no Ray cluster can be started here, or ""."""
    return "" if importlib.util.find_spec("ray") else "no Ray (pip install ray)"


FACILITIES: dict[str, Callable[[], str]] = {
    "userns": _userns,
    "second_uid": _second_uid,
    "pidfd": _pidfd,
    "extensions": _extensions,
    "jpegtran": _jpegtran,
    "chromium": _chromium,
    "memory_cgroup": _memory_cgroup,
    "ray": _ray,
    "shellcheck": _program("shellcheck", "shellcheck"),
    "systemd_analyze": _program("systemd-analyze", "systemd"),
}
LACKS: dict[str, str] = {}
RUN_FOLDER = pytest.StashKey[str]()
# Folders whose tests start no process and open nothing: all others are followed by a search for
# leftovers.
PURE = ("core", "wire", "simulation")
LONGEST_FOLDER = 24  # bytes; tests add up to 80 to it
SKIPPED: list[tuple[str, str]] = []


def _short_folder(wanted: str) -> str:
    """The folder for temporary files, or where its name leaves no room for a socket's path (107
    bytes) another.
    """
    if len(os.fsencode(wanted)) <= LONGEST_FOLDER:
        return wanted
    for folder in ("/tmp", "/var/tmp", "/dev/shm"):
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise pytest.UsageError(
        f"TMPDIR={wanted!r} is too long for sockets below it, and /tmp, /var/tmp and /dev/shm "
        "can't be written"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # started in the background: its children would be deaf to Ctrl-C as well
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line(
        "markers",
        f"needs(facility): skipped where the machine lacks it; one of {', '.join(FACILITIES)}",
    )
    # Everything of the tests lies in a folder of their own, so that two runs on a machine see
    # nothing of each other: default sockets, and what tests write, under names short enough for a
    # socket's path.
    base = (
        os.path.dirname(os.environ["XDG_RUNTIME_DIR"])
        if hasattr(config, "workerinput")
        else _short_folder(tempfile.gettempdir())
    )
    config.stash[RUN_FOLDER] = tempfile.mkdtemp(prefix="tests-", dir=base)
    os.environ["XDG_RUNTIME_DIR"] = config.stash[RUN_FOLDER]
    os.environ["TMPDIR"] = tempfile.tempdir = os.path.join(config.stash[RUN_FOLDER], "tmp")
    # torch makes it when it is imported
    os.environ["XDG_CACHE_HOME"] = os.path.join(config.stash[RUN_FOLDER], "cache")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(config.stash[RUN_FOLDER], "torch")
    os.mkdir(tempfile.tempdir)
    for folder in (config.stash[RUN_FOLDER], tempfile.tempdir):
        os.chmod(folder, 0o711)  # some tests let another user into a folder of theirs
    if not hasattr(config, "workerinput"):
        write_bytecode()
    sys.dont_write_bytecode = False  # pytest keeps the test files that it has rewritten
    if not config.option.basetemp or hasattr(config, "workerinput"):
        config.option.basetemp = Path(config.stash[RUN_FOLDER]) / "t"


def _all_of_some(things: Iterable[object]) -> bool:
    """`all` for tests: of nothing it is a failure, for then nothing was looked at."""
    looked = False
    for thing in things:
        if not thing:
            return False
        looked = True
    assert looked, "all() of nothing proves nothing"
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function):
            vars(item.module)["all"] = _all_of_some


def pytest_collection_finish() -> None:
    # for modules that tests write and edit at once
    sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)
    gc.collect()
    # what is imported by now is for ever; to look through torch takes 0.1 s each time that a test
    # collects garbage
    gc.freeze()
    costs.begin()


@pytest.hookimpl(trylast=True)  # after the fixtures of the session
def pytest_sessionfinish() -> None:
    if forks := sys.modules.get("loaderd_testing.python_processes"):
        forks.end()


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config.stash.get(RUN_FOLDER, ""), ignore_errors=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        for facility in mark.args:
            if facility not in LACKS:
                LACKS[facility] = FACILITIES[facility]()
            if LACKS[facility]:
                if os.environ.get("LOADERD_REQUIRE") == "all":
                    pytest.fail(
                        f"LOADERD_REQUIRE=all, and this machine lacks {facility}: "
                        f"{LACKS[facility]}",
                        pytrace=False,
                    )
                SKIPPED.append((item.nodeid, LACKS[facility]))
                pytest.skip(LACKS[facility])


def _waited_in_vain(error: BaseException) -> bool:
    """Whether a test failed because something did not happen in time."""
    waits = (WaitedInVainError, StallError, subprocess.TimeoutExpired)
    return isinstance(error, waits) or (
        isinstance(error, pytest.fail.Exception) and str(error.msg).startswith("Timeout")
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    costs.spend(report)
    if call.excinfo is not None and _waited_in_vain(call.excinfo.value) and (said := told()):
        report.sections.append(("what was going on meanwhile", said))
    if (
        report.skipped
        and not hasattr(report, "wasxfail")
        and not any(item.nodeid == name for name, _ in SKIPPED)
    ):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped without @pytest.mark.needs: {report.longrepr}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # also those of other processes, which SKIPPED does not know
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        terminalreporter.section("skipped: this machine lacks a facility")
        for report in skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
            terminalreporter.line(f"{report.nodeid}: {reason}")
    told = list(costs.lines(one for some in terminalreporter.stats.values() for one in some))
    if told:
        terminalreporter.section("processor time")
        for line in told:
            terminalreporter.line(line)


@pytest.fixture(autouse=True)
def no_worker_of_torch() -> Iterator[None]:
    """Where a test's process has played a worker, torch forgets it."""
    yield
    torch_worker = sys.modules.get("torch.utils.data._utils.worker")
    if torch_worker is not None:
        vars(torch_worker)["_worker_info"] = None


@pytest.fixture(autouse=True)
def leak_guard(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves something of ours behind. What is on its way out has its time."""
    if Path(request.node.path).parent.name in PURE:
        yield
        return
    leaks = Leaks(Path(request.config.stash[RUN_FOLDER]))
    yield
    end, pause_s, looks = time.monotonic() + LEAVING_S, 0.02, 0
    while left := leaks.found():
        looks += 1
        if looks & (looks - 1) == 0:  # after 1, 2, 4, ... looks: it takes far longer than a look
            gc.collect()
        if time.monotonic() > end:
            pytest.fail("left behind: " + "; ".join(left), pytrace=False)
        select.select([], [], [], pause_s)
        pause_s = min(1.5 * pause_s, 0.25)  # a daemon on its way out takes seconds
