from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loaderd_testing import witnesses
from loaderd_testing.daemon_harness import Site
from loaderd_testing.deadlines import DEADLINE_S, WaitedInVainError, until
from loaderd_testing.pipes import line_of
from loaderd_testing.python_processes import TRAINING, python
from loaderd_testing.witnesses import WITNESSES, processes, told

WAITS = """
import sys
def stands_here():
    print("here", flush=True)
    sys.stdin.read()
stands_here()
"""


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without those of other tests of the run."""
    monkeypatch.setattr(witnesses, "WITNESSES", {})


@pytest.fixture
def stands() -> Iterator[subprocess.Popen[str]]:
    """A trainer that waits in `stands_here`."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with python("-c", WAITS, imports=TRAINING, **pipes) as process:
        assert line_of(process) == "here\n"
        stat = Path(f"/proc/{process.pid}/stat")
        until("its sleep", lambda: stat.read_text().rpartition(")")[2].split()[0] == "S")
        yield process


def test_a_wait_in_vain_is_no_ordinary_failure() -> None:
    with pytest.raises(WaitedInVainError, match="waited 0 s for: rain"):
        until("rain", lambda: False, 0.0)


@pytest.mark.usefixtures("alone")
def test_a_witness_that_cannot_say_anything_holds_up_no_other() -> None:
    def blind() -> str:
        raise ValueError("dark")

    witnesses.WITNESSES.update({1: blind, 2: lambda: "seen", 3: lambda: ""})
    first, second = told().split("\n\n")
    assert first.endswith("ValueError: dark")
    assert second == "seen"


def test_a_forked_trainer_is_a_witness_of_where_it_stands_until_it_ends(
    stands: subprocess.Popen[str],
) -> None:
    text = WITNESSES[stands.pid]()
    assert f"process {stands.pid}: " in text
    assert f"thread {stands.pid} python S: " in text
    assert "in stands_here\n" in text
    assert processes(stands.pid).count("in stands_here\n") == 1  # and not those of before
    assert stands.stdin is not None
    stands.stdin.close()
    assert stands.wait(DEADLINE_S) == 0
    assert stands.pid not in WITNESSES


def test_of_a_process_that_tells_no_stacks_the_threads_are_told() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "print(1, flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert line_of(process) == "1\n"
        (_, thread) = processes(process.pid).splitlines()
        process.communicate("\n")
    assert thread.startswith(f"  thread {process.pid} ")


def test_a_daemon_is_a_witness_of_its_workers_status_and_log(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write(workers=1).serve().settled()
    text = WITNESSES[site]()
    stacks, shown, whole, log, tree = (
        text.split(f"--- {name}\n")[1].split("\n---")[0]
        for name in ("stacks", "status", "json", "log", "processes")
    )
    assert "worker 1: Current thread" in stacks
    assert "WORKERS" in shown
    assert json.loads(whole)["pid"] == site.pid
    assert "event=ready" in log
    assert all(f"process {pid}: " in tree for pid in (site.pid, site.template(), *site.workers()))
    site.close()
    assert site not in WITNESSES
