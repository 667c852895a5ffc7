"""Databases that are missing, empty, cut, foreign, or change under a running daemon."""

from __future__ import annotations

import functools
import shutil
import signal
import struct
import subprocess
import tempfile
from pathlib import Path

import lmdb
import numpy as np
import pytest

from loaderd.data.lmdb import record_format
from loaderd_client import ConfigError, LoaderdError, StreamChangedError
from loaderd_testing.daemon_harness import Site, digest, indices, plain, take, until
from loaderd_testing.deadlines import DEADLINE_S

CONFIG = """
[daemon]
socket = "d.sock"
[workers]
num_workers = 2
sample_timeout_s = 20
[streams.train]
lmdb = "train.lmdb"
{extra}
batch_size = 8
"""


@functools.cache
def packed(module: str, dataset: str, args: str) -> bytes:
    """What `loaderd pack dataset` writes of a class of a module of this text, made once for all
    tests.
    """
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder))
        name, _, _ = dataset.partition(":")
        (site.folder / f"{name}.py").write_text(module)
        done = site.cli("pack", "dataset", dataset, "packed.lmdb", "--args", args)
        assert done.returncode == 0, done.stderr
        return (site.folder / "packed.lmdb").read_bytes()


def pack(site: Site, n: int = 200, name: str = "train.lmdb") -> Path:
    module = (site.write(n=n).folder / "mine.py").read_text()
    (site.folder / name).write_bytes(packed(module, "mine:Numbers", f'{{"n": {n}}}'))
    return site.folder / name


def data_file(db: Path) -> Path:
    return db / "data.mdb" if db.is_dir() else db


def serve(site: Site, extra: str = "", wait: bool = True) -> Site:
    site.config.write_text(CONFIG.format(extra=extra))
    return site.serve(wait=wait)


def test_a_packed_database_is_served_whole(site: Site) -> None:
    pack(site)
    got = take(serve(site).loader())
    assert indices(got) == list(range(200))
    for batch in got:
        assert batch["y"].tolist() == batch["indices"]
        for row, index in enumerate(batch["indices"]):
            assert (
                batch["x"][row] == np.random.default_rng(index).integers(0, 256, (8, 8), np.uint8)
            ).all()


@pytest.mark.parametrize("cut", ["90%", "50%", "2 pages"])
def test_a_truncated_database_is_refused_with_sizes(site: Site, cut: str) -> None:
    file = data_file(pack(site))
    size = {"90%": file.stat().st_size * 9 // 10, "50%": file.stat().st_size // 2, "2 pages": 8192}[
        cut
    ]
    with file.open("r+b") as handle:
        handle.truncate(size)
    serve(site, wait=False)
    assert site.process.wait(DEADLINE_S) == 3
    assert "train.lmdb" in site.text()
    assert str(size) in site.text()
    assert "Traceback" not in site.text()


def nothing(db: Path) -> None:
    shutil.rmtree(db) if db.is_dir() else db.unlink()


def empty(db: Path) -> None:
    nothing(db)
    with lmdb.open(str(db), subdir=db.suffix == "") as env:
        env.sync()


def html(db: Path) -> None:
    data_file(db).write_text("<!DOCTYPE html><html>not found</html>" * 300)


def zeros(db: Path) -> None:
    data_file(db).write_bytes(b"")


def foreign(db: Path, value: bytes = b"\xff\xd8\xff whatever") -> None:
    nothing(db)
    with lmdb.open(str(db)) as env, env.begin(write=True) as txn:
        for i in range(10):
            txn.put(b"image-%09d" % i, value)


@pytest.mark.parametrize("harm", [nothing, empty, html, zeros, foreign])
def test_a_database_that_cannot_be_read_is_named(site: Site, harm) -> None:
    harm(pack(site))
    serve(site, wait=False)
    assert site.process.wait(DEADLINE_S) == 3
    assert "train.lmdb" in site.text()
    assert "Traceback" not in site.text()


