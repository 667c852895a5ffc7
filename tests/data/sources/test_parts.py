"""Several databases as one dataset."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaderd.config.parts import PartConfig
from loaderd.config.stream import StreamConfig, TransformConfig
from loaderd.data.errors import SourceError
from loaderd.data.lmdb.open_stores import OpenStores, open_stores
from loaderd.data.sample import Sample
from loaderd.data.sources import parts as parts_module
from loaderd.data.sources.part_paths import changed_parts, touched
from loaderd.data.sources.source import Source
from loaderd_testing.foreign_databases import JPEG, numbered
from loaderd_testing.sample_builders import write, write_own


def own(path: Path, numbers: range, width: int = 4, **meta: Any) -> str:
    """A database of loaderd's own with these numbers as samples."""
    return write_own(
        path, [Sample({"x": np.full(width, n, np.float32), "label": np.array(n, np.int64)}) for n in numbers], **meta
    )  # fmt: skip


def plan(*paths: str, **rest: Any) -> StreamConfig:
    return StreamConfig("t", parts=tuple(map(PartConfig, paths)), **rest)


def labels(source: Source) -> list[int]:
    return [int(source.read(index)["label"]) for index in range(source.total)]


@pytest.fixture
def few_places(monkeypatch: pytest.MonkeyPatch) -> OpenStores:
    """Two databases may be open at once."""
    monkeypatch.setattr(open_stores, "_places", 2)
    return open_stores


def test_samples_come_in_the_order_of_the_databases(tmp_path: Path) -> None:
    one, two = own(tmp_path / "b", range(3)), own(tmp_path / "a", range(3, 7))
    with Source(plan(one, two)) as source:
        assert labels(source) == list(range(7))
        assert source.parts == (one, two)
        assert source.firsts == (3,)
        assert [source.part(index) for index in (0, 2, 3, 6)] == [one, one, two, two]
        assert [source.key(index) for index in (0, 6)] == ["0", "6"]
        with pytest.raises(IndexError):
            source.read(7)


def test_a_pattern_gives_its_files_sorted_and_nothing_that_is_no_database(tmp_path: Path) -> None:
    for name, first in (("c", 4), ("a", 0), ("b", 2)):
        own(tmp_path / f"{name}.lmdb", range(first, first + 2))
    for name in ("a.lmdb-lock", "a.lmdb-00.loaderd-keys", "lock.mdb"):
        (tmp_path / name).write_bytes(b"")
    with Source(plan(str(tmp_path / "*"))) as source:
        assert labels(source) == list(range(6))
    with pytest.raises(SourceError, match=r"none\*: there is no file or folder of this pattern"):
        Source(plan(str(tmp_path / "none*")))


def test_each_part_may_have_a_layout_of_its_own(tmp_path: Path) -> None:
    files = write(tmp_path / "files", {b"%d.jpg" % n: JPEG for n in range(2)})
    raw = write(tmp_path / "raw", {b"k": JPEG})
    parts = (
        PartConfig(files),
        PartConfig(raw, {"layout": "raw", "dtype": "bytes", "fields": ["image"]}),
    )
    with Source(StreamConfig("t", parts=parts)) as source:
        assert source.layout == "files+raw"
        assert [source.key(index) for index in range(3)] == ["0.jpg", "1.jpg", "k"]
        assert bytes(source.read(2)["image"]) == JPEG


def test_a_database_that_is_named_twice_is_told(tmp_path: Path) -> None:
    path = own(tmp_path / "a", range(2))
    with Source(plan(path, str(tmp_path / "*"))) as source:
        assert source.total == 4
        assert source.warnings == (f"{path} is named twice: its samples come twice",)


def test_identity_and_values_name_all_parts_and_their_order(tmp_path: Path) -> None:
    one, two = own(tmp_path / "a", range(3)), numbered(tmp_path / "b", [JPEG] * 12)
    call = (TransformConfig(None, "m:f"),)
    said = []
    for paths in ((one, two), (two, one), (one, one), (one, two)):
        with Source(plan(*paths, transforms=call)) as source:
            said.append((source.identity, source.values))
    assert said[0] == said[3]
    assert len(set(said)) == 3
    assert said[2][1] == ""
    assert str(tmp_path) not in said[0][0]


