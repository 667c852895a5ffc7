"""Starting a config's daemon: a stand-in for `loaderd serve` that does what it is told on the pipe
and at the exit.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from loaderd.system import processes
from loaderd_client import (
    ConfigError,
    Loader,
    LoaderdError,
    StallError,
    StreamFailedError,
    embedded,
)
from loaderd_testing.daemon_harness import patiently
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_testing.fake_daemon import checked, seen, until
from loaderd_testing.pipes import line_of
from loaderd_wire.paths import LOG_BEGINS

TESTS = Path(__file__).parents[1] / "support"

# Serves like the fake daemon, under a file lock as the real one does, until its last session is
# gone.
SERVES = """
import fcntl, sys
sys.path[:0] = [{tests!r}]
from loaderd_testing.fake_daemon import FakeDaemon, until
lock = open({lock!r}, "a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    say("already running: another daemon serves d.sock")
    sys.exit(3)
lock.truncate(0)
lock.write(str(os.getpid()))
lock.flush()
with open({starts!r}, "a") as starts:
    starts.write("start\\n")
from pathlib import Path
with FakeDaemon(Path({folder!r})) as daemon:
    say("ready\\n")
    until("its last user's end", lambda: daemon.welcomed and not daemon.sessions)
"""


def names(folder: Path) -> dict[str, str]:
    return {
        "tests": str(TESTS),
        "folder": str(folder),
        "lock": str(folder / "lock"),
        "starts": str(folder / "starts"),
    }


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "c.toml"
    path.write_text('[daemon]\nsocket = "d.sock"\n')
    return path


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts this code in the place of `python -m loaderd`."""
    package = tmp_path / "instead" / "loaderd"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.chdir(tmp_path)  # python -m looks here first

    def put(code: str) -> None:
        head = """
        import os, sys
        arguments = sys.argv[1:]
        assert arguments[:1] + arguments[2:5] == ["serve", "--embedded", "--stream=train", "--ready-fd"], arguments
        def say(text):
            with os.fdopen(int(arguments[5]), "w") as pipe:
                pipe.write(text)
        """
        (package / "__main__.py").write_text(
            textwrap.dedent(head)
            + (code.format(**names(tmp_path)) if code is SERVES else textwrap.dedent(code))
        )

    return put


def test_a_daemon_is_started_once_and_goes_with_its_user(
    config: Path, program: Callable[[str], None], tmp_path: Path
) -> None:
    program(SERVES)
    with Loader(config, "train", output="numpy") as loader:
        assert not (tmp_path / "starts").exists()
        next(iter(loader))
        stats = loader.stats()
        assert 0.0 < stats["started_s"] <= stats["waited_s"]
        with Loader(config, "train", output="numpy") as other:
            next(iter(other))
            assert other.stats()["started_s"] == 0.0
    assert (tmp_path / "starts").read_text() == "start\n"
    until("the daemon's end", lambda: not (tmp_path / "d.sock").exists())


def test_eight_at_once_start_one(
    config: Path, program: Callable[[str], None], tmp_path: Path
) -> None:
    program(SERVES)
    code = (
        f"import sys\nfrom loaderd_client import Loader\nloader = Loader({str(config)!r}, "
        "'train', output='numpy')\nprint(len(list(loader)), "
        "flush=True)\nsys.stdin.readline()\nloader.close()"
    )
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(8)
    ]
    try:
        assert [line_of(rank) for rank in ranks] == ["13\n"] * 8
    finally:
        for rank in ranks:
            rank.communicate("\n", timeout=DEADLINE_S)
    assert (tmp_path / "starts").read_text() == "start\n"


def test_a_daemon_that_dies_is_started_again(
    config: Path, program: Callable[[str], None], tmp_path: Path
) -> None:
    program(SERVES)
    with Loader(config, "train", output="numpy", prefetch=1) as loader:
        batches = iter(loader)
        rows = checked(next(batches))
        os.kill(daemon_of(tmp_path), signal.SIGKILL)
        rows += seen(batches)
    assert sorted(rows) == list(range(50))
    assert (tmp_path / "starts").read_text() == "start\n" * 2


def daemon_of(tmp_path: Path) -> int:
    """The pid of the stand-in that serves."""
    return int((tmp_path / "lock").read_text())