def test_a_foreign_database_shows_how_to_read_it(site: Site) -> None:
    foreign(pack(site), b"\x07\x05 whatever")
    serve(site, wait=False)
    assert site.process.wait(DEADLINE_S) == 3
    assert "image-000000000" in site.text()
    assert "def keys(" in site.text()


def test_a_database_cut_under_a_running_daemon_ends_the_stream_and_nothing_else(site: Site) -> None:
    db = pack(site, n=2000)
    site.write(n=100)
    site.config.write_text(
        CONFIG.format(extra="") + '[streams.other]\ndataset = "mine:Numbers"\nbatch_size = 8\n'
    )
    site.serve()
    loader = site.loader()
    other = site.loader(stream="other")
    batches = iter(loader)
    next(batches)
    with data_file(db).open("r+b") as handle:
        handle.truncate(8192)
    with pytest.raises(LoaderdError, match=r"train\.lmdb"):
        take(batches)
    assert len(take(other)) == 13


@pytest.mark.parametrize("how", ["written to", "replaced"])
def test_a_database_that_changes_ends_the_stream_by_name(site: Site, how: str) -> None:
    db = pack(site, n=2000)
    pack(site, n=2001, name="new.lmdb")
    serve(site)
    batches = iter(site.loader())
    next(batches)
    if how == "replaced":
        data_file(site.folder / "new.lmdb").rename(data_file(db))
    else:
        with (
            lmdb.open(str(db), subdir=db.is_dir(), map_size=1 << 28) as env,
            env.begin(write=True) as txn,
        ):
            txn.put(b"zzz", b"new")
    with pytest.raises(StreamChangedError, match=r"train\.lmdb"):
        take(batches)


ROW = 1024
OVERWRITE = {  # by what program, and with which arguments: old and new are of one size
    "cp": ["cp", "new.lmdb", "train.lmdb"],
    # as `rsync --inplace` does
    "rsync": ["dd", "if=new.lmdb", "of=train.lmdb", "conv=notrunc", "bs=4096", "status=none"],
}
FIXED = """
import numpy as np
class Fixed:
    def __init__(self, first):
        self.first = first
    def __len__(self):
        return 900
    def __getitem__(self, index):
        return {"x": np.full(1024, self.first, np.uint8), "y": index}
class Layout:
    def __init__(self, get):
        pass
    def __len__(self):
        return 900
    def keys(self, index):
        return [b"%08d" % index]
    def parse(self, index, values):
        return {"x": np.frombuffer(values[0], np.uint8), "y": index}
"""


def equal_sized(site: Site, layout: str) -> None:
    """train.lmdb, rows of ones, and new.lmdb, rows of twos: equal in size, entries, transactions,
    keys and sizes of values.
    """
    (site.folder / "fixed.py").write_text(FIXED)
    for name, first in (("train", 1), ("new", 2)):
        path = site.folder / f"{name}.lmdb"
        if layout == "loaderd":
            path.write_bytes(packed(FIXED, "fixed:Fixed", f'{{"first": {first}}}'))
        else:
            with (
                lmdb.open(str(path), subdir=False, map_size=1 << 24, lock=False) as env,
                env.begin(write=True) as txn,
            ):
                for index in range(900):
                    txn.put(b"%08d" % index, bytes([first]) * ROW)
    old, new = (data_file(site.folder / name) for name in ("train.lmdb", "new.lmdb"))
    assert old.stat().st_size == new.stat().st_size
    # not even its meta pages would tell
    assert old.read_bytes()[: 2 * 4096] == new.read_bytes()[: 2 * 4096]