# what does not go together


@pytest.mark.parametrize(
    ("sample", "text"),
    [
        ({"y": np.zeros(4, np.float32), "label": np.array(0, np.int64)}, "has no field 'x', which"),
        ({"x": np.zeros(4, np.float64), "label": np.array(0, np.int64)}, "field 'x' is float64 of shape"),
        ({"x": np.zeros(5, np.float32), "label": np.array(0, np.int64)}, r"is float32 of shape \(5,\), in"),
        ({"x": "text", "label": np.array(0, np.int64)}, "field 'x' is text, in"),
        ({"x": np.zeros(4, np.float32), "label": np.array(0, np.int64), "z": "t"}, "has a field 'z', which .*`loaderd pack --fields`"),
    ],
)  # fmt: skip
def test_fields_that_differ_are_told_with_both_databases(
    tmp_path: Path, sample: dict[str, Any], text: str
) -> None:
    one, other = own(tmp_path / "a", range(3)), write_own(tmp_path / "b", [Sample(sample)])
    with pytest.raises(SourceError, match=text) as caught:
        Source(plan(one, other))
    assert str(caught.value).startswith(f"{other}: ")
    assert one in str(caught.value)


def test_what_code_of_the_users_may_bring_together_is_not_compared(tmp_path: Path) -> None:
    one, other = own(tmp_path / "a", range(3)), own(tmp_path / "b", range(1), width=5)
    with Source(plan(one, other, transforms=(TransformConfig(None, "m:f"),))) as source:
        assert source.total == 4
    with Source(plan(one, other, pad={"x": {"value": 0}})) as source:
        assert source.total == 4


def test_classes_that_differ_are_told_with_the_label(tmp_path: Path) -> None:
    one = own(tmp_path / "a", range(3), classes=("cat", "dog"))
    other = own(tmp_path / "b", range(3), classes=("cat", "emu"))
    with pytest.raises(SourceError, match=r"b: label 1 is 'emu', in .*a it is 'dog'"):
        Source(plan(one, other))
    with Source(plan(one, own(tmp_path / "c", range(2)))) as source:
        assert source.classes == ("cat", "dog")


def test_a_part_that_cannot_be_opened_is_named_and_the_others_are_closed(tmp_path: Path) -> None:
    one = own(tmp_path / "a", range(3))
    with pytest.raises(SourceError, match="gone: there is no such file"):
        Source(plan(one, str(tmp_path / "gone")))
    assert not open_stores.all()


def test_a_first_sample_that_is_bad_says_nothing_of_the_fields(tmp_path: Path) -> None:
    one = numbered(tmp_path / "a", [JPEG] * 3)
    other = write(tmp_path / "b", {b"0": b"", b"1": JPEG})
    with Source(plan(one, other, layout="files")) as source:
        assert source.total == 5


# few descriptors


def test_more_databases_than_places_are_read_and_their_values_stay(
    tmp_path: Path, few_places: OpenStores
) -> None:
    paths = [own(tmp_path / f"{n:02d}", range(n * 3, n * 3 + 3)) for n in range(9)]
    with Source(plan(*paths)) as source:
        order = np.random.default_rng(1).permutation(source.total).tolist()
        kept = [source.read(index) for index in order]
        assert sum(store.is_open for store in few_places.all()) <= 2
        assert [int(sample["label"]) for sample in kept] == order
        assert [sample["x"].tolist() for sample in kept] == [[float(n)] * 4 for n in order]


def test_a_stream_that_keeps_a_database_open_takes_it_from_the_others(
    tmp_path: Path, few_places: OpenStores
) -> None:
    paths = [own(tmp_path / f"{n:02d}", range(3)) for n in range(5)]
    with Source(plan(*paths)) as several, Source(StreamConfig("one", lmdb=paths[0])) as one:
        held = one.read(2)["x"]
        assert labels(several) == [0, 1, 2] * 5
        assert held.tolist() == [2.0] * 4