ENDS = {
    "with the lines of a config error": (
        "say('ConfigError: batchsize=8: did you mean batch_size?'); sys.exit(2)",
        ConfigError,
        "did you mean batch_size",
    ),
    "naming the class": (
        "say('StreamFailedError: no_such_module'); sys.exit(3)",
        StreamFailedError,
        "no_such_module",
    ),
    "without its extra": (
        """say("lmdb is not installed: pip install 'loaderd[daemon]'"); sys.exit(3)""",
        ConfigError,
        "pip install",
    ),
    "without a word": ("sys.exit(3)", StreamFailedError, "ended before it was ready"),
    "by a signal, each time": (
        "os.kill(os.getpid(), 9)",
        StreamFailedError,
        "ended by SIGKILL before it was ready, as were the 4 ",
    ),
    "by a signal that ends whoever waits for its end, too": (
        "os.kill(os.getppid(), 9); os.kill(os.getpid(), 9)",
        StreamFailedError,
        "ended by SIGKILL before it was ready, as were the 4 ",
    ),
    "by a signal, with a reason": (
        "say('StreamFailedError: no_such_module'); os.kill(os.getpid(), 9)",
        StreamFailedError,
        "^no_such_module",
    ),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_daemon_that_ends_before_it_serves_is_raised_with_its_log(
    config: Path, program: Callable[[str], None], how: str
) -> None:
    code, error, words = ENDS[how]
    program("print('line of the log', file=sys.stderr, flush=True)\n" + code)
    with pytest.raises(error, match=words) as caught:
        len(Loader(config, "train", output="numpy"))
    assert "line of the log" in str(caught.value)
    assert "d.sock.log" in str(caught.value)


def test_a_daemon_killed_at_its_first_start_is_started_again_with_one_warning(
    config: Path, program: Callable[[str], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    killed = """
with open({starts!r}, "a+") as starts:
    starts.write("killed\\n")
    starts.seek(0)
    if len(starts.readlines()) < 4:
        starts.flush()
        os.kill(os.getpid(), 9)
"""
    program(killed.format(starts=str(tmp_path / "kills")) + SERVES.format(**names(tmp_path)))
    with Loader(config, "train", output="numpy") as loader:
        assert sorted(seen(loader)) == list(range(50))
    assert (tmp_path / "kills").read_text() == "killed\n" * 4
    assert [r.getMessage() for r in caplog.records if "SIGKILL" in r.getMessage()] == [
        "loaderd: the embedded daemon was ended by SIGKILL before it was ready; starting another "
        "one"
    ]
    assert (tmp_path / "starts").read_text() == "start\n"


def test_a_daemon_that_ends_by_itself_is_not_started_again(
    config: Path, program: Callable[[str], None], tmp_path: Path
) -> None:
    program(f"open({str(tmp_path / 'starts')!r}, 'a').write('x'); sys.exit(9)")
    with pytest.raises(StreamFailedError, match="the embedded daemon ended before it was ready"):
        len(Loader(config, "train", output="numpy"))
    assert (tmp_path / "starts").read_text() == "x"


def test_only_this_starts_lines_of_the_log_are_quoted(
    config: Path, program: Callable[[str], None], tmp_path: Path
) -> None:
    (tmp_path / "d.sock.log").write_text("yesterday\n")
    program("print('today', file=sys.stderr, flush=True); sys.exit(3)")
    with pytest.raises(StreamFailedError) as caught:
        len(Loader(config, "train", output="numpy"))
    assert "today" in str(caught.value)
    assert "yesterday" not in str(caught.value)


def test_a_start_that_takes_too_long_is_told_and_raised(
    config: Path, program: Callable[[str], None], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    program(
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\nimport signal; "
        "signal.pause()"
    )
    with pytest.raises(StallError, match=r"d\.sock\.log"):
        len(Loader(config, "train", output="numpy", timeout_s=1.5, stall_warning_s=0.5))
    assert "embedded daemon starts" in caplog.text
    os.kill(
        int(
            until("its pid", lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        ),
        9,
    )


def test_a_daemon_has_a_session_of_its_own_no_stdin_and_is_nobodys_child(
    config: Path, program: Callable[[str], None]
) -> None:
    program(
        f"SID, PID = {os.getsid(0)}, {os.getpid()}\n"
        "say(f'{os.getsid(0) != SID} {sys.stdin.read()!r} {os.getppid() != PID}'); sys.exit(3)"
    )
    with pytest.raises(LoaderdError, match="True '' True"):
        len(Loader(config, "train", output="numpy"))


STAMP = "2026-01-01T00:00:00.000Z info   "


@pytest.mark.parametrize(
    ("log", "quoted"),
    [
        (
            "older\n" * 20 + f"old\nold\nold\n{STAMP} ready\nthe disk is full\n",
            "old\nold\nold\nthe disk is full",
        ),
        (
            f"{STAMP} {LOG_BEGINS}: pid 1\ncorrected long ago\n{STAMP} {LOG_BEGINS}: pid 2\nthe "
            "disk is full\n",
            "the disk is full",
        ),
        (f"{STAMP} ready\n\nthe disk is full\n\n", "the disk is full"),
    ],
    ids=["its last lines", "and none of an earlier daemon's", "and no empty ones"],
)
def test_an_error_of_a_daemon_that_serves_quotes_its_log(
    config: Path, program: Callable[[str], None], tmp_path: Path, log: str, quoted: str
) -> None:
    program(SERVES)
    with (
        Loader(config, "train", output="numpy") as starter,
        Loader(config, "train", output="numpy", prefetch=1, timeout_s=5) as loader,
    ):
        assert len(starter) == 13
        batches = iter(loader)
        next(patiently(batches))
        daemon = daemon_of(tmp_path)
        os.kill(daemon, signal.SIGSTOP)
        until("the stop", lambda: processes.stopped(daemon))  # before it, it may go on
        (tmp_path / "d.sock.log").write_text(log)
        try:
            with pytest.raises(StallError, match=rf"d\.sock\.log says:\n{quoted}$"):
                list(batches)
        finally:
            os.kill(daemon, signal.SIGCONT)
        assert len(list(patiently(batches))) > 8


def test_the_line_that_tells_of_a_daemons_end_says_how_its_log_ends(
    config: Path, program: Callable[[str], None], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    program(SERVES)
    with Loader(config, "train", output="numpy", prefetch=1) as loader:
        batches = iter(loader)
        next(batches)
        with (tmp_path / "d.sock.log").open("a") as log:
            log.write("2026-01-01T00:00:00.000Z error   the disk is full\n")
        os.kill(daemon_of(tmp_path), signal.SIGKILL)
        list(batches)
    assert (
        "the daemon is gone (it closed the connection; its log ends with: the disk is full); "
        "going on"
    ) in caplog.text


def test_without_the_extra_it_is_named(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'loaderd\[daemon\]'"):
        len(Loader(config, "train", output="numpy"))


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, program: Callable[[str], None]
) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[daemon]\nsocket = "none/d.sock"\n')
    with pytest.raises(ConfigError, match=r"none/d\.sock\.log"):
        len(Loader(path, "train", output="numpy"))


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o701])
def test_a_default_folder_that_others_may_enter_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Callable[[str], None], mode: int
) -> None:
    path = tmp_path / "c.toml"
    path.write_text("")
    (tmp_path / "loaderd").mkdir()
    (tmp_path / "loaderd").chmod(mode)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match=r"must be a folder of uid .* with mode 0700"):
        len(Loader(path, "train", output="numpy"))


def test_a_log_that_was_cut_meanwhile_is_quoted_from_its_begin(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("the newest line\n")
    assert embedded._lines(str(tmp_path / "log"), 10_000, 5) == ["the newest line"]


BEGINS = f"{STAMP} {LOG_BEGINS}: pid 7 event=log_begins\n"
ENDS_SO = "2026-01-01T00:00:00.000Z error   the disk is full event=fault"


@pytest.mark.parametrize(("life", "words"), [("7-ab", True), ("8-ab", False), ("", True)])
def test_the_log_of_another_daemon_than_the_one_that_has_ended_says_nothing(
    tmp_path: Path, life: str, words: bool
) -> None:
    (tmp_path / "d.sock.log").write_text(f"{BEGINS}{ENDS_SO}\n")
    said = embedded.last_words(str(tmp_path / "d.sock"), life)
    assert said == ("the disk is full event=fault" if words else "")
    error = embedded.explained(StallError("why"), str(tmp_path / "d.sock"), "train", life)
    assert ("the disk is full" in str(error)) is words


def test_an_error_of_a_stream_quotes_no_lines_about_others(tmp_path: Path) -> None:
    lines = [
        "2026-01-01T00:00:00.000Z error   it has no pixels event=stream_failed stream=val",
        "2026-01-01T00:00:00.000Z warning client (uid 0) refused: val event=client_refused",
        "2026-01-01T00:00:00.000Z warning a sample is bad event=bad_sample stream=train key=3",
        ENDS_SO,
    ]
    (tmp_path / "d.sock.log").write_text(BEGINS + "\n".join(lines))
    error = embedded.explained(StallError("why"), str(tmp_path / "d.sock"), "train", "7-ab")
    assert str(error).splitlines()[2:] == lines[2:]
    error = embedded.explained(StallError("why"), str(tmp_path / "d.sock"), "", "7-ab")
    assert str(error).splitlines()[2:] == [lines[0], *lines[2:]]