@pytest.mark.parametrize("program", OVERWRITE)
@pytest.mark.parametrize("layout", ["loaderd", "fixed:Layout"])
def test_a_database_overwritten_by_one_like_it_ends_the_stream_before_a_new_row_is_delivered(
    site: Site, layout: str, program: str
) -> None:
    equal_sized(site, layout)
    serve(site, f'layout = "{layout}"')
    batches = iter(site.loader(prefetch=1))
    rows = [next(batches)["x"].copy()]
    subprocess.run(OVERWRITE[program], cwd=site.folder, check=True, timeout=DEADLINE_S)
    with pytest.raises(StreamChangedError, match=r"train\.lmdb"):
        rows.extend(batch["x"].copy() for batch in batches)
    assert {int(value) for value in np.unique(np.concatenate(rows))} == {1}


def leaf_keys(page: bytes | bytearray) -> list[bytes]:
    """The keys on a leaf page of a database; none on any other page."""
    flags, lower = struct.unpack_from("=HH", page, 10)
    nodes = struct.unpack_from(f"={(lower - 16) // 2}H", page, 16) if flags == 2 else ()
    return [
        bytes(page[at + 8 : at + 8 + struct.unpack_from("=H", page, at + 6)[0]]) for at in nodes
    ]


@pytest.mark.parametrize("layout", ["loaderd", "fixed:Layout"])
def test_one_damaged_page_costs_its_own_samples_and_no_others(site: Site, layout: str) -> None:
    equal_sized(site, layout)
    file = data_file(site.folder / "train.lmdb")
    data = bytearray(file.read_bytes())
    key = record_format.sample_key if layout == "loaderd" else lambda index: b"%08d" % index
    leaf, keys = next(
        (at, keys)
        for at in range(0, len(data), 4096)
        if key(100) in (keys := leaf_keys(data[at : at + 4096]))
    )
    lost = [index for index in range(900) if key(index) in keys]
    data[leaf + 10 : leaf + 12] = b"\xff\xff"
    file.write_bytes(data)
    serve(site, f'layout = "{layout}"\non_error = "skip"')
    batches = list(site.loader(prefetch=1))
    assert 1 < len(lost) < 10
    assert [bad.index for batch in batches for bad in batch.errors] == lost
    assert sum(batch.rows for batch in batches) == 900 - len(lost)


@pytest.mark.parametrize("layout", ["loaderd", "fixed:Layout"])
def test_a_new_loader_reads_the_new_file_when_nobody_is_left_who_began_with_the_old_one(
    site: Site, layout: str
) -> None:
    equal_sized(site, layout)
    extra = f'layout = "{layout}"'
    site.config.write_text(
        CONFIG.format(extra=extra)
        + f'[streams.val]\nlmdb = "train.lmdb"\n{extra}\nbatch_size = 8\n'
    )
    site.serve()
    old, other = site.loader(prefetch=1), site.loader(prefetch=1)
    val = site.loader(stream="val", prefetch=1)
    batches, others, vals = iter(old), iter(other), iter(val)
    for each in (batches, others, vals):
        assert {int(value) for value in np.unique(next(each)["x"])} == {1}
    subprocess.run(OVERWRITE["rsync"], cwd=site.folder, check=True, timeout=DEADLINE_S)
    with pytest.raises(
        StreamChangedError,
        match=r"train\.lmdb.*to read the new data, end all sessions of this stream",
    ):
        take(batches)
    # somebody is left who began with the old one
    with pytest.raises(StreamChangedError, match=r"train\.lmdb"):
        len(site.loader())
    other.close()
    with pytest.raises(
        StreamChangedError,
        match=r"(data|values) was .* restore the old data and settings, or start a new training",
    ):
        take(batches)
    new = site.loader()
    rows = [batch["x"].copy() for batch in new]
    assert sum(map(len, rows)) == 900
    assert {int(value) for value in np.unique(np.concatenate(rows))} == {2}
    # the other stream of the same file is not served from it unsaid
    with pytest.raises(StreamChangedError, match=r"train\.lmdb"):
        take(vals)
    assert {int(value) for value in np.unique(next(iter(site.loader(stream="val")))["x"])} == {2}
    assert site.process.poll() is None


