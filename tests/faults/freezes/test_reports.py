"""What people report about loaders in public, replayed: data and order.

Which report is replayed where is in README.md beside this.
"""

from __future__ import annotations

import ast
import io
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import tee
from pathlib import Path

import lmdb
import msgpack
import numpy as np
import pytest
from PIL import Image

from faults.freezes.users import bring, pull, status_of, trainer
from loaderd_client import SampleError
from loaderd_testing.daemon_harness import Site, indices, plain, take, until
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_testing.python_processes import TORCH

ROOT = Path(__file__).parents[3]


def test_a9_behind_a_slow_sample_the_other_batches_are_made_and_come_in_order(site: Site) -> None:
    module = """
    class Data:
        def __len__(self):
            return 64
        def __getitem__(self, index):
            if index == 4 and os.path.exists(place("served")):
                wait_for("go")
            return {"y": index}
    """
    bring(site, module, workers=2).serve()
    (site.folder / "served").touch()
    batches = iter(site.loader(prefetch=6))
    with taken_in_thread(batches) as first:
        until(
            "batches behind it",
            lambda: (s := site.status()["sessions"]) and s[0]["slots"]["ready"] >= 3,
        )
        (site.folder / "go").touch()
    assert first[0]["y"].tolist() == list(range(8))
    assert [y for b in batches for y in b["y"].tolist()] == list(range(8, 64))


class taken_in_thread:
    """The next batch, asked for by another thread; in the list when the block has ended."""

    def __init__(self, batches: Iterator[dict[str, np.ndarray]]) -> None:
        self.got: list[dict[str, np.ndarray]] = []
        self.thread = threading.Thread(target=lambda: self.got.append(next(batches)))

    def __enter__(self) -> list[dict[str, np.ndarray]]:
        self.thread.start()
        return self.got

    def __exit__(self, *_: object) -> None:
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()


# Root, too, is bound by file modes in what is started without CAP_DAC_OVERRIDE and
# CAP_DAC_READ_SEARCH; others are anyway.
BOUND = """
import ctypes, os, sys
for capability in (1, 2):
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
os.execv(sys.executable, [sys.executable, "-m", "loaderd", "serve", sys.argv[1]])
"""


@pytest.mark.parametrize(
    "lock",
    ["no lock file", "a lock file that nobody may write", "a lock file full of dead readers"],
)
def test_c5_c6_a_database_that_may_only_be_read_is_read_and_left_as_it_is(
    site: Site, lock: str
) -> None:
    bring(
        site,
        "class Data:\n    def __len__(self): return 40\n    def __getitem__(self, index): return "
        "{'y': index}\n",
    )
    folder = site.folder / "data"
    folder.mkdir()
    packed = site.cli("pack", "dataset", "mine:Data", str(folder / "train.lmdb"))
    assert packed.returncode == 0, packed.stderr
    database = folder / "train.lmdb"
    beside = [
        Path(f"{database}-lock"),
        database / "lock.mdb" if database.is_dir() else Path(f"{database}-lock"),
    ]
    if lock != "no lock file":
        fill_readers(database) if "dead" in lock else beside[1].touch()
    paths = [p for p in [*folder.rglob("*"), folder] if not p.is_symlink()]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in paths}
    site.config.write_text(
        site.config.read_text().replace('dataset = "mine:Data"', 'lmdb = "data/train.lmdb"')
    )
    with site.log.open("ab") as log:
        command = [sys.executable, "-c", BOUND, str(site.config)]
        site.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    until("the ready line", lambda: site.process.poll() is not None or "ready: " in site.text())
    try:
        assert int(status_of(site.pid)["CapEff"], 16) & 6 == 0
        assert [y for b in take(site.loader()) for y in b["y"].tolist()] == list(range(40))
        assert {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in paths} == before
        assert {*folder.rglob("*"), folder} == set(paths)
    finally:
        for path in paths:
            path.chmod(0o755 if path.is_dir() else 0o644)


