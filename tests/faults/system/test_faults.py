"""The failure table, each row for real.

The stream that the trainer sees is compared with the undisturbed one.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from loaderd.core.order import Order
from loaderd_client import (
    DaemonGoneError,
    LoaderdError,
    RefusedError,
    SampleError,
    StallError,
    StreamChangedError,
    StreamFailedError,
)
from loaderd_testing.daemon_harness import (
    Site,
    alive,
    digest,
    indices,
    patiently,
    plain,
    pulls,
    rows,
    take,
    until,
)
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_testing.pipes import line_of


def test_a_worker_killed_from_outside_costs_nothing(site: Site, undisturbed: str) -> None:
    loader = site.write(pause=0.002).serve().loader()
    got = []
    for epoch in range(2):
        for batch in loader:
            got.append(plain(batch))
            if len(got) in (2, 5, 9, 15, 21):
                site.kill(site.workers()[-epoch])  # the first or the last, if there are two
    assert digest(got) == undisturbed


def test_one_row_whose_worker_is_killed_five_times_is_delivered(
    site: Site, undisturbed: str
) -> None:
    victim = int(Order(100, shuffle=1).indices(7, 0, np.array([20]))[0])  # in the third batch
    fault = f"""
    def fault(index):
        if index == {victim} and any(once(f"kill{{i}}") for i in range(5)):
            here = os.path.join(os.path.dirname(__file__), "here")
            open(here + ".new", "w").write(str(os.getpid()))
            os.rename(here + ".new", here)
            threading.Event().wait()
    """
    loader = site.write(fault=fault).serve().loader()
    here = site.folder / "here"
    batches = pulls(loader)
    got = [plain(next(batches)) for _ in range(2)]
    for _ in range(5):
        until("a worker at the row", here.exists)
        pid = int(here.read_text())
        here.unlink()
        site.kill(pid)
    got += [plain(next(batches)) for _ in range(24)]
    assert digest(got) == undisturbed


def test_a_template_killed_takes_no_batch_with_it(site: Site, undisturbed: str) -> None:
    loader = site.write(pause=0.002).serve().loader()
    site.workers()
    first = site.template()
    got = take(loader, 1)
    loader.set_epoch(0)
    got = []
    for batch in loader:
        got.append(plain(batch))
        if len(got) == 3:
            site.kill(first)
    got += take(loader)
    assert digest(got) == undisturbed
    assert site.template() != first


def test_a_sample_that_crashes_its_worker_once_is_delivered(site: Site, undisturbed: str) -> None:
    """Four ways to crash, each in a batch of its own (as the next test asserts): whichever of them
    loses a row, or is blamed on its sample, makes another stream of it.
    """
    fault = """
    def fault(index):
        if index == 7 and once("memory"):
            ctypes.string_at(0)
        if index == 36 and once("exit"):
            os._exit(0)
        if index == 42 and once("abort"):
            os.abort()
        if index == 85 and once("signal"):
            os.kill(os.getpid(), signal.SIGSEGV)
    """
    loader = site.write(fault=fault).serve().loader()
    assert digest(take(loader) + take(loader)) == undisturbed
    assert len(list(site.folder.glob("once-*"))) == 4


# index -> what its sample does, the name that the error has
BAD = {
    7: ("1 / 0", "ZeroDivisionError"),
    36: ("sys.exit(3)", "SystemExit"),
    42: ("ctypes.string_at(0)", "SIGSEGV"),
    63: ("threading.Event().wait()", "Timeout"),
    85: ("re.match('(a+)+$', 'a' * 60 + 'b')", "Timeout"),  # in C, and with the GIL
}
POISON = "def fault(index):\n" + "".join(
    f"    if index == {index}:\n        {what}\n" for index, (what, _) in BAD.items()
)


def test_bad_samples_are_named_and_the_rest_of_the_epoch_delivered(
    site: Site, calm: list[dict[str, Any]]
) -> None:
    """All kinds in one epoch, each in a batch of its own, so each has an error, a cause and a
    remainder of its own: what one does is not hidden by another.
    """
    loader = site.write(fault=POISON, timeout=1.0).serve().loader(drop_last=False)
    got, errors = [], []
    batches = iter(loader)
    while True:
        try:
            got.append(plain(next(batches)))
        except SampleError as error:
            errors.append(error)
        except StopIteration:
            break
    lost = [batch["indices"] for batch in calm if {*batch["indices"]} & BAD.keys()]
    assert len(lost) == len(BAD), "each in a batch of its own"
    assert sorted((error.index, error.key) for error in errors) == [(i, str(i)) for i in BAD]
    for error in errors:
        assert BAD[error.index][1] in str(error)
    assert indices(got) == [i for i in indices(calm) if not any(i in batch for batch in lost)]
    # written beside the daemon's loop, which waits for no disk
    quarantined = site.folder / "d.sock.bad.jsonl"
    until(
        "their lines in the quarantine",
        lambda: (
            quarantined.exists() and all(f'"{index}"' in quarantined.read_text() for index in BAD)
        ),
    )


def test_bad_samples_are_skipped(site: Site, calm: list[dict[str, Any]]) -> None:
    loader = site.write(fault=POISON, timeout=1.0, stream='on_error = "skip"').serve().loader()
    got = take(loader)
    assert indices(got) == [i for i in indices(calm) if i not in BAD]
    assert len(got) == 13
    right = rows(calm)
    assert rows(got) == {index: row for index, row in right.items() if index not in BAD}


def test_a_bad_sample_is_replaced_by_the_same_one_each_time(
    site: Site, calm: list[dict[str, Any]]
) -> None:
    site.write(fault=POISON, timeout=1.0, stream='on_error = "replace"').serve()
    loader = site.loader()
    seen: list[list[tuple[int, int]]] = []
    for _ in range(2):
        loader.set_epoch(0)
        got, substitutes = [], []
        for batch in loader:
            got.append(plain(batch))
            substitutes += [(e.index, e.substitute) for e in batch.errors if e.index in BAD]
        assert indices(got) == [dict(substitutes).get(i, i) for i in indices(calm)]
        assert rows(got) == {i: row for i, row in rows(calm).items() if i not in BAD}
        seen.append(sorted(substitutes))
    assert [index for index, _ in seen[0]] == list(BAD), "each is told once"
    assert seen[0] == seen[1]


def test_too_many_bad_samples_end_the_run(site: Site) -> None:
    fault = """
    def fault(index):
        if index % 4 == 0:
            raise ValueError("odd")
    """
    loader = site.write(fault=fault, stream='on_error = "skip"\nmax_errors = 10').serve().loader()
    with pytest.raises(
        StreamFailedError, match=r"11 bad samples in \d+ rows, over max_errors = 10; the last: "
    ):
        take(loader)


def test_a_worker_that_leaks_is_replaced(site: Site, undisturbed: str) -> None:
    fault = """
    hoard = []
    def fault(index):
        hoard.append(np.ones(2 << 20, np.uint8))
    """
    loader = site.write(fault=fault, pool='worker_memory = "150MB"').serve().loader()
    before = set(site.workers())
    got = take(loader) + take(loader)
    assert digest(got) == undisturbed
    batches = pulls(loader)
    until("another worker", lambda: next(batches) and not before & set(site.workers()))


@pytest.mark.parametrize(
    ("where", "code"),
    [
        ("import", "import no_such_module"),
        ("import", "1 / 0"),
        ("init", "def init(worker_id):\n    raise OSError('no scratch disk')\n"),
    ],
)
def test_user_code_that_cannot_boot_ends_serve_with_its_traceback(
    site: Site, where: str, code: str
) -> None:
    site.write(fault=code, pool='init = "mine:init"' if where == "init" else "").serve(wait=False)
    assert site.process.wait(DEADLINE_S) == 3
    assert "Traceback" in site.text()
    assert ("no scratch disk" in site.text()) == (where == "init")


def test_workers_that_all_keep_dying_fail_the_stream_with_the_cause(site: Site) -> None:
    fault = """
    def fault(index):
        if os.path.exists(os.path.join(os.path.dirname(__file__), "go")):
            os._exit(7)
    """
    loader = site.write(fault=fault).serve().loader(timeout_s=50)
    (site.folder / "go").touch()
    with pytest.raises((StreamFailedError, SampleError), match="exit code 7"):
        take(loader)


TRAINER = """
import sys, os
from loaderd_client import Loader
loader = Loader({socket!r}, stream="train", output="numpy")
batches = iter(loader)
held = [next(batches), next(batches)]
{then}
"""


def trainer(site: Site, then: str) -> subprocess.Popen[str]:
    code = TRAINER.format(socket=str(site.socket), then=then)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("forks", [False, True])
def test_a_trainer_killed_mid_lease_ends_its_session_and_nobody_elses(
    site: Site, undisturbed: str, forks: bool
) -> None:
    fork = "if os.fork() == 0:\n    import time; time.sleep(3600)\n" if forks else ""
    site.write().serve()
    loader = site.loader()
    got = take(loader)
    kids: list[int] = []
    with trainer(
        site, fork + "print('holding', flush=True)\nimport signal; signal.pause()"
    ) as other:
        try:
            assert line_of(other) == "holding\n"
            kids = [p for p in _tree(other.pid) if p != other.pid]
            assert len(site.status()["sessions"]) == 2
            other.kill()
            until("the session's end", lambda: len(site.status()["sessions"]) == 1)
            assert digest(got + take(loader)) == undisturbed
        finally:
            other.kill()
            for kid in kids:
                os.kill(kid, signal.SIGKILL)


def _tree(pid: int) -> list[int]:
    from loaderd_testing.daemon_harness import children

    return [pid, *[p for c in children(pid) for p in _tree(c)]]


def test_a_stopped_trainer_keeps_its_leases_and_harms_nobody(site: Site, undisturbed: str) -> None:
    site.write().serve()
    then = (
        "print('holding', flush=True)\nsys.stdin = None\nrest = "
        "list(batches)\nprint(len(rest), held[0]['y'].tolist() == held[0].indices.tolist(), "
        "flush=True)"
    )
    with trainer(site, then) as other:
        try:
            assert line_of(other) == "holding\n"
            other.send_signal(signal.SIGSTOP)
            loader = site.loader()
            assert digest(take(loader) + take(loader)) == undisturbed
            assert len(site.status()["sessions"]) == 2
            other.send_signal(signal.SIGCONT)
            assert line_of(other) == "11 True\n"
        finally:
            other.kill()


@pytest.mark.parametrize("at", [(1,), (6,), (12,), (13,), (1, 6, 12, 13)])
def test_a_daemon_killed_costs_a_reconnect(
    site: Site, undisturbed: str, at: tuple[int, ...]
) -> None:
    """At once, in the middle of an epoch, before its last batch, after it, and at all of these."""
    loader = site.write().serve().loader()
    got, held = [], []
    for _ in range(2):
        for batch in loader:
            held.append((batch, plain(batch)))
            got.append(held[-1][1])
            if len(got) in at:
                site.kill()
                site.serve()
    assert digest(got) == undisturbed
    assert digest(plain(b) for b, _ in held) == undisturbed


def test_a_daemon_that_never_comes_back_is_named(site: Site) -> None:
    loader = site.write().serve().loader(reconnect_s=1)
    batches = iter(loader)
    next(batches)
    site.kill()
    with pytest.raises(DaemonGoneError, match=r"d\.sock"):
        take(batches)


def test_a_successor_with_another_config_is_refused_by_name(site: Site) -> None:
    loader = site.write().serve().loader()
    batches = iter(loader)
    next(batches)
    site.kill()
    site.config.write_text(site.config.read_text().replace("seed = 7", "seed = 8"))
    site.serve()
    with pytest.raises(StreamChangedError, match="seed was 7, is 8"):
        take(batches)


def test_a_stopped_daemon_is_named_and_goes_on_when_it_wakes(site: Site, undisturbed: str) -> None:
    loader = site.write().serve().loader(timeout_s=3, stall_warning_s=1)
    got = take(patiently(loader))
    site.kill(sig=signal.SIGSTOP)
    batches = iter(loader)
    try:
        with pytest.raises(StallError, match="not answer"):  # noqa: PT012 - the batches that were ready come first
            for batch in batches:
                got.append(plain(batch))
    finally:
        site.kill(sig=signal.SIGCONT)
    got += take(patiently(batches))
    assert digest(got) == undisturbed


def test_a_pause_of_the_whole_pod_kills_nobody(site: Site, undisturbed: str) -> None:
    """In the middle of a sample, and longer than a sample may take."""
    fault = """
    def fault(index):
        here = os.path.dirname(__file__)
        if index == 42 and once("pause"):
            open(os.path.join(here, "begun"), "w").close()
            while not os.path.exists(os.path.join(here, "go")):
                time.sleep(0.01)
    """
    timeout_s = 12.0
    loader = site.write(fault=fault, timeout=timeout_s).serve().loader(prefetch=1)
    before = set(site.settled())
    batches = iter(loader)
    got = [plain(next(batches))]

    def pause() -> None:
        until("the sample", (site.folder / "begun").exists)
        # the daemon, which looks four times a second, has seen it
        select.select([], [], [], timeout_s / 12)
        family = [site.pid, site.template(), *before]
        for pid in family:
            os.kill(pid, signal.SIGSTOP)
        select.select([], [], [], timeout_s + 2)  # the pause itself
        # the daemon last: what it sees first is a worker that runs and has not moved
        for pid in reversed(family):
            os.kill(pid, signal.SIGCONT)
        # it goes on for a third of its time: enough to kill it if the pause had counted
        select.select([], [], [], timeout_s / 3)
        (site.folder / "go").touch()

    thread = threading.Thread(target=pause)
    thread.start()
    got += take(batches)
    thread.join(DEADLINE_S)
    got += take(loader)
    assert digest(got) == undisturbed
    assert before == set(site.workers())


def test_a_stopped_worker_is_not_taken_for_a_hung_one(site: Site, undisturbed: str) -> None:
    loader = site.write(pause=0.01, timeout=0.5).serve().loader(stall_warning_s=1)
    got = take(loader)
    batches = iter(loader)
    victim = site.workers()[0]
    os.kill(victim, signal.SIGSTOP)
    try:
        subprocess.run(["sleep", "1.5"], check=True)
    finally:
        os.kill(victim, signal.SIGCONT)
    got += take(batches)
    assert digest(got) == undisturbed
    assert alive(victim)


def test_a_session_that_does_not_fit_is_refused_with_the_numbers(site: Site) -> None:
    site.write(daemon='memory = "200KB"').serve()
    with pytest.raises(RefusedError, match=r"memory.*\d"):
        len(site.loader(batch_size=64, prefetch=60))
    assert len(site.loader()) == 13


def test_a_drained_daemon_leaves_with_0_and_its_leases_stay_valid(site: Site) -> None:
    loader = site.write().serve().loader(reconnect_s=1)
    batches = iter(loader)
    held = next(batches)
    before = plain(held)
    assert site.cli("drain", str(site.socket)).returncode == 0
    assert site.process.wait(DEADLINE_S) == 0
    with pytest.raises(DaemonGoneError, match="it drained"):
        take(batches)
    assert digest([plain(held)]) == digest([before])


def test_a_drained_daemon_with_a_successor_is_only_a_pause(site: Site, undisturbed: str) -> None:
    loader = site.write().serve().loader()
    got = take(loader, 0)
    for _ in range(2):
        for batch in loader:
            got.append(plain(batch))
            if len(got) == 9:
                site.process.send_signal(signal.SIGTERM)
                assert site.process.wait(DEADLINE_S) == 0
                site.serve()
    assert digest(got) == undisturbed


def test_two_daemons_on_one_socket_are_one_too_many(site: Site) -> None:
    site.write().serve()
    second = site.cli("serve", str(site.config))
    assert second.returncode == 3
    assert "already running" in second.stderr
    assert "follow it with `loaderd serve --takeover`" in second.stderr
    assert str(site.pid) in second.stderr
    assert len(site.loader()) == 13


def test_errors_share_one_base() -> None:
    for cls in (
        DaemonGoneError,
        RefusedError,
        SampleError,
        StallError,
        StreamChangedError,
        StreamFailedError,
    ):
        assert issubclass(cls, LoaderdError)


BAD_BLOCK = """
def fault(index):
    if 24 <= index < 32 or index == 50:
        raise ValueError("bad")