@pytest.mark.parametrize("layout", ["loaderd", "fixed:Layout"])
@pytest.mark.parametrize("how", ["rsync", "mv"])
def test_a_database_replaced_while_nobody_uses_it_is_read_anew_by_the_next_loader(
    site: Site, layout: str, how: str
) -> None:
    equal_sized(site, layout)
    site.config.write_text(CONFIG.format(extra=f'layout = "{layout}"'))
    site.serve()
    old = site.loader()
    assert {int(value) for batch in old for value in np.unique(batch["x"])} == {1}
    old.close()
    if how == "mv":
        data_file(site.folder / "new.lmdb").replace(data_file(site.folder / "train.lmdb"))
    else:
        subprocess.run(OVERWRITE[how], cwd=site.folder, check=True, timeout=DEADLINE_S)
    assert {int(value) for batch in site.loader() for value in np.unique(batch["x"])} == {2}
    assert site.process.poll() is None


@pytest.mark.parametrize("layout", ["loaderd", "fixed:Layout"])
def test_a_worker_that_starts_after_a_database_was_overwritten_does_not_take_the_new_one_for_the_old(
    site: Site, layout: str
) -> None:
    equal_sized(site, layout)
    site.write(workers=1)
    site.config.write_text(
        CONFIG.format(extra=f'layout = "{layout}"').replace("num_workers = 2", "num_workers = 1")
    )
    site.serve()
    batches = iter(site.loader(prefetch=1))
    rows = [next(batches)["x"].copy()]
    (worker,) = site.settled()
    site.kill(worker, signal.SIGSTOP)  # it shall not be the one that finds out
    subprocess.run(OVERWRITE["cp"], cwd=site.folder, check=True, timeout=DEADLINE_S)
    site.kill(worker)
    with pytest.raises(StreamChangedError, match=r"train\.lmdb"):
        rows.extend(batch["x"].copy() for batch in batches)
    assert {int(value) for value in np.unique(np.concatenate(rows))} == {1}


@pytest.mark.parametrize("layout", ["loaderd", "fixed:Layout"])
@pytest.mark.parametrize("how", ["a reconnect", "a state"])
def test_another_database_of_equal_keys_and_sizes_is_not_taken_for_the_one_that_was(
    site: Site, layout: str, how: str
) -> None:
    equal_sized(site, layout)
    serve(site, f'layout = "{layout}"')
    loader = site.loader(prefetch=1)
    batches = iter(loader)
    assert {int(value) for value in np.unique(next(batches)["x"])} == {1}
    state = loader.state_dict()
    site.kill()
    (site.folder / "new.lmdb").rename(site.folder / "train.lmdb")
    site.serve()
    if how == "a reconnect":
        with pytest.raises(StreamChangedError, match=r"(data|values) was"):
            take(batches)
    else:
        resumed = site.loader()
        resumed.load_state_dict(state)
        with pytest.raises(ConfigError, match=r"(data|values) was"):
            next(iter(resumed))


@pytest.mark.parametrize("layout", ["loaderd", "fixed:Layout"])
def test_a_database_that_was_only_touched_is_one_warning_and_no_end(
    site: Site, layout: str
) -> None:
    equal_sized(site, layout)
    serve(site, f'layout = "{layout}"')
    batches = iter(site.loader())
    rows = [next(batches)["x"].copy()]
    for _ in range(3):
        data_file(site.folder / "train.lmdb").touch()
        rows.append(next(batches)["x"].copy())
    data_file(site.folder / "train.lmdb").chmod(0o600)
    rows.extend(batch["x"].copy() for batch in batches)
    assert sum(map(len, rows)) == 900
    # slow turns of the daemon may be told of, too
    told = [line for line in site.text().splitlines() if "event=worker_note" in line]
    assert len(told) == 1
    assert "warning" in told[0]
    assert "train.lmdb" in told[0]
    assert "the same" in told[0]


