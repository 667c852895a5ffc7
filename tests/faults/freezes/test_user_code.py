"""User code that behaves badly in a worker: what it does stays in that worker, and the stream is
the undisturbed one or names the sample.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import numpy as np
import pytest

from faults.freezes.users import bring, pull
from loaderd_testing.daemon_harness import Site, digest, indices, plain, take, until
from loaderd_testing.deadlines import DEADLINE_S

# Each is done at one sample in eleven, in whatever worker makes it; the stream must be byte for
# byte the undisturbed one.
HARMLESS = {
    "prints, much and without an end of line": (
        "print('x' * 100_000, end=''); os.write(1, b'y' * 5000); print('err', file=sys.stderr)"
    ),
    "closes and replaces its standard streams": (
        "if sys.stdout:\n    sys.stdout.close(); sys.stdout = None; os.close(0); os.close(2)"
    ),
    "forks a child that ends": "pid = os.fork()\nif pid == 0: os._exit(3)\nos.waitpid(pid, 0)",
    "forks a child that lives on": "if os.fork() == 0:\n    time.sleep(1000)",
    "forks a child that falls back into the worker's code": "os.fork()",
    "reaps whoever is there": "if os.fork() == 0: os._exit(0)\nos.waitpid(-1, 0)",
    "starts threads that never end": (
        "[threading.Thread(target=time.sleep, args=(1000,), daemon=True).start() for _ in range(3)]"
    ),
    "starts a thread that is no daemon": (
        "threading.Thread(target=time.sleep, args=(1000,)).start()"
    ),
    "runs programs": (
        "import subprocess\nassert subprocess.run(['true']).returncode == 0; "
        "subprocess.Popen(['sleep', '1000'])"
    ),
    "starts a process by multiprocessing": (
        "import multiprocessing as mp\np = "
        "mp.get_context('fork').Process(target=abs, args=(1,)); p.start(); p.join(); assert "
        "p.exitcode == 0"
    ),
    "changes its folder and its umask": "os.chdir('/'); os.umask(0)",
    "takes over signals": (
        "for s in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, "
        "signal.SIGCHLD): signal.signal(s, signal.SIG_DFL)\nsignal.alarm(0)"
    ),
    "blocks all signals": "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
    "sets every random seed and draws": (
        "import random; random.seed(1); np.random.seed(1); random.random(); np.random.rand(1000)"
    ),
    "empties sys.path, sys.modules and the environment": (
        "sys.path.clear(); os.environ.clear(); sys.modules.pop('json', None)"
    ),
    "turns off collection and digs deep": "import gc; gc.disable(); sys.setrecursionlimit(50)",
    "ends faulthandler and sets excepthooks": (
        "import faulthandler; faulthandler.disable(); "
        "sys.excepthook = None; threading.excepthook = None"
    ),
    "registers things for the exit": "import atexit; atexit.register(time.sleep, 1000)",
    "leaves its process group": (
        "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)"
    ),
    "limits its own descriptors": (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, "
        "(64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))"
    ),
}


GROUPS = [list(HARMLESS)[n::4] for n in range(4)]


@pytest.mark.parametrize("group", range(4))
def test_what_user_code_does_to_its_worker_changes_no_batch(
    site: Site, undisturbed: str, group: int
) -> None:
    fault = "def fault(index):\n"
    for n, deed in enumerate(GROUPS[group]):
        fault += (
            f"    if index % 11 == {n}:  # {deed}\n"
            + textwrap.indent(HARMLESS[deed], " " * 8)
            + "\n"
        )
    loader = site.write(fault=fault, timeout=10.0).serve().loader()
    assert digest(take(loader) + take(loader)) == undisturbed


# Each is done once, by one worker, which it ends or damages: its rows are made again by another.
ONCE = {
    "closes descriptors 3 to 20": "os.closerange(3, 21)",
    "closes all descriptors": "os.closerange(0, 1024)",
    "exits with 0 from C": "os._exit(0)",
    "sends itself SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "kills its process group": "os.killpg(0, signal.SIGKILL)",
    "stops itself": (
        "import subprocess; subprocess.Popen(['sh', '-c', f'until grep -q T.*stopped "
        "/proc/{os.getpid()}/status; do sleep 0.1; done; sleep 1; kill -CONT {os.getpid()}']); "
        "os.kill(os.getpid(), signal.SIGSTOP)"
    ),
    "overruns its stack": "ctypes.CFUNCTYPE(None)(0)()",
}


def test_a_worker_that_user_code_ends_once_costs_nothing(site: Site, undisturbed: str) -> None:
    fault = "def fault(index):\n"
    for n, deed in enumerate(ONCE):
        fault += (
            f"    if index == {10 * n + 12} and once('deed{n}'):  # {deed}\n        {ONCE[deed]}\n"
        )
    loader = site.write(fault=fault, timeout=10.0).serve().loader()
    assert digest(take(loader) + take(loader)) == undisturbed


# Each is done whenever its sample is made: that is a bad sample, named with what it did.
ALWAYS = {
    "calls sys.exit": ("sys.exit()", "SystemExit"),
    "calls sys.exit with a text": ("sys.exit('enough')", "enough"),
    "raises KeyboardInterrupt": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "calls os._exit with 0": ("os._exit(0)", "exit code 0"),
    "closes descriptors 3 to 20": ("os.closerange(3, 21)", "each worker that made it died"),
    "takes its timer for an error": (
        "signal.signal(signal.SIGALRM, lambda *a: 1 / 0); signal.setitimer(signal.ITIMER_REAL, "
        "0.01); time.sleep(1)",
        "ZeroDivisionError",
    ),
    "recurses without end": ("f = lambda f: f(f); f(f)", "RecursionError"),
    "asks for more memory than there is": ("np.empty(1 << 60, np.uint8)", "MemoryError"),
    "blocks in C with the GIL": ("re.match('(a+)+$', 'a' * 60 + 'b')", "Timeout"),
    "blocks in C without the GIL": ("os.read(os.pipe()[0], 1)", "Timeout"),
    "blocks all signals and sleeps": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); time.sleep(1000)",
        "Timeout",
    ),
    "catches everything for ever": (
        "\n        while True:\n            try:\n                time.sleep(0.01); raise "
        "ValueError\n            except BaseException:\n                pass",
        "Timeout",
    ),
}


def test_a_sample_whose_code_does_that_each_time_is_named(site: Site) -> None:
    fault, named = "def fault(index):\n", {}
    for n, (deed, (code, name)) in enumerate(ALWAYS.items()):
        fault += f"    if index == {8 * n + 3}:  # {deed}\n        {code}\n"
        named[8 * n + 3] = name
    got, errors = pull(site.write(fault=fault, timeout=1.0).serve().loader(batch_size=1))
    assert sorted(indices(got)) == [i for i in range(100) if i not in named]
    assert {e.index: e.key for e in errors} == {i: str(i) for i in named}
    for error in errors:
        assert re.search(named[error.index], str(error)), (named[error.index], str(error))


def test_a_process_that_user_code_started_ends_with_its_worker(site: Site) -> None:
    module = """
    class Data:
        def __len__(self):
            return 16
        def __getitem__(self, index):
            if os.path.exists(place("served")) and mark("started"):
                own = subprocess.Popen(["sleep", "1000"], start_new_session=True)
                open(place("pid"), "w").write(str(own.pid))
            return {"y": index}
    """
    bring(site, module).serve()
    (site.folder / "served").touch()
    take(site.loader())
    pid = int((site.folder / "pid").read_text())
    assert Path(f"/proc/{pid}").exists()
    site.process.terminate()
    assert site.process.wait(DEADLINE_S) == 0
    until("the program's end", lambda: not Path(f"/proc/{pid}").exists())


def test_a_view_of_a_buffer_that_the_dataset_reuses_is_copied_in_time(site: Site) -> None:
    module = """
    BUFFER = np.zeros((64, 64), np.uint8)
    class Data:
        def __len__(self):
            return 80
        def __getitem__(self, index):
            BUFFER[:] = index
            return {"all": BUFFER, "part": BUFFER[::2, 5:9], "flat": memoryview(BUFFER[0]), "turned": BUFFER.T}
    def spoil(sample, rng):
        sample["all"] += 100  # in place, of an array that is the callable's own
        sample["turned"][:] = 7
        return sample
    """
    for batch in bring(site, module, transform="mine:spoil").serve().loader():
        right = batch.indices.astype(np.uint8)
        assert (batch["all"] == (right + 100)[:, None, None]).all()
        assert (batch["part"] == right[:, None, None]).all()
        assert batch["flat"] == [bytes([i]) * 64 for i in right.tolist()]
        assert (batch["turned"] == 7).all()


ODD = """
class Data:
    def __len__(self):
        return 1200
    def __getitem__(self, index):
        sample = {"x": np.full((4, 4), index, np.float32), "y": index}
        return change(index, sample)