def test_thousands_of_databases_need_few_descriptors(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    first = Path(own(tmp_path / "0000.lmdb", range(1)))
    for number in range(1, 1000):
        (tmp_path / f"{number:04d}.lmdb").write_bytes(first.read_bytes())
    before = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    places = parts_module.open_stores._places
    try:
        open_stores._places = 42
        with Source(plan(str(tmp_path / "*.lmdb"))) as source:
            assert labels(source) == [0] * 1000
            assert len(os.listdir("/proc/self/fd")) - before <= 2 * 43
    finally:
        open_stores._places = places
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# rows in bulk


@pytest.mark.parametrize("places", [2, 64])
@pytest.mark.parametrize("order", ["stored", "shuffled"])
def test_rows_in_bulk_are_the_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: int, order: str
) -> None:
    monkeypatch.setattr(open_stores, "_places", places)
    paths = [own(tmp_path / f"{n}", range(n * 10, n * 10 + 10)) for n in range(6)]
    with Source(plan(*paths)) as source:
        from loaderd.data.sample_schema import SampleSchema

        specs = SampleSchema.of(source.read(0), collated=False, where="").specs
        bulk = source.bulk(specs)
        assert bulk is not None
        indices = np.arange(8, 33)
        if order == "shuffled":
            np.random.default_rng(2).shuffle(indices)
        x, label = np.zeros((25, 4), np.float32), np.zeros(25, np.int64)
        assert bulk.write(indices, {"x": x, "label": label})
        assert label.tolist() == indices.tolist()
        assert (x == indices[:, None]).all()


def test_databases_of_others_are_not_copied_in_bulk(tmp_path: Path) -> None:
    with Source(plan(numbered(tmp_path / "a", [JPEG] * 12))) as source:
        assert source.bulk(()) is None


# changes


@pytest.mark.parametrize("places", [2, 64])
def test_a_part_that_is_replaced_is_named_once_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: int
) -> None:
    monkeypatch.setattr(open_stores, "_places", places)
    paths = [own(tmp_path / f"{n}", range(3)) for n in range(5)]
    with Source(plan(*paths)) as source:
        assert labels(source) == [0, 1, 2] * 5
        assert source.changed() == ""
        os.replace(own(tmp_path / "new", range(3, 6)), paths[2])
        assert source.changed() == ""
        with contextlib.suppress(SourceError):  # where it has to be opened again
            source.read(6)
        assert f"{paths[2]}: was replaced by another file" in source.changed()


def test_another_process_compares_all_parts(tmp_path: Path) -> None:
    paths = [own(tmp_path / f"{n}", range(3)) for n in range(3)]
    with Source(plan(*paths)) as source:
        state, several = source.state, source.plan
        assert source.expect(state) == ""
    assert changed_parts(several, state) == ""
    assert not touched(several, state)
    os.utime(paths[1])
    assert touched(several, state)
    assert changed_parts(several, state) == ""
    with Source(several) as source:
        assert source.expect(state) == ""
    os.replace(own(tmp_path / "new", range(4)), paths[1])
    assert changed_parts(several, state) == f"{paths[1]}: was replaced or written to"
    with Source(several) as source:
        assert source.expect(state) == f"{paths[1]}: was replaced or written to"
    os.unlink(paths[1])
    assert "there is no such file" in changed_parts(several, state)
    assert touched(several, state)


def test_a_file_that_comes_to_a_pattern_is_noticed(tmp_path: Path) -> None:
    own(tmp_path / "a.lmdb", range(3))
    several = plan(str(tmp_path / "*.lmdb"))
    with Source(several) as source:
        state = source.state
    own(tmp_path / "b.lmdb", range(3))
    with Source(several) as source:
        assert source.expect(state) == "there were 1 databases, now there are 2"
    assert changed_parts(several, state).endswith("there were 1 databases, now there are 2")
