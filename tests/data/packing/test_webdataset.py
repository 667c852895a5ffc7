"""Tar shards, as webdataset writes them and as nobody should."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from webdataset.writer import ShardWriter

from loaderd.data.errors import SourceError
from loaderd.data.packing import webdataset as shards
from loaderd.data.packing.source import SourceOptions
from loaderd_testing.packing import Packed, shard_samples
from loaderd_testing.sample_builders import coded, picture


def written(folder: Path, count: int = 7, each: int = 3) -> Path:
    """Shards of webdataset's own writer; the folder."""
    folder.mkdir(exist_ok=True)
    with ShardWriter(f"{folder}/s-%02d.tar", maxcount=each, verbose=0) as sink:
        for at in range(count):
            sink.write(
                {
                    "__key__": f"d/{at:03}",
                    "jpg": coded(picture(seed=at), "JPEG"),
                    "cls": at % 3,
                    "seg.png": coded(picture(8, 8, seed=at)[:, :, 0]),
                    "txt": f"grüße {at}",
                    "json": {"size": [at, 4], "where": {"lat": at / 2}, "none": None},
                    "npy": np.arange(at + 1, dtype=np.float32),
                }
            )
    return folder


def tar(path: Path, *members: tuple[str, bytes] | tarfile.TarInfo, **options: Any) -> Path:
    """A tar of these files, and of other members."""
    with tarfile.open(path, "w", **options) as file:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                file.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            file.addfile(info, io.BytesIO(member[1]))
    return path