def joined(samples, rng):
    return {"x": np.stack([s["x"] for s in samples]), "y": np.array([s["y"] for s in samples]), "t": [s["t"] for s in samples]}
"""


def in_stored_order(site: Site) -> None:
    site.config.write_text(site.config.read_text().replace("shuffle = true", "shuffle = false"))


@pytest.mark.parametrize("batch", [1, 8])
def test_steps_whose_samples_are_all_bad_are_passed_over(site: Site, batch: int) -> None:
    site.write(n=64, fault=BAD_BLOCK, stream='on_error = "skip"')
    in_stored_order(site)
    with site.serve().loader(batch_size=batch) as loader:
        assert indices(take(loader)) == [i for i in range(64) if not (24 <= i < 32 or i == 50)]
        assert len(loader) == 64 // batch
        assert loader.state_dict()["errors"] == {"rows": 64, "bad": 9}


def test_steps_whose_samples_are_all_bad_are_delivered_without_rows_where_the_stream_says_so(
    site: Site,
) -> None:
    site.write(n=64, fault=BAD_BLOCK, stream='on_error = "skip"\nempty = "deliver"')
    in_stored_order(site)
    train = site.config.read_text().partition("[streams.train]")[2]
    site.config.write_text(
        f"{site.config.read_text()}\n[streams.joined]\ncollate = 'mine:joined'\n"
        + train.replace("streams.train", "streams.joined")
    )
    site.serve()
    for stream in ("train", "joined"):
        for output in ("numpy", "torch"):
            batches = list(site.loader(stream=stream, output=output))
            assert [b.rows for b in batches] == [8, 8, 8, 0, 8, 8, 7, 8]
            for name, dtype in (("x", "uint8"), ("y", "int64")):
                assert tuple(batches[3][name].shape) == (0, *batches[0][name].shape[1:])
                assert str(batches[3][name].dtype).endswith(dtype)
            assert batches[3]["t"] == []
            assert [error.index for error in batches[3].errors] == list(range(24, 32))


@pytest.mark.parametrize("how", ["spawn", "import in the sample"])
def test_rows_made_by_code_that_was_edited_since_other_rows_were_made_are_never_delivered(
    site: Site, how: str
) -> None:
    (site.folder / "late.py").write_text("VALUE = 1\n")
    fault = "import late" if how == "spawn" else ""
    site.write(
        fault=fault, n=4000, pause=0.005, pool='start_method = "spawn"' if how == "spawn" else ""
    )
    module = (
        (site.folder / "mine.py")
        .read_text()
        .replace("        fault(index)\n", "        import late\n")
        .replace('"y": index', '"y": late.VALUE')
    )
    (site.folder / "mine.py").write_text(module)
    site.serve()
    workers = [one["pid"] for one in site.status()["workers"]]
    batches = iter(site.loader())
    values = {int(value) for _ in range(4) for value in next(batches)["y"]}
    (site.folder / "late.py").write_text("VALUE = 22\n")
    site.kill(workers[0])
    with pytest.raises(
        StreamChangedError, match=r"late\.py was edited while the daemon runs: .*loaderd drain"
    ):
        values.update(value for batch in batches for value in batch["y"].tolist())
    assert values == {1}
