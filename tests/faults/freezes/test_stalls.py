"""A trainer that waits is told what for: one line after stall_warning_s, the whole story in
StallError, and the same in `status`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import re
import signal
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from faults.freezes.users import bring
from loaderd_client import StallError
from loaderd_testing.daemon_harness import Site, digest, patiently, plain, pulls, until
from loaderd_testing.deadlines import DEADLINE_S

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
    """(the first line that the client logs while it waits, what it raises then); the batches that
    are ready are taken first.
    """
    caplog.clear()
    with caplog.at_level(logging.WARNING, "loaderd_client"), pytest.raises(StallError) as raised:  # noqa: PT012 - as above
        for _ in range(400):
            next(batches)
    error = str(raised.value)
    where = re.search(r"for step \d+ of epoch \d+ ", error)[0]  # type: ignore[index]  # it is there
    lines = [
        r.getMessage()
        for r in caplog.records
        if r.name == "loaderd_client" and where in r.getMessage()
    ]
    assert lines, caplog.text
    assert "\n" not in lines[0]
    return lines[0], error


def stalled_by(
    named: str,
    batches: Iterator[Any],
    caplog: pytest.LogCaptureFixture,
    *of_error: str,
    of_line: str = "",
) -> str:
    """As `stalled`, once line and error both say this, which on a busy machine takes a while to
    show. Returns the error.

    of_error, of_line: what one of the two says, too.
    """

    def look() -> str:
        line, error = stalled(batches, caplog)
        said = [(named, line), (of_line, line), *((part, error) for part in (named, *of_error))]
        return error if all(re.search(part, text) for part, text in said) else ""

    return until(f"{named!r} {of_line!r} {of_error}", look)


class Kept:
    """Batches of a loader across epochs, for ever, also after an error. got: copies of them."""

    def __init__(self, loader: Any) -> None:
        self._loader, self._batches = loader, iter(loader)
        self.got: list[Any] = []

    def __iter__(self) -> Kept:
        return self

    def __next__(self) -> Any:
        while True:
            for batch in self._batches:
                self.got.append(plain(batch))
                return batch
            self._batches = iter(self._loader)

    def go_on(self, undisturbed: str) -> None:
        """After the error the same loader gives the rest of its two epochs, and all of it is the
        undisturbed stream.
        """
        again = self._loader.state_dict()
        self._loader.load_state_dict(again)
        self._batches = iter(self._loader)
        for _ in zip(range(26 - len(self.got)), patiently(self), strict=False):
            pass
        assert digest(self.got) == undisturbed


def test_a_hung_sample_is_named_with_worker_stage_key_and_seconds(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    bring(site, WAITS, timeout=1000).serve()
    batches = iter(site.loader(stall_warning_s=1, timeout_s=4))
    stalled_by(
        r"step 2 of epoch 0 of stream 'train': batch 2 .*worker \d+ has been reading row 5, "
        r"sample 21, for \d+\.\d s",
        batches,
        caplog,
        # a line for each worker that is busy
        r"\nworker \d+ has been reading row 5, sample 21",
        # and the stack of the living worker, down to the line that waits
        r"its stacks \d+\.\d s ago:\n  Current thread .*\n(.*\n)* +File .*mine\.py\", line \d+ in "
        r"wait_here\n",
    )
    (it,) = [w for w in site.status()["workers"] if w["key"] == "21"]
    assert "in wait_here" in it["stack"]
    assert it["pid"] in site.workers()  # it lives
    story = site.status()["sessions"][0]["story"]
    assert re.search(r"worker \d+ has been reading row 5, sample 21", story)
    shown = site.shown()
    assert "waits for: batch 2" in shown
    assert re.search(r"busy .* read +'21'", shown)
    (site.folder / "go").touch()
    assert [plain(b)["y"].tolist() for b in patiently(batches)] == [
        list(range(i, i + 8)) for i in (16, 24, 32)
    ]


def test_stopped_workers_are_named_as_stopped(
    site: Site, caplog: pytest.LogCaptureFixture, undisturbed: str
) -> None:
    loader = site.write().serve().loader(stall_warning_s=1, timeout_s=3, prefetch=1)
    batches = Kept(loader)
    next(patiently(batches))
    workers = site.settled()
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    try:
        stalled_by(r"worker \d+ is stopped", batches, caplog)
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
    batches.go_on(undisturbed)


def test_a_worker_that_is_stopped_while_it_has_nothing_to_do_keeps_nobody_waiting(
    site: Site, undisturbed: str
) -> None:
    loader = site.write().serve().loader(prefetch=4)
    batches = pulls(loader)
    got = [plain(next(batches)) for _ in range(3)]
    until("both workers", lambda: len(site.workers()) == 2)
    until("nothing to do", lambda: not site.status()["jobs"])
    stopped = site.workers()[0]
    os.kill(stopped, signal.SIGSTOP)
    try:
        got += [plain(next(batches)) for _ in range(23)]
        assert digest(got) == undisturbed
        until(  # one that was slow at first gets a job after some seconds
            "its end, for its job is made and no session waits for it",
            lambda: stopped not in site.workers() or not next(batches),
        )
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(stopped, signal.SIGCONT)
    until("its end of that job", lambda: not site.status()["jobs"])
    assert (
        f"(pid {stopped}) has ended: killed: it is stopped by a signal (T), and no session waits "
        "for it"
    ) in site.log.read_text()


def test_workers_that_stopped_themselves_are_ended_when_their_trainer_has_gone(site: Site) -> None:
    module = """
    class Data:
        def __len__(self):
            return 40
        def __getitem__(self, index):
            if index >= 20 and (mark("the first stop") or mark("the second stop")):
                os.kill(os.getpid(), signal.SIGSTOP)
            return {"y": index}
    """
    bring(site, module, workers=2, batch=1).serve()
    with site.loader() as loader:
        batches = iter(loader)
        for _ in range(20):
            next(batches)
        until(
            "both workers' stop",
            lambda: [w["state"] for w in site.status()["workers"]] == ["stopped", "stopped"],
        )
    with site.loader() as loader:
        assert [int(y) for batch in loader for y in batch["y"]] == list(range(40))


def test_a_stopped_template_is_named_while_no_worker_can_be_started(
    site: Site, caplog: pytest.LogCaptureFixture, undisturbed: str
) -> None:
    loader = site.write(workers=1).serve().loader(stall_warning_s=3, timeout_s=6, prefetch=1)
    batches = Kept(loader)
    next(patiently(batches))
    template = site.template()
    os.kill(template, signal.SIGSTOP)
    try:
        site.kill(site.workers()[0])
        stopped = (
            r"workers are starting: worker 2 has been waiting: the fork server \(pid "
            rf"{template}\) is stopped by a signal \(T\); continue it with SIGCONT, for \d"
        )
        stalled_by("", batches, caplog, stopped)
        shown = site.shown()
        assert (
            f"fork server pid {template} is stopped by a signal (T): no worker can be started; "
            "continue it with SIGCONT"
        ) in shown
    finally:
        os.kill(template, signal.SIGCONT)
    batches.go_on(undisturbed)


def test_a_stopped_daemon_is_said_to_be_silent(
    site: Site, caplog: pytest.LogCaptureFixture, undisturbed: str
) -> None:
    loader = site.write().serve().loader(stall_warning_s=3, timeout_s=5)
    batches = Kept(loader)
    next(patiently(batches))
    site.kill(sig=signal.SIGSTOP)
    try:
        stalled_by(r"the daemon does not answer \(for \d+ s", batches, caplog)
    finally:
        site.kill(sig=signal.SIGCONT)
    batches.go_on(undisturbed)


def test_a_trainer_that_holds_nearly_all_its_slots_is_told_so(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    module = WAITS.replace('{"y": index}', '{"x": np.full(100_000, index, np.uint8)}')
    bring(site, module, timeout=1000, batch=4).serve()
    batches = iter(site.loader(stall_warning_s=1, timeout_s=3, prefetch=1))
    held = list(itertools.islice(patiently(batches), 5))
    stalled_by("you hold 2 of 3 slots", batches, caplog, of_line="sample 21, .*; you hold")
    assert site.status()["sessions"][0]["slots"]["leased"] == 2
    assert [b["x"][0, 0] for b in held] == [0, 4, 8, 12, 16]
    (site.folder / "go").touch()
    assert next(patiently(batches))["x"][1, 5] == 21


def test_other_sessions_heavy_work_is_named_as_the_cause(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    module = WAITS.replace("if index == 21", "if os.path.exists(place('busy'))")
    bring(site, module, timeout=1000).serve()
    waiting = site.loader(stall_warning_s=1, timeout_s=3)
    len(waiting)
    (site.folder / "busy").touch()
    greedy = site.loader(prefetch=8)
    with in_thread(lambda: next(iter(greedy))):
        until(
            "both workers at it",
            lambda: [len(w["jobs"]) for w in site.status()["workers"]] == [2, 2],
        )
        reading = r"worker \d+ has been reading row \d+, sample \d+"
        stalled_by(
            "",
            batches := iter(waiting),
            caplog,
            rf"{reading}[\s\S]*{reading}",
            of_line=r"workers are busy with other sessions' batches \(4 of 4 jobs\)",
        )
        (site.folder / "go").touch()
    assert next(patiently(batches))["y"].tolist() == list(range(8))


@contextlib.contextmanager
def in_thread(do: Callable[[], Any]) -> Iterator[None]:
    import threading

    thread = threading.Thread(target=do)
    thread.start()
    try:
        yield
    finally:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def test_workers_that_are_starting_are_named_and_what_the_last_one_died_of(
    site: Site, caplog: pytest.LogCaptureFixture, undisturbed: str
) -> None:
    fault = """
    def init(worker_id):
        while os.path.exists(os.path.join(os.path.dirname(__file__), "slow")):
            time.sleep(0.02)
    """
    loader = (
        site.write(fault=fault, pool='init = "mine:init"')
        .serve()
        .loader(stall_warning_s=1, timeout_s=3, prefetch=1)
    )
    batches = Kept(loader)
    next(patiently(batches))
    (site.folder / "slow").touch()
    for pid in site.settled():
        os.kill(pid, signal.SIGKILL)
    stalled_by("workers are starting", batches, caplog)
    (site.folder / "slow").unlink()
    batches.go_on(undisturbed)


def test_the_last_dead_workers_stack_is_told_while_its_successor_hangs_too(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
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
    stalled_by(
        "",
        batches,
        caplog,
        "the last worker that died on stream train: SIGSEGV at sample '21'",
        "string_at",
    )
    (site.folder / "go").touch()
    assert next(patiently(batches))["y"].tolist() == list(range(16, 24))


def test_a_worker_that_stops_itself_is_named_as_stopped_and_goes_on_when_it_may(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Time in which a worker is stopped counts towards no deadline, so it is named and not killed;
    others go on without it.
    """
    module = """
    class Data:
        def __len__(self):
            return 40
        def __getitem__(self, index):
            if index == 21 and mark("stopped"):
                os.kill(os.getpid(), signal.SIGSTOP)
            return {"y": index}
    """
    bring(site, module, timeout=2).serve()
    batches = iter(site.loader(stall_warning_s=1, timeout_s=4))
    stalled_by(
        r"step 2 of epoch 0 of stream 'train': batch 2 .*worker \d+ is stopped by a signal "
        r"\(T\), \d+\.\d s so far, reading row 5, sample 21",
        batches,
        caplog,
        "\n  its stack cannot be read while it is stopped",
    )
    status = site.status()
    assert re.search(r"worker \d+ is stopped by a signal \(T\)", status["sessions"][0]["story"])
    (it,) = [w for w in status["workers"] if w["state"] == "stopped"]
    assert (it["key"], it["stage"]) == ("21", "read")
    assert it["seconds"] > 2  # over sample_timeout_s
    shown = site.shown()
    assert re.search(r"stopped .* read +'21'", shown)
    assert [plain(b)["y"].tolist() for b in site.loader()] == [
        list(range(i, i + 8)) for i in range(0, 40, 8)
    ]
    os.kill(it["pid"], signal.SIGCONT)
    assert [plain(b)["y"].tolist() for b in patiently(batches)] == [
        list(range(i, i + 8)) for i in (16, 24, 32)
    ]
    assert it["pid"] in site.workers()