def change(index, sample):
"""
CHANGES = {
    "another shape": ("sample['x'] = sample['x'][:3]", ["'x'", r"\(3, 4\)", r"\(4, 4\)"]),
    "another dtype": (
        "sample['x'] = sample['x'].astype(np.float64)",
        ["'x'", "float64", "float32"],
    ),
    "one more axis": ("sample['x'] = sample['x'][None]", ["'x'", r"\(1, 4, 4\)", r"\(4, 4\)"]),
    "a field too many": ("sample['extra'] = np.zeros(100_000_000 // 8)", ["extra"]),
    "a field too few": ("del sample['y']", ["'y'"]),
    "a text for a number": ("sample['y'] = 'seven'", ["'y'"]),
    "a tuple for a dict": ("sample = (1, 2)", ["tuple"]),
    "far too much": ("sample['x'] = np.zeros((10_000, 10_000), np.float32)", ["'x'", "10000"]),
    "ten thousand fields": ("sample = {str(i): i for i in range(10_000)}", ["4,096"]),
    "itself": ("sample['x'] = sample", ["nested"]),
}


def test_a_thousandth_sample_that_differs_is_named_with_both_sides(site: Site) -> None:
    module, words = ODD, {}
    for n, (change, (code, told)) in enumerate(CHANGES.items()):
        module += f"    if index == {1000 + n}:  # {change}\n        {code}\n"
        words[1000 + n] = told
    got, errors = pull(bring(site, module + "    return sample\n", batch=100).serve().loader())
    assert len(got) == 11
    assert len(errors) == 1
    assert "step 10 of epoch 0" in str(errors[0])
    assert {bad.index for bad in errors[0].errors} == set(words)
    for bad in errors[0].errors:
        for word in (f"sample '{bad.index}'", *words[bad.index]):
            assert re.search(word, bad.line()), (word, bad.line())


def test_a5_results_and_exceptions_that_nothing_could_send_arrive_as_text(site: Site) -> None:
    module = """
    class Picky(Exception):
        def __init__(self, what, where):
            super().__init__(f"{what} at {where}")
            self.lock = threading.Lock()
    class Broken(Exception):
        def __str__(self):
            raise TypeError("no text")
    class Data:
        def __len__(self):
            return 8
        def __getitem__(self, index):
            if index == 1: return {"x": lambda: 0}
            if index == 2: return {"x": (i for i in range(3))}
            if index == 3: return {"x": open(os.devnull)}
            if index == 4: raise Picky("a fault", "row 4")
            if index == 5: raise Broken
            if index == 6: raise ValueError("m" * 50_000_000)
            return {"x": index}
    """
    got, errors = pull(bring(site, module, batch=1).serve().loader())
    assert indices(got) == [0, 7]
    texts = {e.index: str(e) for e in errors}
    assert "function" in texts[1]
    assert "generator" in texts[2]
    assert "TextIOWrapper" in texts[3]
    assert "Picky: a fault at row 4" in texts[4]
    assert "Broken" in texts[5]
    assert "ValueError: mmm" in texts[6]
    assert max(map(len, texts.values())) < 20_000
    for index in (4, 6):
        assert "__getitem__" in texts[index]


NATIVE = """
import cv2, torch
cv2.setNumThreads(4)
torch.set_num_threads(4)
cv2.resize(np.zeros((2000, 2000, 3), np.float32), (1000, 1000))  # native pools are started where the module is imported
torch.ones(600, 600) @ torch.ones(600, 600)
np.ones((600, 600)) @ np.ones((600, 600))

