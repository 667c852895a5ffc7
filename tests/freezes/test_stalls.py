"""A trainer that waits is told what for: one line after stall_warning_s, the whole story in StallError, and the same in `status`."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from freezes.users import bring
from loaderd_client import StallError
from system.site import Site, digest, plain, pulls, until

WAITS = """
class Data:
    def __len__(self):
        return 40
    def __getitem__(self, index):
        if index == 21:
            wait_here()
        return {"y": index}

def wait_here():
    wait_for("go", 1000)
"""


def stalled(batches: Iterator[Any], caplog: pytest.LogCaptureFixture) -> tuple[str, str]:
    """(the first line that the client logs while it waits, what it raises then); the batches that are ready are taken first."""
    with caplog.at_level(logging.WARNING, "loaderd_client"), pytest.raises(StallError) as raised:  # noqa: PT012 - as above
        for _ in range(100):
            next(batches)
    lines = [r.getMessage() for r in caplog.records if r.name == "loaderd_client" and "waiting" in r.getMessage()]
    assert lines, caplog.text
    assert "\n" not in lines[0]
    return lines[0], str(raised.value)


def test_a_hung_sample_is_named_with_worker_stage_key_and_seconds(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    bring(site, WAITS, timeout=1000).serve()
    batches = iter(site.loader(stall_warning_s=1, timeout_s=4))
    workers = site.workers()
    line, error = stalled(batches, caplog)
    named = r"step 2 of epoch 0 of stream 'train': batch 2 .*worker \d+ has been reading row 5, sample 21, for \d+\.\d s"
    assert re.search(named, line)
    assert re.search(named, error)
    assert re.search(r"\nworker \d+ has been reading row 5, sample 21", error)  # a line for each worker that is busy
    # and the stack of the living worker, down to the line that waits
    assert re.search(r"its stacks \d+\.\d s ago:\n  Current thread .*\n(.*\n)* +File .*mine\.py\", line \d+ in wait_here\n", error)
    assert "in wait_here" in next(w["stack"] for w in site.status()["workers"] if w["key"] == "21")
    assert site.workers() == workers  # it lives
    story = site.status()["sessions"][0]["story"]
    assert re.search(r"worker \d+ has been reading row 5, sample 21", story)
    shown = site.cli("status", str(site.socket), env={**os.environ, "COLUMNS": "200"}).stdout
    assert "waits for: batch 2" in shown
    assert re.search(r"busy .* read +'21'", shown)
    (site.folder / "go").touch()
    assert [plain(b)["y"].tolist() for b in batches] == [list(range(i, i + 8)) for i in (16, 24, 32)]


def test_stopped_workers_are_named_as_stopped(site: Site, caplog: pytest.LogCaptureFixture, undisturbed: str) -> None:
    loader = site.write().serve().loader(stall_warning_s=1, timeout_s=3, prefetch=1)
    got: list[Any] = []
    batches = kept(pulls(loader), got)
    next(batches)
    workers = site.workers()
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    try:
        line, error = stalled(batches, caplog)
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
    assert re.search(r"worker \d+ is stopped", line)
    assert re.search(r"worker \d+ is stopped", error)
    goes_on(loader, got, undisturbed)


def kept(batches: Iterator[Any], got: list[Any]) -> Iterator[Any]:
    for batch in batches:
        got.append(plain(batch))
        yield batch


def goes_on(loader: Any, got: list[Any], undisturbed: str) -> None:
    """After the error the same loader gives the rest of its two epochs, and all of it is the undisturbed stream."""
    again = loader.state_dict()
    loader.load_state_dict(again)
    batches = pulls(loader)
    while len(got) < 26:
        got.append(plain(next(batches)))
    assert digest(got) == undisturbed


def test_a_stopped_daemon_is_said_to_be_silent(site: Site, caplog: pytest.LogCaptureFixture, undisturbed: str) -> None:
    loader = site.write().serve().loader(stall_warning_s=3, timeout_s=5)
    got: list[Any] = []
    batches = kept(pulls(loader), got)
    next(batches)
    site.kill(sig=signal.SIGSTOP)
    try:
        line, error = stalled(batches, caplog)
    finally:
        site.kill(sig=signal.SIGCONT)
    assert re.search(r"the daemon does not answer \(for \d+ s", line)
    assert "the daemon does not answer" in error
    goes_on(loader, got, undisturbed)


def test_a_trainer_that_holds_nearly_all_its_slots_is_told_so(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    module = WAITS.replace('{"y": index}', '{"x": np.full(100_000, index, np.uint8)}')
    bring(site, module, timeout=1000, batch=4).serve()
    batches = iter(site.loader(stall_warning_s=1, timeout_s=3, prefetch=1))
    held = [next(batches) for _ in range(5)]
    line, error = stalled(batches, caplog)
    assert re.search(r"sample 21, .*; you hold 2 of 3 slots", line)
    assert "you hold 2 of 3 slots" in error
    assert [b["x"][0, 0] for b in held] == [0, 4, 8, 12, 16]
    (site.folder / "go").touch()
    assert next(batches)["x"][1, 5] == 21


def test_other_sessions_heavy_work_is_named_as_the_cause(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    module = WAITS.replace("if index == 21", "if os.path.exists(place('busy'))")
    bring(site, module, timeout=1000).serve()
    waiting = site.loader(stall_warning_s=1, timeout_s=3)
    len(waiting)
    (site.folder / "busy").touch()
    greedy = site.loader(prefetch=8)
    with in_thread(lambda: next(iter(greedy))):
        until("both workers at it", lambda: [len(w["jobs"]) for w in site.status()["workers"]] == [2, 2])
        line, error = stalled(iter(waiting), caplog)
        (site.folder / "go").touch()
    assert re.search(r"workers are busy with other sessions' batches \(4 of 4 jobs\)", line)
    assert len(re.findall(r"worker \d+ has been reading row \d+, sample \d+", error)) == 2
    assert next(iter(waiting))["y"].tolist() == list(range(8))


@contextlib.contextmanager
def in_thread(do: Callable[[], Any]) -> Iterator[None]:
    import threading

    thread = threading.Thread(target=do)
    thread.start()
    try:
        yield
    finally:
        thread.join(60)
        assert not thread.is_alive()


def test_workers_that_are_starting_are_named_and_what_the_last_one_died_of(
    site: Site, caplog: pytest.LogCaptureFixture, undisturbed: str
) -> None:
    fault = """
    def init(worker_id):
        while os.path.exists(os.path.join(os.path.dirname(__file__), "slow")):
            time.sleep(0.02)
    """
    loader = site.write(fault=fault, pool='init = "mine:init"').serve().loader(stall_warning_s=1, timeout_s=3, prefetch=1)
    got: list[Any] = []
    batches = kept(pulls(loader), got)
    next(batches)
    (site.folder / "slow").touch()
    for pid in site.workers():
        os.kill(pid, signal.SIGKILL)
    line, error = stalled(batches, caplog)
    assert "workers are starting" in line
    assert "workers are starting" in error
    (site.folder / "slow").unlink()
    goes_on(loader, got, undisturbed)


def test_the_last_dead_workers_stack_is_told_while_its_successor_hangs_too(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    module = """
    class Data:
        def __len__(self):
            return 40
        def __getitem__(self, index):
            if index == 21:
                if mark("crashed"):
                    ctypes.string_at(0)
                wait_for("go", 1000)
            return {"y": index}
    """
    bring(site, module, timeout=1000).serve()
    batches = iter(site.loader(stall_warning_s=1, timeout_s=4))
    _, error = stalled(batches, caplog)
    assert "the last worker that died at stream train: SIGSEGV at sample '21'" in error
    assert "string_at" in error
    (site.folder / "go").touch()
    assert next(batches)["y"].tolist() == list(range(16, 24))