def special(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def test_samples_are_those_of_webdatasets_own_reader(tmp_path: Path) -> None:
    source = written(tmp_path / "src")
    packed = Packed("webdataset", f"{source}/*.tar", tmp_path / "db", random_access=False)
    expected = {sample["__key__"]: sample for sample in shard_samples(source)}
    assert list(packed.samples) == list(expected)
    for at, (key, sample) in enumerate(packed.samples.items()):
        theirs = expected[key]
        assert sample["image"] == theirs["jpg"]
        assert sample["seg"] == theirs["seg.png"]
        assert sample["label"] == int(theirs["cls"])
        assert sample["txt"] == theirs["txt"].decode()
        assert sample["json.size"].tolist() == json.loads(theirs["json"])["size"]
        assert sample["json.where.lat"] == at / 2
        assert sample["npy"].tolist() == list(range(at + 1))
    assert packed.bad == {}


@pytest.mark.parametrize("source", ["", "/s-00.tar", "/s-0[01].tar", "/s-{00..01}.tar"])
def test_shards_are_a_folder_a_file_or_a_glob(tmp_path: Path, source: str) -> None:
    written(tmp_path / "src")
    packed = Packed("webdataset", f"{tmp_path}/src{source}", tmp_path / "db", fields=("label",))
    assert len(packed.samples) == {"": 7, "/s-00.tar": 3, "/s-0[01].tar": 6}.get(source, 6)
    assert set(packed.samples["d/000"]) == {"label"}


def test_several_sources_are_one_and_the_files_are_counted_as_they_are_looked_at(
    tmp_path: Path,
) -> None:
    looked: list[tuple[int, int]] = []
    source = written(tmp_path / "src")
    first, *more = (str(source / f"s-0{at}.tar") for at in (2, 0, 2))
    said = SourceOptions(more=tuple(more), looking=lambda *count: looked.append(count))
    with shards.WebDatasetSource(first, str(tmp_path), said) as opened:
        assert (opened.total, looked) == (4, [(1, 2), (2, 2)])
        assert opened.item(0).name == b"d/000"


def test_a_range_that_is_not_there_or_too_long_is_told(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"s-01\.tar: there is no such file"):
        Packed("webdataset", f"{tmp_path}/s-{{01..02}}.tar", tmp_path / "db")
    with pytest.raises(SourceError, match="are more than 1,000,000 files"):
        Packed("webdataset", f"{tmp_path}/s-{{0..99999999}}.tar", tmp_path / "db")


def test_fields_choose_what_is_packed(tmp_path: Path) -> None:
    source = written(tmp_path / "src", 2)
    packed = Packed("webdataset", source, tmp_path / "db", fields=("txt", "json.where"))
    assert set(packed.samples["d/001"]) == {"txt", "json.where.lat"}


def test_a_field_that_no_sample_has_is_told_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no field 'caption'.*it has field 'label'"):
        Packed(
            "webdataset", written(tmp_path / "s", 1), tmp_path / "db", fields=("label", "caption")
        )


GOOD = (("a.cls", b"1"), ("a.txt", b"one"), ("b.cls", b"2"), ("b.txt", b"two"))


@pytest.mark.parametrize(
    ("files", "name", "why"),
    [
        ([("c.cls", b"x1"), ("c.txt", b"")], "c", "field 'label': invalid literal"),
        ([("c.cls", b"1"), ("c.txt", b"\xff")], "c", "field 'txt': 'utf-8' codec can't decode"),
        ([("c.cls", b"3")], "c", "it has no field 'txt', which the first sample has"),
        ([("c.cls", b"3"), ("c.cls", b"4"), ("c.txt", b"")], "c", "two of its files would be"),
        ([("c.cls", b"3"), ("c.txt", b""), ("c.cls.txt", b"")], "", ""),
        ([("c.cls.npy", b"\x93NUMPY"), ("c.txt", b"")], "c", "field 'cls': it is a .npy file that"),
    ],
)
def test_a_bad_sample_is_named_and_the_others_are_packed(
    tmp_path: Path, files: list[tuple[str, bytes]], name: str, why: str
) -> None:
    packed = Packed("webdataset", tar(tmp_path / "s.tar", *GOOD, *files), tmp_path / "db")
    assert list(packed.samples)[:2] == ["a", "b"]
    assert list(packed.bad) == ([name] if name else [])
    assert why in packed.bad.get(name, "")


def test_files_that_the_first_sample_lacks_are_left_out_and_counted(tmp_path: Path) -> None:
    more = [("c.cls", b"3"), ("c.txt", b"three"), ("c.id", b"7")]
    packed = Packed("webdataset", tar(tmp_path / "s.tar", *GOOD, *more), tmp_path / "db")
    assert set(packed.samples["c"]) == {"label", "txt"}
    assert packed.report.tally == (("packed without field 'id', which the first one lacks", 1),)


def test_names_that_lead_elsewhere_links_and_devices_touch_nothing(tmp_path: Path) -> None:
    source = tar(
        tmp_path / "s.tar",
        special("folder", tarfile.DIRTYPE),
        special("x.cls", tarfile.SYMTYPE, "/etc/passwd"),
        special("y.cls", tarfile.LNKTYPE, "../../y"),
        special("z.cls", tarfile.CHRTYPE),
        special("pipe.cls", tarfile.FIFOTYPE),
        ("../../out.cls", b"1"),
        ("/abs.cls", b"2"),
        ("README", b"no ending"),
        ("__meta__.json", b"{}"),
    )
    before = set(tmp_path.rglob("*"))
    packed = Packed("webdataset", source, tmp_path / "db")
    assert {key: int(one["label"]) for key, one in packed.samples.items()} == {
        "../../out": 1,
        "/abs": 2,
    }
    assert set(tmp_path.rglob("*")) - before == {tmp_path / "db"}
    assert packed.report.notes == (
        "4 entries ignored, links and devices, not files: such as x.cls",
        "1 entry ignored, without an ending: such as README",
    )


def test_images_of_several_endings_are_called_by_them(tmp_path: Path) -> None:
    files = [(f"{key}.{end}", coded(picture(), kind)) for key in "ab" for end, kind in ENDINGS]
    packed = Packed("webdataset", tar(tmp_path / "s.tar", *files), tmp_path / "db")
    assert [set(one) for one in packed.samples.values()] == [{"jpg", "png", "seg"}] * 2


ENDINGS = (("jpg", "JPEG"), ("png", "PNG"), ("seg.png", "PNG"))


def test_names_that_are_not_utf_8_come_through(tmp_path: Path) -> None:
    source = tar(tmp_path / "s.tar", ("\udcff\udcfe.cls", b"1"), ("ü.cls", b"2"))
    packed = Packed("webdataset", source, tmp_path / "db")
    assert [int(one["label"]) for one in packed.samples.values()] == [1, 2]
    assert list(packed.samples)[1] == "ü"


def cut(at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at]


def forged(at: int, text: bytes) -> Callable[[bytes], bytes]:
    """With other bytes at a place of the second header, and a checksum that fits."""

    def forge(data: bytes) -> bytes:
        made = bytearray(data)
        head = made[1024:1536]
        head[at : at + len(text)] = text
        head[148:156] = b" " * 8
        head[148:156] = b"%06o\0 " % sum(head)
        made[1024:1536] = head
        return bytes(made)

    return forge


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (cut(1200), "damaged behind 'a.cls': a damaged header"),
        (cut(1024), "damaged behind 'a.cls': it is truncated"),
        (cut(1536), "damaged behind 'a.cls': it is truncated"),
        (lambda data: data[:1024] + b"x" * 512 + data[1536:], "behind 'a.cls': a damaged header"),
        (forged(124, b"77777777777\0"), "damaged behind 'a.cls': it is truncated"),
        (forged(124, b"\xff" * 12), "damaged behind 'a.cls': "),
    ],
)
def test_a_damaged_shard_is_named_with_where_and_the_samples_before_it_are_packed(
    tmp_path: Path, damage: Callable[[bytes], bytes], why: str
) -> None:
    tar(tmp_path / "s-0.tar", ("0.cls", b"0"), ("a.cls", b"1"), format=tarfile.GNU_FORMAT)
    whole = tar(tmp_path / "s-1.tar", ("a.cls", b"1"), ("b.cls", b"2"), ("c.cls", b"3"))
    whole.write_bytes(damage(whole.read_bytes()))
    packed = Packed("webdataset", f"{tmp_path}/s-*.tar", tmp_path / "db")
    assert list(packed.samples)[:2] == ["0", "a"]
    assert list(packed.bad) == ["s-1.tar"]
    assert why in packed.bad["s-1.tar"]


