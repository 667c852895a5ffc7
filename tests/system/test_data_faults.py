"""Databases that are missing, empty, cut, foreign, or change under a running daemon."""

from __future__ import annotations

import shutil
from pathlib import Path

import lmdb
import numpy as np
import pytest

from deadlines import DEADLINE_S
from loaderd_client import LoaderdError, StreamChanged
from system.site import Site, digest, indices, plain, take, until

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


def pack(site: Site, n: int = 200, name: str = "train.lmdb") -> Path:
    site.write(n=n)
    done = site.cli("pack", "dataset", "mine:Numbers", str(site.folder / name), "--args", f'{{"n": {n}}}')
    assert done.returncode == 0, done.stderr
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
            assert (batch["x"][row] == np.random.default_rng(index).integers(0, 256, (8, 8), np.uint8)).all()


@pytest.mark.parametrize("cut", ["90%", "50%", "2 pages"])
def test_a_truncated_database_is_refused_with_sizes(site: Site, cut: str) -> None:
    file = data_file(pack(site))
    size = {"90%": file.stat().st_size * 9 // 10, "50%": file.stat().st_size // 2, "2 pages": 8192}[cut]
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


def foreign(db: Path) -> None:
    nothing(db)
    with lmdb.open(str(db)) as env, env.begin(write=True) as txn:
        for i in range(10):
            txn.put(b"image-%09d" % i, b"\xff\xd8\xff whatever")


@pytest.mark.parametrize("harm", [nothing, empty, html, zeros, foreign])
def test_a_database_that_cannot_be_read_is_named(site: Site, harm) -> None:
    harm(pack(site))
    serve(site, wait=False)
    assert site.process.wait(DEADLINE_S) == 3
    assert "train.lmdb" in site.text()
    assert "Traceback" not in site.text()


def test_a_foreign_database_shows_how_to_read_it(site: Site) -> None:
    foreign(pack(site))
    serve(site, wait=False)
    assert site.process.wait(DEADLINE_S) == 3
    assert "image-000000000" in site.text()
    assert "def keys(" in site.text()


def test_a_database_cut_under_a_running_daemon_ends_the_stream_and_nothing_else(site: Site) -> None:
    db = pack(site, n=2000)
    site.write(n=100)
    site.config.write_text(CONFIG.format(extra="") + '[streams.other]\ndataset = "mine:Numbers"\nbatch_size = 8\n')
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
        with lmdb.open(str(db), subdir=db.is_dir(), map_size=1 << 28) as env, env.begin(write=True) as txn:
            txn.put(b"zzz", b"new")
    with pytest.raises(StreamChanged, match=r"train\.lmdb"):
        take(batches)


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
        "        return {'v': np.frombuffer(values[0], '<f4') * self.scale, 'name': bytes(values[1]).decode()}\n"
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
        CONFIG.format(extra='split = "0%:80%"') + '[streams.test]\nlmdb = "train.lmdb"\nsplit = "80%:100%"\nbatch_size = 8\n'
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
        + "    return {'wide': np.stack([np.full(1 + 200 * n, s['y'], np.int32) for s in samples]), 'y': np.array([s['y'] for s in samples])}\n"
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
    site.write(fault="def fault(index):\n    if index == 5:\n        raise ValueError('five')\n", stream='on_error = "skip"').serve()
    take(site.loader())
    shown = until("the quarantine", lambda: site.cli("status", str(site.socket)).stdout)
    assert "five" in shown