def test_a_users_own_layout_is_served(site: Site) -> None:
    db = site.folder / "train.lmdb"
    with lmdb.open(str(db), map_size=1 << 24) as env, env.begin(write=True) as txn:
        txn.put(b"length", b"50")
        for i in range(50):
            txn.put(b"a/%d" % i, np.full(4, i, "<f4").tobytes())
            txn.put(b"b/%d" % i, b"name %d" % i)
    (site.folder / "own.py").write_text(
        "import numpy as np\n"
        "class Layout:\n"
        "    def __init__(self, get, scale):\n"
        "        self.n, self.scale = int(bytes(get(b'length'))), scale\n"
        "    def __len__(self):\n"
        "        return self.n\n"
        "    def keys(self, index):\n"
        "        return [b'a/%d' % index, b'b/%d' % index]\n"
        "    def parse(self, index, values):\n"
        "        return {'v': np.frombuffer(values[0], '<f4') * self.scale, 'name': "
        "bytes(values[1]).decode()}\n"
    )
    serve(site, 'layout = "own:Layout"\nlayout_args = {scale = 2.0}')
    got = take(site.loader())
    assert indices(got) == list(range(50))
    for batch in got:
        assert batch["v"].tolist() == [[2.0 * i] * 4 for i in batch["indices"]]
        assert batch["name"] == [f"name {i}" for i in batch["indices"]]
        assert batch["keys"] == [f"a/{i}" for i in batch["indices"]]


def test_two_streams_of_one_file_read_the_same(site: Site) -> None:
    pack(site)
    site.config.write_text(
        CONFIG.format(extra='split = "0%:80%"')
        + '[streams.test]\nlmdb = "train.lmdb"\nsplit = "80%:100%"\nbatch_size = 8\n'
    )
    site.serve()
    train, test = indices(take(site.loader())), indices(take(site.loader(stream="test")))
    assert len(train) == 160
    assert sorted(train + test) == list(range(200))


def test_growing_batches_get_a_larger_segment(site: Site) -> None:
    site.write(stream='collate = "mine:collate"')
    (site.folder / "mine.py").write_text(
        (site.folder / "mine.py").read_text()
        + "\ndef collate(samples, rng):\n"
        + "    n = max(s['y'] for s in samples)\n"
        + (
            "    return {'wide': np.stack([np.full(1 + 200 * n, s['y'], np.int32) for s in "
            "samples]), 'y': np.array([s['y'] for s in samples])}\n"
        )
    )
    site.config.write_text(site.config.read_text().replace("shuffle = true", "shuffle = false"))
    site.serve()
    loader = site.loader()
    held = list(loader)
    got = [plain(b) for b in held]
    for batch in got:
        assert batch["y"].tolist() == batch["indices"]
        assert batch["wide"].shape == (len(batch["indices"]), 1 + 200 * max(batch["indices"]))
        assert (batch["wide"] == np.array(batch["indices"])[:, None]).all()
    assert len(got) == 13
    assert digest(take(loader)) != digest(got)  # another epoch


def test_a_text_that_outgrows_its_tail_is_delivered(site: Site) -> None:
    fault = """
    def text(index):
        return "x" * (index * 40)
    """
    site.write(fault=fault)
    module = (site.folder / "mine.py").read_text().replace('"s%d" % index', "text(index)")
    (site.folder / "mine.py").write_text(module)
    site.serve()
    got = take(site.loader())
    assert sorted(indices(got)) == list(range(100))
    for batch in got:
        assert [len(t) for t in batch["t"]] == [40 * i for i in batch["indices"]]


def test_status_shows_the_quarantine(site: Site) -> None:
    site.write(
        fault="def fault(index):\n    if index == 5:\n        raise ValueError('five')\n",
        stream='on_error = "skip"',
    ).serve()
    take(site.loader())
    until("the quarantine", lambda: "five" in site.shown())
