"""Accounts of training that broke, as their users would bring them: errors, hangs, crashes, bad
records, the frozen run itself.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import signal
import subprocess

import pytest

from faults.freezes.users import bring, pull, status_of, trainer
from loaderd_client import SampleError, StreamFailedError
from loaderd_testing.daemon_harness import (
    Site,
    alive,
    children,
    digest,
    indices,
    plain,
    take,
    until,
)
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_testing.pipes import line_of

DATA = """
class Data:
    def __len__(self):
        return 40
    def __getitem__(self, index):
        if index == 13:
            {what}
        return {{"x": np.full(4, index, np.float32), "y": index}}
"""
BAD = {
    "S8 divides by zero": ("index / 0", "ZeroDivisionError: division by zero"),
    "S9 prints the error and returns None": (
        "\n            try:\n                1 / 0\n            except Exception as e:\n          "
        "      print('oh no:', e)\n                return None",
        "the sample is None",
    ),
    "S12 blocks": ("threading.Event().wait()", "Timeout"),
    "S13 tries files that do not exist, for ever": (
        "\n            while True:\n                try:\n                    open(place('not "
        "there'))\n                except OSError:\n                    pass",
        "Timeout",
    ),
    "S14 reads a pipe that nobody writes": ("open(place('fifo'))", "Timeout"),
    "S15 crashes": ("ctypes.string_at(0)", "SIGSEGV"),
}


@pytest.mark.parametrize("what", BAD)
def test_s8_to_s15_the_sample_is_named_once_and_its_neighbours_are_delivered(
    site: Site, what: str
) -> None:
    code, name = BAD[what]
    os.mkfifo(site.folder / "fifo")
    bring(site, DATA.format(what=code), timeout=1.0, stream='on_error = "skip"').serve()
    loader = site.loader()
    got, bad = [], []
    for batch in loader:
        bad += batch.errors
        got.append(plain(batch))
    assert indices(got) == [i for i in range(40) if i != 13]
    assert [(b.index, b.key) for b in bad] == [(13, "13")]
    assert name in bad[0].line()
    if "Timeout" in name or "Zero" in name:
        assert "__getitem__" in bad[0].traceback  # where it was
    if what.startswith("S9"):
        until("what it printed", lambda: "oh no: division by zero" in site.text())


def test_s10_the_dead_holder_of_a_lock_is_found_out_and_other_streams_go_on(site: Site) -> None:
    module = """
    LOCK = multiprocessing.get_context("fork").Lock()  # shared by all workers, and by those that come after them
    class Data:
        def __len__(self):
            return 40
        def __getitem__(self, index):
            with LOCK:
                if os.path.exists(place("armed")) and mark("killed"):
                    os.kill(os.getpid(), signal.SIGKILL)
            return {"y": index}
    class Other:
        def __len__(self):
            return 40
        def __getitem__(self, index):
            return {"y": index}
    """
    other = '\n[streams.other]\ndataset = "mine:Other"\nbatch_size = 8\n'
    bring(site, module, timeout=0.5, batch=2, stream=other).serve()
    loader, unharmed = site.loader(), site.loader(stream="other")
    (site.folder / "armed").touch()
    with pytest.raises((SampleError, StreamFailedError), match=r"Timeout|over 0\.5 s"):
        next(iter(loader))
    assert indices(take(unharmed)) == list(range(40))
    assert '"Timeout"' in (site.folder / "d.sock.bad.jsonl").read_text()


def test_s10_a_lock_that_belongs_to_one_workers_dataset_dies_with_its_holder(site: Site) -> None:
    module = """
    class Data:
        def __init__(self):
            self.lock = multiprocessing.get_context("fork").Lock()
        def __len__(self):
            return 40
        def __getitem__(self, index):
            with self.lock:
                if index == 20 and mark("killed"):
                    os.kill(os.getpid(), signal.SIGKILL)
            return {"y": index}
    """
    got = take(bring(site, module).serve().loader())
    assert [y for b in got for y in b["y"]] == list(range(40))


def test_s20_a_nan_is_named_before_it_reaches_the_trainer_and_its_batch_can_be_shown(
    site: Site,
) -> None:
    bring(
        site,
        DATA.format(what="return {'x': np.array([1, 2, np.nan, 4], np.float32), 'y': index}"),
        stream='nonfinite = "error"',
    ).serve()
    got, errors = pull(site.loader())
    assert len(got) == 4
    assert len(errors) == 1
    assert errors[0].key == "13"
    assert "'x'" in str(errors[0])
    assert "not finite" in str(errors[0])
    shown = site.cli("preview", str(site.config), "--epoch", "0", "--step", "1", "--json")
    assert shown.returncode == 0, shown.stderr
    assert "13" in json.dumps(json.loads(shown.stdout))


def test_s20_without_the_check_a_nan_passes_as_it_is(site: Site) -> None:
    bring(
        site, DATA.format(what="return {'x': np.array([1, 2, np.nan, 4], np.float32), 'y': index}")
    ).serve()
    got = take(site.loader())
    assert [math.isnan(x) for x in got[1]["x"][5].tolist()] == [False, False, True, False]


def test_s21_check_all_lists_the_few_records_that_nobody_knew_of(site: Site) -> None:
    module = """
    class Data:
        def __len__(self):
            return 700
        def __getitem__(self, index):
            if index in (311, 640):
                raise OSError("record %d is damaged" % index)
            return {"x": np.full(4, index, np.float32)}
    """
    bring(site, module)
    done = site.cli("check", str(site.config), "--all")
    assert done.returncode == 1
    assert "record 311 is damaged" in done.stdout
    assert "record 640 is damaged" in done.stdout


def test_s23_pages_of_the_database_do_not_count_as_a_leak(site: Site) -> None:
    module = """
    class Data:
        def __len__(self):
            return 128
        def __getitem__(self, index):
            return {"x": np.full(1 << 20, index, np.uint8)}
    def small(sample, rng):
        return {"x": sample["x"][::4096].copy()}
    """
    bring(site, module)
    packed = site.cli("pack", "dataset", "mine:Data", str(site.folder / "train.lmdb"))
    assert packed.returncode == 0, packed.stderr
    pool = 'worker_memory = "100MiB"'
    bring(
        site, module, workers=1, pool=pool, source='lmdb = "train.lmdb"', transform="mine:small"
    ).serve()
    before = site.workers()
    loader = site.loader()
    for _ in range(3):
        for batch in loader:
            assert (batch["x"] == batch.indices[:, None]).all()
    assert int(status_of(before[0])["RssFile"].split()[0]) > 100 << 10
    assert site.workers() == before


def descendants(pid: int) -> list[int]:
    return [p for c in children(pid) for p in (c, *descendants(c))]


def test_s25_one_ctrl_c_ends_a_frozen_loader_and_leaves_nothing(site: Site) -> None:
    bring(site, DATA.format(what="mark('frozen'), threading.Event().wait()"), timeout=1000, batch=4)
    code = f"""
    loader = Loader({str(site.config)!r}, stream="train", output="numpy")
    for batch in loader:
        print(batch.step, flush=True)
    """
    with trainer(code) as process:
        until("the frozen sample", (site.folder / "frozen").exists)
        assert [line_of(process) for _ in range(3)] == ["0\n", "1\n", "2\n"]
        daemon = json.loads(site.cli("status", str(site.config), "--json").stdout)["pid"]
        family = until(  # its second worker may come later
            "all of its processes",
            lambda: len(now := [daemon, *descendants(daemon)]) == 4 and now,
        )
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == -signal.SIGINT
    assert out == ""
    assert err.strip().endswith("KeyboardInterrupt")
    until("nothing left", lambda: not any(map(alive, family)))
    assert not list(site.folder.glob("d.sock*")) or {
        p.name for p in site.folder.glob("d.sock*")
    } == {"d.sock.lock"}


def test_s26_a_training_that_crashes_goes_on_at_the_next_batch_without_repeating_or_skipping(
    site: Site, undisturbed: str
) -> None:
    site.write().serve()
    code = f"""
    import json, os, pathlib, pickle
    from loaderd_testing.daemon_harness import plain
    state = pathlib.Path({str(site.folder / "state.json")!r})
    loader = Loader({str(site.socket)!r}, stream="train", output="numpy")
    if state.exists():
        loader.load_state_dict(json.loads(state.read_text()))
    taken = 0
    with open({str(site.folder / "seen")!r}, "ab") as seen:
        while loader.epoch < 2:
            for batch in loader:
                pickle.dump(plain(batch), seen)
                seen.flush()
                state.write_text(json.dumps(loader.state_dict()))
                taken += 1
                if taken == 6:
                    os.kill(os.getpid(), 9)
    """
    for _ in range(6):
        with trainer(code, stdin=subprocess.DEVNULL) as process:
            _, err = process.communicate(timeout=DEADLINE_S)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, err
    got = []
    with (site.folder / "seen").open("rb") as seen:
        while True:
            try:
                got.append(pickle.load(seen))
            except EOFError:
                break
    assert digest(got) == undisturbed
