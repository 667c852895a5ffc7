from __future__ import annotations

from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from loaderd.config.stream import StreamConfig
from loaderd.data.errors import SampleFault, SourceError
from loaderd.data.lmdb import record_format
from loaderd.data.pipeline.pipeline import SamplePipeline
from loaderd.data.pipeline.request import SampleRequest
from loaderd.data.sample import Sample
from loaderd.data.sources.source import Source
from loaderd_testing.sample_builders import coded, image_samples, picture, silent, write, write_own


def plan(path: str, layout: str = "auto", **rest: Any) -> StreamConfig:
    return StreamConfig(
        "t",
        lmdb=path,
        layout=layout if ":" not in layout else f"loaderd_testing.sample_builders{layout}",
        **rest,
    )


def pairs(path: Path, n: int = 2) -> str:
    items = {b"img-%d" % i: coded(picture(seed=i)) for i in range(n)} | {
        b"lab-%d" % i: b"%d" % (i * 10) for i in range(n)
    }
    return write(path, items)


def test_our_own_layout_is_recognised_and_says_what_it_knows(tmp_path: Path) -> None:
    path = write_own(
        tmp_path / "db", image_samples(3), [b"a/0.png", b"a/1.png", b"\xff.png"], classes=("a", "b")
    )
    for layout in ("auto", "loaderd"):
        with Source(plan(path, layout)) as source:
            assert (source.total, source.layout, source.keys, source.classes, source.form) == (
                3,
                "loaderd",
                "stored",
                ("a", "b"),
                "dict",
            )
            assert [source.key(i) for i in range(3)] == ["a/0.png", "a/1.png", b"\xff.png".hex()]
            assert not source.many
            sample = source.read(1)
            assert sample.encoded == {"image"}
            assert int(sample["label"]) == 1
            del sample


def test_without_stored_names_the_key_is_the_index(tmp_path: Path) -> None:
    with Source(plan(write_own(tmp_path / "db", image_samples(2)))) as source:
        assert source.keys == "index"
        assert source.key(1) == "1"


def test_an_index_outside_is_an_error_and_not_another_sample(tmp_path: Path) -> None:
    with Source(plan(write_own(tmp_path / "db", image_samples(2)))) as source:
        for index in (-1, 2):
            with pytest.raises(IndexError, match=f"sample {index} of 2"):
                source.read(index)