def test_a_header_that_claims_gigabytes_is_not_read(tmp_path: Path) -> None:
    path = tar(tmp_path / "s-1.tar", ("a.cls", b"1"), ("b.cls", b"2"))
    path.write_bytes(forged(156, b"x")(forged(124, b"00010000000\0")(path.read_bytes())))
    with path.open("r+b") as file:
        file.truncate(1 << 32)  # a sparse file
    with pytest.raises(SourceError, match="a header of 2,097,152 bytes"):
        list(shards.members(str(path)))


def test_a_compressed_shard_is_refused_with_what_unpacks_it(tmp_path: Path) -> None:
    plain = tar(tmp_path / "s.tar", *GOOD).read_bytes()
    (tmp_path / "s.tar").write_bytes(gzip.compress(plain))
    with pytest.raises(SourceError, match=r"has no samples: it is compressed.* gunzip"):
        Packed("webdataset", tmp_path / "s.tar", tmp_path / "db")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "damaged at its beginning"),
        (b"text" * 200, "damaged at its beginning"),
        (None, "there is no such file"),
    ],
)
def test_what_is_no_shard_is_one_line_that_names_it(
    tmp_path: Path, data: bytes | None, why: str
) -> None:
    path = tmp_path / "s.tar"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(SourceError, match=why) as caught:
        Packed("webdataset", path, tmp_path / "db")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", range(40))
def test_bytes_that_are_spoilt_anywhere_never_end_it_in_another_way(
    tmp_path: Path, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    path = tar(tmp_path / "s.tar", *GOOD, format=(0, 1, 2)[seed % 3])
    data = bytearray(path.read_bytes())
    for _ in range(8):
        data[int(rng.integers(0, 4096))] = int(rng.integers(0, 256))
    path.write_bytes(data)
    with contextlib.suppress(SourceError):
        for _ in shards.members(str(path)):
            pass