class Data:
    def __len__(self):
        return 48
    def __getitem__(self, index):
        image = cv2.resize(np.full((300, 300, 3), index, np.float32), (40, 40))
        total = torch.full((200, 200), float(index)) @ torch.eye(200)
        return {"image": image, "total": total[0, 0], "cv2": cv2.getNumThreads(), "torch": torch.get_num_threads(),
                 "omp": os.environ.get("OMP_NUM_THREADS", "none")}
"""


def test_a1_native_pools_that_were_started_before_the_workers_stop_nobody(site: Site) -> None:
    import cv2

    cv2.resize(np.zeros((2000, 2000, 3), np.float32), (1000, 1000))  # in the trainer too
    got = take(bring(site, NATIVE).serve().loader())
    assert indices(got) == list(range(48))
    for batch in got:
        assert (batch["image"] == np.array(batch["indices"])[:, None, None, None]).all()
        assert (batch["total"] == batch["indices"]).all()
        assert set(batch["cv2"].tolist()) <= {0, 1}
        assert set(batch["torch"].tolist()) == {1}
        assert set(batch["omp"]) == {"1"}


MATMUL = """
class Data:
    def __len__(self):
        return 32
    def __getitem__(self, index):
        product = np.full((512, 512), index, np.float32) @ np.eye(512, dtype=np.float32)
        return {"x": product[0], "threads": len(os.listdir("/proc/self/task"))}