def fill_readers(database: Path) -> None:
    """126 readers that were killed: the table is full, and nobody with a lock may read any more."""
    code = (
        "import lmdb, os, sys\n"
        "for _ in range(126):\n"
        "    if os.fork() == 0:\n"
        f"        env = lmdb.open({str(database)!r}, subdir={database.is_dir()}, readonly=True, "
        "lock=True)\n"
        "        txn = env.begin(); txn.get(b'x'); os._exit(0)\n"
        "    os.wait()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=DEADLINE_S)


def test_d10_a_stream_of_nothing_but_bad_samples_ends_and_says_so(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    module = """
    class Data:
        def __len__(self):
            return 40
        def __getitem__(self, index):
            if os.path.exists(place("served")):
                raise ValueError("garbage %d" % index)
            return {"y": index}
    """
    bring(site, module, stream='on_error = "skip"').serve()
    (site.folder / "served").touch()
    assert pull(site.loader()) == ([], [])
    (warning,) = [
        record.getMessage() for record in caplog.records if "gave no batch" in record.getMessage()
    ]
    assert "all 5 of its steps lost all their rows" in warning
    assert "garbage" in warning
    site.config.write_text(site.config.read_text().replace('"skip"', '"replace"'))
    (site.folder / "served").unlink()
    site.process.terminate()
    site.process.wait(DEADLINE_S)
    site.serve()
    (site.folder / "served").touch()
    with pytest.raises(SampleError, match="garbage"):
        next(iter(site.loader()))


def test_e3_two_ranks_of_one_daemon_share_nothing_and_miss_nothing(site: Site) -> None:
    site.write(n=97).serve()
    halves = [indices(take(site.loader(rank=r, world_size=2, batch_size=5))) for r in (0, 1)]
    assert set(halves[0]) | set(halves[1]) == set(range(97))
    assert len(halves[0]) + len(halves[1]) == 97


def test_e4_a_bad_sample_on_one_rank_leaves_all_ranks_with_as_many_batches(site: Site) -> None:
    fault = (
        "def fault(index):\n    if index in (3, 500, 501, 502, 999):\n        raise "
        "ValueError('bad')\n"
    )
    site.write(n=1003, fault=fault, stream='on_error = "skip"\nempty = "deliver"').serve()
    ranks = [site.loader(rank=r, world_size=3) for r in range(3)]
    taken = [take(loader) for loader in ranks]
    assert {len(t) for t in taken} == {len(ranks[0])} == {42}
    flat = sorted(i for t in taken for i in indices(t))
    assert flat == [i for i in range(1003) if i not in (3, 500, 501, 502, 999)]


def test_e4_two_ranks_that_meet_in_an_all_reduce_each_step_both_come_to_the_end(site: Site) -> None:
    fault = (
        "def fault(index):\n    if index % 8 < 6 and index < 200:\n        raise "
        "ValueError('bad')\n"
    )
    site.write(n=1003, fault=fault, stream='on_error = "skip"\nempty = "deliver"').serve()
    bad = sum(index % 8 < 6 for index in range(200))
    code = f"""
    import os
    import torch
    import torch.distributed as dist
    rank = int(sys.argv[1])
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method="file://{site.folder}/meeting", rank=rank, world_size=2)
    steps = rows = bad = 0
    with Loader({str(site.socket)!r}, stream="train") as loader:  # which finds its rank in the process group
        for batch in loader:
            mine = torch.tensor([len(batch["y"]), len(batch.errors)])
            dist.all_reduce(mine)
            steps, rows, bad = steps + 1, rows + int(mine[0]), bad + int(mine[1])
        print(steps == len(loader), rows, bad, flush=True)
    dist.destroy_process_group()
    """
    with trainer(code, "0", imports=TORCH) as one, trainer(code, "1", imports=TORCH) as other:
        said = [rank.communicate(timeout=DEADLINE_S) for rank in (one, other)]
    assert [out.split() for out, _ in said] == [["True", str(1003 - bad), str(bad)]] * 2, said


def test_f1_batches_held_by_tee_and_zip_stay_what_they_were(site: Site, undisturbed: str) -> None:
    site.write().serve()
    one, two = tee(site.loader(prefetch=2))
    ahead = [next(one) for _ in range(9)]
    rest = [*ahead, *one]
    assert [plain(b)["indices"] for b in two] == [plain(b)["indices"] for b in rest]
    loaders = site.loader(prefetch=1), site.loader(prefetch=3, seed=8)
    pairs = list(zip(*loaders, strict=True))
    assert len(pairs) == 13
    for batch in (b for pair in pairs for b in pair):
        assert batch["y"].tolist() == batch.indices.tolist()
        for row, index in enumerate(batch.indices.tolist()):
            assert (
                batch["x"][row] == np.random.default_rng(index).integers(0, 256, (8, 8), np.uint8)
            ).all()


def test_g1_a_users_pillow_flag_lets_no_half_picture_through(site: Site) -> None:
    for index in range(16):
        kind = "PNG" if index % 2 else "JPEG"
        data = io.BytesIO()
        Image.fromarray(np.random.default_rng(index).integers(0, 256, (64, 64, 3), np.uint8)).save(
            data, kind
        )
        cut = data.getvalue()[: -len(data.getvalue()) // 3] if index in (6, 9) else data.getvalue()
        (site.folder / f"{index}.img").write_bytes(cut)
    module = """
    from PIL import ImageFile
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    class Data:
        def __len__(self):
            return 16
        def __getitem__(self, index):
            return {"image": open(place("%d.img" % index), "rb").read(), "y": index}
    """
    op = '\n[[streams.train.transforms]]\nop = "resize"\nsize = [32, 32]\n'
    bring(site, module, batch=4, stream='on_error = "skip"\n' + op).serve()
    assert sorted(indices(take(site.loader()))) == [i for i in range(16) if i not in (6, 9)]


def modules() -> list[Path]:
    """All of the product."""
    found = [*(ROOT / "loaderd").rglob("*.py"), *(ROOT / "client").rglob("*.py")]
    assert len(found) > 100
    return found


def test_i6_no_deadline_looks_at_the_wall_clock() -> None:
    users = {}
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and (node.value.id, node.attr) == ("time", "time")
            ):
                users[str(path.relative_to(ROOT))] = node.lineno
    assert "loaderd/system/logs.py" in users, "the search finds nothing"
    assert set(users) <= {
        "loaderd/system/logs.py",
        "loaderd/server/daemon.py",
        "loaderd/system/cache_folder.py",
    }, users  # stamps of log lines, ages of files


def test_h9_no_module_of_ours_unpickles_or_runs_what_it_read() -> None:
    unsafe = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            # codecs.py runs pickles where a stream has allow_pickle = true, the other needs names
            reads_pickles = path.name in ("codecs.py", "pickle_opcodes.py")
            found = unsafe & {n.split(".")[0] for n in names}
            assert found <= ({"pickle"} if reads_pickles else set()), f"{path}: {ast.unparse(node)}"
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pickle":
                runs = node.attr in ("load", "loads", "Unpickler")
                assert not runs or path.name == "codecs.py", f"{path}: {ast.unparse(node)}"
            if isinstance(node, ast.Attribute):
                assert node.attr not in ("recv_pyobj", "send_pyobj"), f"{path}: {ast.unparse(node)}"


def test_c1_a_database_that_the_trainer_and_the_users_own_dataset_have_open_too(site: Site) -> None:
    module = """
    import lmdb
    class Data:
        def __init__(self, path):
            self.env = lmdb.open(path, readonly=True, lock=False, subdir=False)
        def __len__(self):
            return 40
        def __getitem__(self, index):
            with self.env.begin() as txn:
                return {"y": index, "entries": txn.stat()["entries"]}
    class Plain:
        def __len__(self):
            return 40
        def __getitem__(self, index):
            return {"y": index}
    """
    bring(site, module)
    packed = site.cli("pack", "dataset", "mine:Plain", str(site.folder / "train.lmdb"))
    assert packed.returncode == 0, packed.stderr
    (site.folder / "link.lmdb").symlink_to("train.lmdb")
    own = (
        f'\n[streams.own]\ndataset = "mine:Data"\ndataset_args = {{path = '
        f'"{site.folder}/link.lmdb"}}\nbatch_size = 8\n'
    )
    bring(site, module, source='lmdb = "train.lmdb"', stream=own)
    with lmdb.open(str(site.folder / "train.lmdb"), readonly=True, lock=False, subdir=False):
        site.serve()
        for stream in ("train", "own"):
            got = take(site.loader(stream=stream))
            assert [y for b in got for y in b["y"].tolist()] == list(range(40))


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


def test_h9_hostile_values_are_bad_samples_and_run_nothing(site: Site) -> None:
    bring(
        site,
        "class Data:\n    def __len__(self): return 16\n    def __getitem__(self, index): return "
        "{'y': index}\n",
    )
    packed = site.cli("pack", "dataset", "mine:Data", str(site.folder / "train.lmdb"))
    assert packed.returncode == 0, packed.stderr
    marker = site.folder / "ran"
    array = io.BytesIO()
    np.savez(array, x=np.array([Bomb(marker)], object))
    hostile = [pickle.dumps(Bomb(marker), protocol) for protocol in range(6)] + [
        array.getvalue(),
        msgpack.packb(
            {
                b"nd": True,
                b"type": "|O",
                b"kind": b"O",
                b"shape": [1],
                b"data": pickle.dumps(Bomb(marker)),
            }
        ),
        msgpack.packb(
            {b"nd": True, b"type": [["a", "|O"]], b"kind": b"V", b"shape": [1], b"data": bytes(8)}
        ),
        msgpack.packb({"y": ["|O", [1], pickle.dumps(Bomb(marker))]}),
        b"",
        os.urandom(100),
    ]
    with (
        lmdb.open(str(site.folder / "train.lmdb"), subdir=False, map_size=1 << 24) as env,
        env.begin(write=True) as txn,
    ):
        keys = [key for key, _ in txn.cursor()][-16:]
        for key, value in zip(keys[4:], hostile, strict=True):
            txn.put(key, value)
    bring(
        site,
        "",
        source='lmdb = "train.lmdb"',
        batch=4,
        stream='on_error = "skip"\nempty = "deliver"',
    ).serve()
    batches = list(site.loader())
    assert [b["y"].tolist() for b in batches] == [[0, 1, 2, 3], [], [], []]
    assert sorted(bad.index for b in batches for bad in b.errors) == list(range(4, 16))
    assert not marker.exists()