def test_the_identity_is_of_the_content_and_not_of_the_path(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    identities = []
    for place, n in (("a", 2), ("elsewhere/b", 2), ("c", 3)):
        with Source(plan(pairs(tmp_path / place, n), ":Pairs", layout_args={"n": 2})) as source:
            identities.append(source.identity)
    assert identities[0] == identities[1]
    assert identities[0] != identities[2]  # other entries


def test_equal_keys_and_sizes_with_other_bytes_are_other_values(tmp_path: Path) -> None:
    found = []
    for place, fill in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        items = {b"img-%d" % i: fill * 100 for i in range(200)} | {
            b"lab-%d" % i: b"%03d" % i for i in range(200)
        }
        with Source(
            plan(write(tmp_path / place, items), ":Pairs", layout_args={"n": 200})
        ) as source:
            found.append((source.identity, source.values))
    assert found[0] == found[1]
    assert found[0][0] == found[2][0]
    assert found[0][1] != found[2][1]


def test_a_packed_database_has_all_of_its_values_in_its_identity(tmp_path: Path) -> None:
    with Source(plan(write_own(tmp_path / "db", image_samples(2)))) as source:
        assert source.values == ""


def test_at_most_64_values_of_a_users_database_are_looked_at(tmp_path: Path) -> None:
    with Source(plan(pairs(tmp_path / "db", 150), ":Pairs", layout_args={"n": 150})) as source:
        drawn = source._reader.drawn  # pyright: ignore[reportAttributeAccessIssue] - of a class that draws
        assert 48 <= len(drawn) <= 64
        assert sum(key.startswith(b"img") for key in drawn) == sum(
            key.startswith(b"lab") for key in drawn
        )


def test_a_users_layout_reads_several_keys_a_sample(tmp_path: Path) -> None:
    with Source(plan(pairs(tmp_path / "db"), ":Pairs")) as source:
        assert (source.total, source.layout, source.keys, source.classes) == (
            2,
            "loaderd_testing.sample_builders:Pairs",
            "stored",
            ("cat", "dog"),
        )
        assert source.key(1) == "img-1"
        sample = SamplePipeline(source.plan, source).make(SampleRequest(0, 0, 1), silent)
        np.testing.assert_array_equal(sample["image"], picture(seed=1))
        assert sample.images == {"image"}
        assert int(sample["label"]) == 10


def test_a_users_layout_reads_named_databases(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    with lmdb.open(path, subdir=False, max_dbs=2, map_size=1 << 20) as env:
        info = env.open_db(b"info")
        with env.begin(write=True) as txn:
            txn.put(b"n", b"2", db=info)
            txn.put(b"0", b"zero")
            txn.put(b"1", b"one")
    with Source(plan(path, ":Inner")) as source:
        assert source.total == 2
        assert dict(source.read(1))["word"] == "one"


def test_a_missing_key_is_a_bad_sample_that_names_key_and_path(tmp_path: Path) -> None:
    path = pairs(tmp_path / "db", 2)
    with (
        Source(plan(path, ":Pairs", layout_args={"n": 3})) as source,
        pytest.raises(SampleFault) as caught,
    ):
        SamplePipeline(source.plan, source).make(SampleRequest(0, 0, 2), silent)
    assert "img-2" in caught.value.message
    assert path in caught.value.message


def test_a_layout_with_wrong_keys_is_a_source_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"keys\(0\).*expected a list of bytes"):
        Source(plan(pairs(tmp_path / "db"), ":WrongKeys"))


def test_a_layout_whose_keys_fail_is_a_source_error_with_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(
        SourceError,
        match=r"FailingKeys\.keys\(0\) failed: LookupError: no index file and a second line",
    ) as caught:
        Source(plan(pairs(tmp_path / "db"), ":FailingKeys"))
    assert "sample_builders.py" in caught.value.traceback


def test_a_layout_with_wrong_parse_is_a_bad_sample(tmp_path: Path) -> None:
    with (
        Source(plan(pairs(tmp_path / "db"), ":WrongParse")) as source,
        pytest.raises(SampleFault, match="returned list: expected a dict"),
    ):
        SamplePipeline(source.plan, source).make(SampleRequest(0, 0, 0), silent)


def test_a_layout_that_cannot_be_built_closes_the_database(tmp_path: Path) -> None:
    path = pairs(tmp_path / "db")
    with pytest.raises(SourceError, match="unexpected keyword argument 'm'"):
        Source(plan(path, ":Pairs", layout_args={"m": 1}))
    with lmdb.open(path, subdir=False):  # the library would refuse a path that is still open
        pass


def test_an_unknown_database_tells_what_it_has_and_how_to_go_on(tmp_path: Path) -> None:
    path = write(
        tmp_path / "db",
        {b"%08d" % i: b"\x07%d" % i for i in range(5)} | {b"about": b"hello"},
    )
    with pytest.raises(SourceError) as caught:
        Source(plan(path))
    text = str(caught.value)
    for part in (
        path,
        "6 entries",
        "00000000 (",
        "about (5 bytes, text",
        "Pack what it was made of",
        '`loaderd pack lmdb` takes it as --args \'{"layout": "mylayout:MyLayout"}\'',
        "class MyLayout",
        'b"%08d" % index',
        "def parse",
    ):
        assert part in text
    example = text[text.index("    class") :]
    assert len(example.splitlines()) == 12
    compile("if True:\n" + example, "example", "exec")


def test_the_example_class_reads_the_database_that_it_was_made_for(tmp_path: Path) -> None:
    path = write(tmp_path / "db", {b"%08d" % i: b"\x07%d" % i for i in range(5)})
    with pytest.raises(SourceError) as caught:
        Source(plan(path))
    text = str(caught.value)
    namespace: dict[str, Any] = {}
    exec("if True:\n" + text[text.index("    class") :], namespace)
    import loaderd_testing.sample_builders as material

    material.Example = namespace["MyLayout"]  # type: ignore[attr-defined] # as if it lay in the user's module
    with Source(plan(path, ":Example")) as source:
        assert source.total == 5
        assert bytes(source.read(3)["image"]) == b"\x073"


def test_an_empty_database_and_one_of_another_layouts_name_say_so(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"empty \(0 entries\)"):
        Source(plan(write(tmp_path / "db", {})))
    with pytest.raises(SourceError, match="not in this version; there are auto, loaderd, pyxis"):
        Source(plan(pairs(tmp_path / "db2"), "imagenet"))
    with pytest.raises(SourceError, match="this version; did you mean 'scene_text'"):
        Source(plan(pairs(tmp_path / "db3"), "scene_txt"))


def test_a_named_database_is_shown_as_one(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    with lmdb.open(path, subdir=False, max_dbs=2, map_size=1 << 20) as env:
        env.open_db(b"data_db")
    with pytest.raises(SourceError, match=r"data_db \(a named database\)"):
        Source(plan(path))


def test_a_pack_that_was_not_finished_is_not_read(tmp_path: Path) -> None:
    path = write(tmp_path / "db", {record_format.PART_KEY: b"x", record_format.sample_key(0): b"y"})
    with pytest.raises(
        SourceError, match="is an unfinished `loaderd pack`: run the same command again"
    ):
        Source(plan(path))


@pytest.mark.parametrize("count", [0, 1, 3, 1 << 40])
def test_metadata_that_contradicts_the_samples_is_refused(tmp_path: Path, count: int) -> None:
    items = {
        record_format.sample_key(i): record_format.pack_sample(Sample({"x": np.arange(3)}))
        for i in range(2)
    }
    path = write(
        tmp_path / "db",
        items
        | {record_format.META_KEY: record_format.pack_meta(record_format.DatabaseMeta(count, "x"))},
    )
    with pytest.raises(
        SourceError,
        match=f"holds no samples|its metadata says {count} samples, which do not match its entries",
    ):
        Source(plan(path))


def test_damaged_metadata_is_refused_and_a_damaged_sample_is_bad(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="not msgpack"):
        Source(
            plan(
                write(tmp_path / "a", {record_format.META_KEY: record_format.META_MAGIC + b"\xc1"})
            )
        )
    path = write(
        tmp_path / "b",
        {
            record_format.sample_key(0): b"garbage",
            record_format.META_KEY: record_format.pack_meta(record_format.DatabaseMeta(1, "x")),
        },
    )
    with Source(plan(path)) as source, pytest.raises(SampleFault) as caught:
        SamplePipeline(source.plan, source).make(SampleRequest(0, 0, 0), silent)
    assert (caught.value.stage, caught.value.error) == ("read", "DamagedRecord")


def test_two_streams_on_one_file_share_it_and_close_it_apart(tmp_path: Path) -> None:
    path = write_own(tmp_path / "db", image_samples(2))
    first, second = Source(plan(path)), Source(plan(path))
    first.close()
    first.close()
    assert second.read(0)["image"] is not None
    second.close()


def test_exactly_one_of_lmdb_and_dataset_is_needed() -> None:
    with pytest.raises(SourceError, match="set one of lmdb, parts and dataset"):
        Source(StreamConfig("t"))


def test_what_describes_a_foreign_database_is_refused_for_our_own(tmp_path: Path) -> None:
    path = write_own(tmp_path / "db", image_samples(2))
    for layout in ("auto", "loaderd"):
        with pytest.raises(
            SourceError,
            match=r"fields is set, and goes with databases of other .*; leave fields out; Loader\(fields",
        ):
            Source(plan(path, layout, fields=("image",)))