# A segment of more than a MiB takes its time: it is not there before a file `go` is.
NARROW = """
import functools, os, sys
from loaderd.system import memfd
GO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "go")
fill = memfd.SegmentStore._fill
def patiently(self, segment, held, done):
    if held.closed or held.size < 1 << 20 or os.path.exists(GO):
        fill(self, segment, held, done)
    else:
        self._loop.later(0.02, functools.partial(patiently, self, segment, held, done))
memfd.SegmentStore._fill = patiently
from loaderd.__main__ import main
sys.argv[0] = "loaderd"
sys.exit(main())
"""


def test_a_batch_that_waits_for_a_larger_segment_says_so(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    module = """
    class Data:
        def __len__(self):
            return 64
        def __getitem__(self, index):
            return {"y": index}
    def ragged(samples, rng):
        size = 10 if samples[0]["y"] < 16 else 10_000_000
        return {"x": np.full(size, int(samples[0]["y"]), np.uint8)}
    """
    bring(site, module, stream='collate = "mine:ragged"')
    (site.folder / "narrow.py").write_text(NARROW)
    site.serve(program=(str(site.folder / "narrow.py"),))
    batches = iter(site.loader(stall_warning_s=0.2, timeout_s=0.6, prefetch=1))
    stalled_by(
        r"step 2 of epoch 0 of stream 'train': batch 2 .* has no slot: waiting for a larger "
        r"segment",
        batches,
        caplog,
    )
    assert "has no slot: waiting for a larger segment" in site.status()["sessions"][0]["story"]
    (site.folder / "go").touch()
    patient = site.loader(prefetch=1)
    assert [(b["x"].size, int(b["x"][0])) for b in patient][2:4] == [
        (10_000_000, 16),
        (10_000_000, 24),
    ]


def test_status_of_a_stopped_daemon_says_that_it_is_silent(site: Site) -> None:
    site.write().serve()
    site.kill(sig=signal.SIGSTOP)
    try:
        out = site.cli("status", str(site.socket))
    finally:
        site.kill(sig=signal.SIGCONT)
    assert out.returncode == 4
    assert re.search(r"the daemon at .*d\.sock has not answered for 5 s", out.stderr)


SLOW_MODULE = """
class Data:
    def __len__(self):
        return 4000  # 500 batches: more than can be made before a kill is felt
    def __getitem__(self, index):
        return {"y": index}

def slowly():
    if os.path.exists(place("slow")):
        wait_for("go", 1000)

slowly()
"""


def test_a_slow_import_after_a_template_was_killed_is_named_with_its_module_and_its_stack(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    bring(site, SLOW_MODULE).serve()
    # Stacks are taken once, just before the end of the wait: by then the new template must be that
    # far, on a slow machine too.
    batches = iter(site.loader(stall_warning_s=2, timeout_s=25, prefetch=1))
    next(patiently(batches))
    (site.folder / "slow").touch()
    os.kill(site.template(), signal.SIGKILL)
    named = (
        r"workers are starting: worker \d+ has been waiting for the fork server, which is "
        r"importing mine \(dataset of stream 'train'\), for \d+\.\d s"
    )
    stack = r"its stacks \d+\.\d s ago:\n(.*\n)* +File .*mine\.py\", line \d+ in slowly\n"
    line, error = stalled(batches, caplog)
    assert "workers are starting" in line
    assert re.search(named, error)
    assert re.search(stack, error)
    assert all(w["stack"].count("most recent call first") == 1 for w in site.status()["workers"])
    assert re.search(named, site.status()["sessions"][0]["story"])
    shown = site.shown()
    assert re.search(r"starting .* importing mine \(dataset of stream 'train'\), +\d+\.\d s", shown)
    (site.folder / "go").touch()
    assert len(list(patiently(batches))) == 499 - error_steps(error)


def error_steps(error: str) -> int:
    """Batches that were taken after the first one, before the error was raised."""
    return int(re.search(r"step (\d+)", error)[1]) - 1  # type: ignore[index]  # it is there


def test_workers_that_die_again_and_again_before_they_are_ready_are_counted(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    module = SLOW_MODULE + textwrap.dedent("""
    def init(worker_id):
        if os.path.exists(place("doomed")):
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    bring(site, module, pool='init = "mine:init"').serve()
    batches = iter(site.loader(stall_warning_s=1, timeout_s=4, prefetch=1))
    next(patiently(batches))
    (site.folder / "doomed").touch()
    for pid in site.settled():
        os.kill(pid, signal.SIGKILL)
    named = r"workers are starting.*; ([4-9]|\d\d+) died before they were ready, the last: SIGKILL"
    error = stalled_by(named, batches, caplog)
    assert re.search(named, site.status()["sessions"][0]["story"])
    (site.folder / "doomed").unlink()
    assert len(list(patiently(batches))) == 499 - error_steps(error)


def test_serve_says_what_it_waits_for_and_in_the_end_where_it_hung(site: Site) -> None:
    (site.folder / "slow").touch()
    bring(site, SLOW_MODULE).serve(wait=False)
    said = (
        r"not ready after \d+ s: opening stream 'train'; the fork server has been importing "
        r"mine \(dataset of stream 'train'\) for \d+ s"
    )
    until("what it waits for", lambda: re.search(said, site.text()))
    with pytest.raises(
        StallError,
        match=r"is starting: opening stream 'train'; the fork server has been importing mine "
        r"\(dataset of",
    ):
        next(iter(site.loader(stall_warning_s=1, timeout_s=2)))
    until(
        "its status",
        lambda: (
            "importing mine"
            in json.loads(site.cli("status", str(site.socket), "--json").stdout)["doing"]
        ),
    )
    site.kill()
    (site.folder / "hasty.py").write_text(HASTY)
    site.serve(program=(str(site.folder / "hasty.py"),), wait=False)
    until("its end", lambda: site.process.poll() is not None)
    assert site.process.returncode == 3
    end = site.text()[site.text().rindex("error") :]
    assert re.search(
        r"not ready after 10 s, importing mine \(dataset of stream 'train'\) for \d+ s", end
    )
    assert re.search(r"File .*mine\.py\", line \d+ in slowly\n", end)


HASTY = """
import functools, sys
from loaderd.engine import local
local.LocalEngine = functools.partial(local.LocalEngine, boot_s=10.0)
from loaderd.__main__ import main
sys.argv[0] = "loaderd"
sys.exit(main())
"""