"""


def test_a2_matrix_products_start_no_threads(site: Site) -> None:
    for batch in bring(site, MATMUL).serve().loader():
        assert (batch["x"] == batch.indices[:, None]).all()
        assert set(batch["threads"].tolist()) == {1}


def test_a2_a_number_of_threads_that_the_user_sets_is_respected(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    bring(
        site,
        NATIVE.replace("cv2.setNumThreads(4)", "").replace("torch.set_num_threads(4)", ""),
        workers=1,
    ).serve()
    got = take(site.loader())
    assert {omp for b in got for omp in b["omp"]} == {"2"}
    assert {n for b in got for n in b["torch"].tolist()} == {2}


def test_e1_every_generator_draws_by_sample_whoever_makes_it(site: Site) -> None:
    module = """
    import random, torch
    class Data:
        def __len__(self):
            return 60
        def __getitem__(self, index):
            if index == 31 and mark("killed"):
                os.kill(os.getpid(), signal.SIGKILL)
            return {"numpy": np.random.rand(), "random": random.random(), "torch": torch.rand(1)}
    def own(sample, rng):
        return sample | {"rng": rng.random()}
    """
    bring(site, module, workers=3, transform="mine:own", stream="shuffle = true").serve()
    loader = site.loader()
    got = [plain(b) for _ in range(2) for b in loader]
    for name in ("numpy", "random", "torch", "rng"):
        assert len({float(x) for b in got for x in b[name].ravel()}) == 120
    site.process.terminate()
    site.process.wait(DEADLINE_S)
    bring(site, module, workers=1, transform="mine:own", stream="shuffle = true").serve()
    loader = site.loader()
    assert digest(plain(b) for _ in range(2) for b in loader) == digest(got)


def test_an_import_in_a_sample_takes_longer_than_a_sample_may_and_is_no_fault_of_it(
    site: Site,
) -> None:
    module = """
    class Data:
        def __len__(self):
            return 40
        def __getitem__(self, index):
            if index >= 20:  # not where the stream is probed
                import heavy
            return {"index": index}
    """
    (site.folder / "heavy.py").write_text("import time\ntime.sleep(6)\n")
    bring(site, module, workers=2, timeout=2.0).serve()
    with site.loader() as loader:
        got, errors = pull(loader)
    assert errors == []
    assert [int(i) for batch in got for i in batch["index"]] == list(range(40))
    assert "killed" not in site.log.read_text()
