"""The command line as a whole: help, version, mistakes, exit codes, and what it says where the
daemon's packages are missing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import loaderd
from loaderd.__main__ import main
from loaderd.cli.parser import parser
from loaderd.data import native_library
from loaderd_testing.cli_harness import Place
from loaderd_testing.deadlines import DEADLINE_S

ROOT = Path(loaderd.__file__).parents[1]


def test_the_version_is_printed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loaderd", "--version"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"loaderd {loaderd.__version__}",
        native_library.described(native_library.present()),
    ]


def test_a_full_disk_behind_the_output_is_told_in_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "loaderd", "schema"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=DEADLINE_S,
        )
    assert done.returncode == 4
    assert "No space left on device" in done.stderr
    assert "fault of loaderd" not in done.stderr
    assert "Traceback" not in done.stderr


INTERRUPTED = """
import os, signal, sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
"""


@pytest.mark.parametrize(
    "module", ["loaderd.cli.command_line", "loaderd.cli.parser", "loaderd.config.load", "numpy"]
)
def test_ctrl_c_while_modules_are_imported_ends_it_without_a_word(
    tmp_path: Path, module: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED.format(module=module))
    (tmp_path / "c.toml").write_text("[streams.train]\nlmdb = 'none.lmdb'\n")
    done = subprocess.run(
        [sys.executable, "-m", "loaderd", "check", str(tmp_path / "c.toml")],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT), str(ROOT / "client")]),
        },
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_nothing_heavy_is_imported_before_a_command_needs_it() -> None:
    code = (
        "import sys; from loaderd.__main__ import main\ntry: main(['--version'])\nexcept "
        "SystemExit: pass\nprint(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    assert not {"numpy", "zmq", "msgpack", "lmdb", "cv2", "PIL", "torch"} & set(done.stdout.split())


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "COMMAND"),
        (["sevre"], "invalid choice: 'sevre'"),
        (["serve"], "CONFIG"),
        (["serve", "c.toml", "--log-level", "loud"], "invalid choice: 'loud'"),
        (["check", "c.toml", "--samples", "0"], "'0' is not a whole number of 1 or more"),
        (["check", "c.toml", "--all", "--index", "3"], "not allowed with argument"),
        (["top", "--interval", "100000"], "'100000' is not a number of seconds from 0.1 to 86400"),
        (["preview", "c.toml", "--step", "1", "--position", "2"], "not allowed with argument"),
        (["pack", "webdatsaet", "a", "b"], "invalid choice: 'webdatsaet'"),
        (["pack", "dataset", "a:B", "b", "--args", "[1]"], "'[1]' is not a JSON object"),
        (["pack", "dataset", "a:B", "b", "--args", "{"], "not JSON"),
    ],
)
def test_a_wrong_command_line_is_two_lines_and_exit_code_2(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 2


def test_every_command_has_a_file_of_its_own() -> None:
    subparsers: Any = parser("0")._subparsers
    (commands,) = [action.choices for action in subparsers._group_actions]
    assert all(importlib.util.find_spec(f"loaderd.cli.{name}") for name in commands)


@pytest.mark.parametrize("command", [["serve"], ["check"], ["preview", "--json"]])
def test_a_faulty_config_is_told_whole_without_a_traceback(
    command: list[str], place: Place
) -> None:
    config = place.config(stream="batch_siz = 3\nseed = -1")
    done = place.cli(command[0], config, *command[1:], code=2)
    assert done.stderr.splitlines() == [
        f"loaderd: {place.folder}/config.toml: 2 faults",
        "  streams.train.batch_siz: 3: unknown key; did you mean 'batch_size'?",
        "  streams.train.seed: -1 is not a whole number from 0 to 4611686018427387904",
    ]


def test_debug_shows_where_an_error_comes_from(place: Place) -> None:
    assert "Traceback" not in place.cli("serve", "none.toml", code=2).stderr
    assert "Traceback" in place.cli("serve", "none.toml", "--debug", code=2).stderr


def test_the_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert "streams" in json.loads(capsys.readouterr().out)["properties"]


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    read, write = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-m", "loaderd", "schema"], stdout=write, stderr=subprocess.PIPE
    ) as done:
        os.close(write)
        os.close(read)
        assert done.stderr is not None
        assert done.stderr.read() == b""
    assert done.returncode == 0


@pytest.fixture
def thin(tmp_path: Path) -> list[str]:
    """A Python that sees what `pip install loaderd` brings, and nothing else."""
    site = tmp_path / "site"
    site.mkdir()
    for name in ("numpy", "numpy.libs", "msgpack", "zmq", "pyzmq.libs"):
        for folder in sys.path:
            if (Path(folder) / name).is_dir() and not (site / name).exists():
                (site / name).symlink_to(Path(folder) / name)
    for name in ("loaderd", "client/loaderd_client", "client/loaderd_wire"):
        (site / Path(name).name).symlink_to(ROOT / name)
    return [
        sys.executable,
        "-I",
        "-S",
        "-c",
        f"import sys; sys.path.append({str(site)!r}); exec(sys.argv.pop(1))",
    ]


def test_a_thin_install_imports_the_client_and_nothing_of_the_daemon(thin: list[str]) -> None:
    code = (
        "import loaderd_client, sys; loaderd_client.Loader; print([m for m in ('torch', "
        "'lmdb', 'cv2', 'PIL', 'loaderd') if m in sys.modules])"
    )
    done = subprocess.run([*thin, code], capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


@pytest.mark.parametrize(
    "command",
    [["serve", "x.toml"], ["check", "x.toml"], ["inspect", "x"], ["pack", "imagefolder", "a", "b"]],
)
def test_a_thin_install_says_which_extra_a_command_needs(
    thin: list[str], command: list[str]
) -> None:
    code = f"import sys; from loaderd.__main__ import main; sys.exit(main({command!r}))"
    done = subprocess.run([*thin, code], capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stderr) == (
        3,
        "loaderd: lmdb is not installed: pip install 'loaderd[daemon]'\n",
    )


@pytest.mark.parametrize("command", ["serve", "check", "bench"])
def test_a_limit_of_mapped_memory_that_keeps_libraries_out_is_one_clear_line(
    place: Place, command: str
) -> None:
    run = [sys.executable, "-m", "loaderd", command, place.config()]
    done = subprocess.run(
        ["sh", "-c", 'ulimit -v 150000; exec "$@"', "sh", *run],
        cwd=place.folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 3
    last = done.stderr.splitlines()[-1]
    assert last.startswith("loaderd: this process may map 146 MiB in all (ulimit -v), too little")
    assert "Traceback" not in done.stderr


def test_a_limit_that_leaves_room_is_no_obstacle(place: Place) -> None:
    run = [sys.executable, "-m", "loaderd", "check", place.config()]
    limited = ["sh", "-c", 'ulimit -v 64000000; exec "$@"', "sh", *run]
    assert subprocess.run(limited, cwd=place.folder, timeout=DEADLINE_S).returncode == 0


NO_PROC = 'mount -t tmpfs tmpfs /proc && exec "$@"'


@pytest.mark.needs("userns")
@pytest.mark.parametrize("command", ["serve", "check", "bench"])
def test_without_proc_a_command_that_starts_workers_is_one_clear_line(
    place: Place, command: str
) -> None:
    user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    words = [
        "unshare",
        *user,
        "--mount",
        "sh",
        "-c",
        NO_PROC,
        "sh",
        sys.executable,
        "-m",
        "loaderd",
        command,
        place.config(),
    ]
    done = subprocess.run(
        words, cwd=place.folder, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 3
    assert done.stderr == (
        "loaderd: /proc is not mounted, or does not show this process: mount it (mount -t proc "
        "proc /proc)\n"
    )


def test_a_hundred_streams_are_not_listed_in_an_error_line(place: Place) -> None:
    more = "".join(f"[streams.s{n:03d}]\ndataset = 'mine:Numbers'\n" for n in range(100))
    done = place.cli("check", place.config(more=more), "--stream", "nothing", code=2)
    assert "there are: train, s000, s001, s002, s003, s004, s005, s006 and 93 more" in done.stderr
    assert len(place.cli("preview", "config.toml", "--step", "0", "--json", code=2).stderr) < 300
