"""Data that changes while a worker reads it: what was read then is not delivered."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from loaderd.config.parts import PartConfig
from loaderd.config.stream import StreamConfig, TransformConfig
from loaderd.data.sample import Sample
from loaderd.data.selection.tables import _mapped
from loaderd.engine.messages import UseStream
from loaderd.worker.streams import DataChanged, OpenStreams
from loaderd_testing.engine_harness import Workshop, numbers
from loaderd_testing.sample_builders import write_own

Build = Callable[..., Workshop]

READER = """
import numpy as np
class Bytes:
    def __init__(self, get):
        pass
    def __len__(self):
        return 60
    def keys(self, index):
        return [b"%08d" % index]
    def parse(self, index, values):
        return {"x": np.frombuffer(values[0], np.uint8)}

def overwrites(sample, rng, file, other, at):
    # In mid-job, as another process might.
    if not OVERWRITTEN and int(sample["x"][1]) == at:
        OVERWRITTEN.append(at)
        with open(file, "r+b") as to, open(other, "rb") as source:
            to.write(source.read())
    return sample
OVERWRITTEN = []
"""


def row(value: int, index: int) -> np.ndarray:
    x = np.full(600, value, np.uint8)
    x[1] = index
    return x


def database(path: Path, layout: str, value: int) -> Path:
    if layout == "loaderd":
        write_own(path, [Sample({"x": row(value, i)}) for i in range(60)])
    else:
        with (
            lmdb.open(str(path), subdir=False, map_size=1 << 24, lock=False) as env,
            env.begin(write=True) as txn,
        ):
            for index in range(60):
                txn.put(b"%08d" % index, row(value, index).tobytes())
    return path


@pytest.mark.parametrize("layout", ["loaderd", "reader:Bytes"])
def test_a_job_in_whose_middle_the_database_is_overwritten_delivers_nothing(
    build: Build, tmp_path: Path, layout: str
) -> None:
    old, new = database(tmp_path / "old", layout, 1), database(tmp_path / "new", layout, 2)
    (tmp_path / "reader.py").write_text(READER)
    call = TransformConfig(
        None, "reader:overwrites", {"file": str(old), "other": str(new), "at": 30}
    )
    shop = build(StreamConfig("train", lmdb=str(old), layout=layout, transforms=(call,)))
    shop.start(1)
    shop.pond(shop.facts("train"), 20)
    done = shop.run(1, shop.job("train", 20))
    assert (done.changed, done.bad) == ("", ())
    done = shop.run(1, shop.job("train", 20, start=20))
    assert f"{old}: was overwritten by another database" in done.changed
    assert (done.bad, done.size) == ((), 0)
    assert f"{old}: was overwritten" in shop.run(1, shop.job("train", 20)).changed


def test_what_cannot_be_opened_any_longer_by_a_worker_that_starts_later_has_changed(
    build: Build, tmp_path: Path
) -> None:
    old = database(tmp_path / "old", "loaderd", 1)
    shop = build(StreamConfig("train", lmdb=str(old)))
    shop.pond(shop.facts("train"), 20)
    old.write_bytes(b"not any more")
    shop.start(1)
    done = shop.run(1, shop.job("train", 20))
    assert f"{old}: is not an LMDB" in done.changed
    assert "now it cannot be opened" in done.changed


@pytest.mark.parametrize("several", [False, True])
def test_a_stream_opened_after_the_file_changed_is_not_read_by_way_of_what_another_stream_has_open(
    build: Build, tmp_path: Path, several: bool
) -> None:
    old, new = (
        database(tmp_path / "old", "reader:Bytes", 1),
        database(tmp_path / "new", "reader:Bytes", 2),
    )
    with lmdb.open(str(new), subdir=False, map_size=1 << 24, lock=False) as env:
        for _ in range(3):  # its root lies elsewhere
            with env.begin(write=True) as txn:
                for index in range(60):
                    txn.put(b"%08d" % index, row(2, index).tobytes())
    (tmp_path / "reader.py").write_text(READER)
    where: dict[str, Any] = {"parts": (PartConfig(str(old)),)} if several else {"lmdb": str(old)}
    shop = build(*[StreamConfig(name, layout="reader:Bytes", **where) for name in ("train", "val")])
    shop.start(1)
    shop.pond(shop.facts("train"), 20)
    assert shop.run(1, shop.job("train", 20)).changed == ""
    with old.open("r+b") as file:
        file.write(new.read_bytes())
    pond = shop.pond(shop.facts("val"), 20)
    done = shop.run(1, shop.job("val", 20))
    assert (done.changed, done.bad) == ("", ())
    assert pond.field(0, "x", 20)[:, 0].tolist() == [2] * 20
    shop.pond(shop.facts("train"), 20)
    words = "was replaced or written to" if several else "was written to"
    assert f"{old}: {words}" in shop.run(1, shop.job("train", 20)).changed


def test_two_workers_that_see_a_touched_database_are_one_warning(
    build: Build, tmp_path: Path
) -> None:
    old = database(tmp_path / "old", "loaderd", 1)
    shop = build(StreamConfig("train", lmdb=str(old)))
    shop.start(1, 2)
    shop.pond(shop.facts("train"), 20)
    for worker in (1, 2):
        shop.run(worker, shop.job("train", 20))
    old.touch()
    for worker in (1, 2, 1, 2):
        assert shop.run(worker, shop.job("train", 20)).changed == ""
    shop.start(3)
    assert shop.run(3, shop.job("train", 20)).changed == ""
    assert [line for line in shop.lines if "times have changed" in line] == [
        f"{old}: its modification times have changed (touch, chmod?); 61 of its values were "
        "compared and are the same, so the stream continues. "
        "If the file was written to, drain the daemon and start it again"
    ]


@pytest.mark.parametrize(("start_method", "told"), [("forkserver", 0), ("spawn", 1)])
def test_a_worker_that_starts_with_other_code_than_its_neighbours_is_told_of(
    build: Build, tmp_path: Path, start_method: str, told: int
) -> None:
    shop = build(numbers(), start_method=start_method)
    shop.start(1)
    shop.pond(shop.facts("train"), 20)
    shop.run(1, shop.job("train", 20))
    with (tmp_path / "wares.py").open("a") as file:
        file.write("\n# edited\n")
    shop.start(2)
    shop.run(2, shop.job("train", 20))
    shop.until(
        lambda: (
            sum("wares.py was edited while the daemon runs" in line for line in shop.lines) == told
        )
    )
    assert shop.pool.edited() == ["wares.py"]


@pytest.mark.parametrize("edited", [False, True])
def test_list_of_samples_that_was_removed_is_made_again_unless_the_keys_are_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edited: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "keys.txt"
    file.write_text("7\n3\n5\n")
    plan = StreamConfig("train", lmdb=str(database(tmp_path / "db", "loaderd", 1)), keys=str(file))
    first, later = OpenStreams([plan], 0, 1), OpenStreams([plan], 1, 2)
    selection = first.get("train").source.selection
    Path(selection.listed).unlink()
    _mapped.cache_clear()
    if edited:
        file.write_text("7\n3\n")
    with closing(first.get("train").source) as source:
        later.use(UseStream("train", source.identity, "", source.total, (), selection=selection))
    if edited:
        with pytest.raises(DataChanged, match="its keys or weights are not what they were"):
            later.get("train")
    else:
        with closing(later.get("train").source):
            indices = later.get("train").order.indices(0, 0, np.arange(3))
        assert indices.tolist() == [7, 3, 5]
