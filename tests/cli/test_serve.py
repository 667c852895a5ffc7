"""`loaderd serve`: the ready line, and each way in which it does not come."""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loaderd.cli.serve import prepared
from loaderd.config import load
from loaderd_testing.cli_harness import DEADLINE_S, Place


def test_the_ready_line_names_socket_streams_and_workers(place: Place, run_base: Path) -> None:
    place.serve(place.config(args="n = 40", stream="split = '0%:50%'"))
    (line,) = [line for line in place.log("config.toml").splitlines() if "ready: " in line]
    assert re.search(
        rf"ready: {run_base}/loaderd/config-[0-9a-f]{{8}}\.sock; streams train \(20\); 2 "
        rf"workers event=ready socket={run_base}/loaderd/config-\S+\.sock workers=2$",
        line,
    )


@pytest.mark.parametrize("socket", [None, "/run/other.sock"])
def test_a_daemon_holds_the_copies_that_its_workers_make_whatever_its_socket_is(
    socket: str | None,
) -> None:
    text = '[daemon]\nstage = "/local"\n[streams.train]\nlmdb = "a.lmdb"\n'
    config = load.parse(text, "/data/config.toml", {}, 1000)
    served = prepared(config, argparse.Namespace(stream="", socket=socket))
    assert served.daemon.staging is not None
    assert served.streams[0].stage == served.daemon.staging


def test_with_json_logs_every_line_is_an_object(place: Place) -> None:
    daemon = place.serve(
        place.config(workers="num_workers = 1\ninit = 'mine:prints'"), "--log-format", "json"
    )
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(DEADLINE_S) == 0
    lines = [json.loads(line) for line in place.log("config.toml").splitlines()]
    assert {"time", "level", "text"} <= lines[0].keys()
    (ready,) = [line for line in lines if line["text"].startswith("ready")]
    assert ready["workers"] == 1
    assert ready["text"].endswith("; 1 worker")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_it(place: Place, number: signal.Signals) -> None:
    daemon = place.serve(place.config())
    daemon.send_signal(number)
    assert daemon.wait(DEADLINE_S) == 0


@pytest.mark.parametrize(
    ("stream", "said"),
    [
        ("lmdb = 'none.lmdb'", "none.lmdb"),
        ("dataset = 'nowhere:Numbers'", "there is no module 'nowhere'"),
        ("dataset = 'mine:Nobody'", "Nobody"),
        ("dataset = 'mine:Numbers'\ndataset_args = {m = 3}", "unexpected keyword argument 'm'"),
        ("dataset = 'mine:Numbers'\nsplit = '100:200'", "beyond the end of 40 samples"),
        ("dataset = 'mine:Numbers'\ndataset_args = {n = 0}", "it is empty"),
    ],
)
def test_what_cannot_be_served_ends_it_with_3_and_the_reason(
    place: Place, stream: str, said: str
) -> None:
    (place.folder / "c.toml").write_text(f"[workers]\nnum_workers = 1\n[streams.train]\n{stream}\n")
    assert place.serve("c.toml", ready=False).wait(DEADLINE_S) == 3
    assert said in place.log("c.toml")


def test_whoever_waits_on_the_pipe_of_an_embedded_daemon_gets_the_lines_of_a_faulty_config(
    place: Place,
) -> None:
    read, write = os.pipe()
    daemon = place.serve(
        place.config(stream="sede = 1"),
        "--embedded",
        "--ready-fd",
        str(write),
        ready=False,
        pass_fds=(write,),
    )
    os.close(write)
    assert daemon.wait(DEADLINE_S) == 2
    with open(read) as pipe:
        assert pipe.read() == (
            f"ConfigError: {place.folder}/config.toml: streams.train.sede: 1: unknown key; did "
            "you mean 'seed'?"
        )


def test_a_module_that_cannot_be_imported_is_told_once_with_its_line_and_what_to_do(
    place: Place,
) -> None:
    (place.folder / "yours.py").write_text("import os\nimport pilow\n")
    (place.folder / "c.toml").write_text(
        "[streams.train]\ndataset = 'yours:Data'\n[streams.test]\ndataset = 'yours:Data'\n"
    )
    assert place.serve("c.toml", ready=False).wait(DEADLINE_S) == 3
    first, *rest = [
        line for line in place.log("c.toml").splitlines() if "not ready after" not in line
    ]
    assert (
        f"streams 'test', 'train': dataset = \"yours:Data\": {place.folder}/yours.py, line 2: "
        "there is no module 'pilow': "
    ) in first
    assert f"install it for {sys.executable}, or put it in {place.folder}" in first
    assert rest == [
        "Traceback (most recent call last):",
        f'  File "{place.folder}/yours.py", line 2, in <module>',
        "    import pilow",
        "ModuleNotFoundError: No module named 'pilow'",
    ]


def test_an_init_that_raises_is_named_as_such(place: Place) -> None:
    (place.folder / "yours.py").write_text(
        "def init(worker_id):\n    raise OSError('no licence')\n"
    )
    place.serve(place.config(workers="num_workers = 1\ninit = 'yours:init'"), ready=False).wait(
        DEADLINE_S
    )
    first, *rest = [
        line for line in place.log("config.toml").splitlines() if "not ready after" not in line
    ]
    assert 'init = "yours:init"' in first
    assert "OSError: no licence" in first
    assert [line for line in rest if "no licence" in line] == [
        "    raise OSError('no licence')",
        "OSError: no licence",
    ]


def test_the_daemon_is_made_of_modules_that_need_no_numpy() -> None:
    """Which takes longer to import than all that it does need, and more memory."""
    modules = "loaderd.cli.serve, loaderd.config.load, loaderd.server.daemon, loaderd.engine.local"
    code = (
        f"import sys, {modules}\nprint(*{{'numpy', 'torch', 'cv2', 'lmdb'}} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=DEADLINE_S
    )
    assert done.stdout.split() == []


def test_a_daemon_with_few_descriptors_says_so_and_how_many_it_needs(place: Place) -> None:
    """At each number that an interpreter itself can start with."""
    config = place.config()

    def start(number: int, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=place.folder,
            preexec_fn=functools.partial(
                resource.setrlimit, resource.RLIMIT_NOFILE, (number, number)
            ),
        )

    def said(process: subprocess.Popen[str]) -> str:
        try:
            return process.communicate(timeout=DEADLINE_S)[0]
        finally:
            process.kill()
            process.communicate()

    least = next(
        number
        for number in range(3, 40)
        if said(start(number, "-c", "import loaderd.__main__")) == ""
    )
    assert least < 12
    for first in range(least, 41, 4):
        started = {
            number: start(number, "-m", "loaderd", "serve", config)
            for number in range(first, min(first + 4, 41))
        }
        texts = {number: said(process) for number, process in started.items()}
        for number, process in started.items():
            assert process.returncode == 3, (number, texts[number])
            line = (
                rf"loaderd: .*RLIMIT_NOFILE is {number}, and a daemon needs at least 1\d\d; "
                r".*\(ulimit -Hn\)\n"
            )
            assert re.fullmatch(line, texts[number])
