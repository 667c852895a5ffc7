from __future__ import annotations

from pathlib import Path

import pytest

from data.packing.test_image_folder import listed, put
from data.packing.test_writer import images
from loaderd.config.stream import StreamConfig
from loaderd.data.class_names import of_database, of_file
from loaderd.data.errors import SourceError
from loaderd.data.packing.inputs import pack_imagefolder
from loaderd.data.sources.source import Source
from loaderd_testing.sample_builders import image_samples, write, write_own


@pytest.mark.parametrize(
    "text", ["b\na\nc d", "b\na\nc d\n", "b\r\na\r\nc d\r\n", "\ufeffb\na\nc d\n\n"]
)
def test_a_file_has_a_class_a_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "names").write_text(text, newline="")
    assert of_file(str(tmp_path / "names")) == ("b", "a", "c d")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"a\nb\na\n", ":3: 'a' is already in line 1"),
        (b"a\n\nb\n", ":2: is empty"),
        (b"", ":1: is empty"),
        (b"\xff\xfe", "is not UTF-8"),
        (None, "No such file"),
    ],
)
def test_a_file_that_is_no_list_of_classes_is_an_error_that_names_it(
    tmp_path: Path, data: bytes | None, words: str
) -> None:
    if data is not None:
        (tmp_path / "names").write_bytes(data)
    with pytest.raises(SourceError) as caught:
        of_file(str(tmp_path / "names"))
    assert str(caught.value).startswith(f"{tmp_path}/names")
    assert words in str(caught.value)


def test_classes_of_a_database_are_those_that_pack_stored(tmp_path: Path) -> None:
    pack_imagefolder(str(images(tmp_path / "src")), str(tmp_path / "db"))
    assert of_database(str(tmp_path / "db")) == ("a", "b")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("foreign", "was not written by"),
        ("nameless", "has no class names"),
        ("none", "no such file"),
    ],
)
def test_a_database_without_class_names_is_an_error_that_names_it(
    tmp_path: Path, kind: str, words: str
) -> None:
    if kind == "foreign":
        write(tmp_path / "db", {b"a": b"b"})
    elif kind == "nameless":
        write_own(tmp_path / "db", image_samples())
    with pytest.raises(SourceError, match=words) as caught:
        of_database(str(tmp_path / "db"))
    assert str(tmp_path / "db") in str(caught.value)


def test_given_classes_decide_the_labels_and_a_class_without_a_folder_keeps_its_number(
    tmp_path: Path,
) -> None:
    report = pack_imagefolder(
        str(images(tmp_path / "src")), str(tmp_path / "db"), classes=("z", "b", "a")
    )
    assert report.classes == ("z", "b", "a")
    assert report.notes == ("1 of the 3 classes given has no folder here: 'z'",)
    with Source(StreamConfig("t", lmdb=str(tmp_path / "db"))) as source:
        assert source.classes == ("z", "b", "a")
        assert [(source.key(i)[0], int(source.read(i)["label"])) for i in range(6)] == [
            ("a", 2)
        ] * 3 + [("b", 1)] * 3


def test_a_folder_that_is_none_of_the_given_classes_is_an_error_that_names_it(
    tmp_path: Path,
) -> None:
    source = images(tmp_path / "src")
    put(source / "birds" / "1.jpg")
    with pytest.raises(
        SourceError,
        match=r"src: folder 'birds' is not one of the 3 classes given; did you mean 'bird'\?",
    ):
        pack_imagefolder(str(source), str(tmp_path / "db"), classes=("a", "b", "bird"))
    with pytest.raises(
        SourceError,
        match=r"folder 'a' is not one of the 1 class given \(nor 2 others\); it is 'dog': ",
    ):
        pack_imagefolder(str(source), str(tmp_path / "db"), classes=("dog",))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["src"]


def test_a_folder_without_class_folders_takes_no_classes(tmp_path: Path) -> None:
    put(tmp_path / "src" / "1.jpg")
    with pytest.raises(SourceError, match="has no class folders"):
        pack_imagefolder(str(tmp_path / "src"), str(tmp_path / "db"), classes=("a",))


def test_a_pack_with_other_classes_does_not_go_on_with_the_labels_of_the_first(
    tmp_path: Path,
) -> None:
    source = images(tmp_path / "src")

    def stop(at: int, of: int) -> None:
        if at == 6:
            raise KeyboardInterrupt

    from loaderd.data.packing import writer

    before, writer.BATCH_SAMPLES = writer.BATCH_SAMPLES, 2
    try:
        with pytest.raises(KeyboardInterrupt):
            pack_imagefolder(str(source), str(tmp_path / "db"), progress=stop)
        report = pack_imagefolder(str(source), str(tmp_path / "db"), classes=("b", "a"))
    finally:
        writer.BATCH_SAMPLES = before
    assert (report.restarted, report.resumed_at, report.classes) == (True, 0, ("b", "a"))


def test_a_folder_one_level_too_deep_is_told_that_it_has_no_classes(tmp_path: Path) -> None:
    put(tmp_path / "src" / "cat" / "1.jpg")
    (note,) = listed(tmp_path / "src" / "cat", tmp_path)[1].notes
    assert note.startswith(
        f"no classes, so no labels: the images are directly in {tmp_path}/src/cat. For labels"
    )
    assert listed(tmp_path / "src", tmp_path)[1].notes == []


def test_a_folder_one_level_too_high_is_warned_that_its_classes_may_be_parts(
    tmp_path: Path,
) -> None:
    for name in ("train/cat/1.jpg", "train/dog/2.jpg", "val/cat/3.jpg"):
        put(tmp_path / "src" / name)
    (note,) = listed(tmp_path / "src", tmp_path)[1].notes
    assert note.startswith(
        "warning: all images are one level deeper than the folders that name the classes "
        "('train', 'val')"
    )
    assert f"loaderd pack imagefolder {tmp_path}/src/train" in note
    put(tmp_path / "src" / "val" / "4.jpg")
    assert listed(tmp_path / "src", tmp_path)[1].notes == []


def test_ignored_files_are_counted_by_their_ending_each_with_an_example(tmp_path: Path) -> None:
    for name in (
        "a/1.jpg",
        "a/x.txt",
        "a/y.TXT",
        "b/2.jpg",
        "b/sub/meta.json",
        "README",
        "a/.hidden",
    ):
        put(tmp_path / "src" / name)
    for n in range(10):
        put(tmp_path / "src" / "a" / f"f.e{n}")
        put(tmp_path / "src" / "a" / f"g.e{n}")
    (note,) = [
        note for note in listed(tmp_path / "src", tmp_path)[1].notes if "were ignored, " in note
    ]
    assert note.startswith("24 files were ignored, not named like images: 2 .e0 (such as a/")
    assert note.endswith("with other endings")
    (tmp_path / "few").mkdir()
    for name in ("1.jpg", "x.txt", "y.TXT", "README"):
        put(tmp_path / "few" / name)
    (note,) = [
        note for note in listed(tmp_path / "few", tmp_path)[1].notes if "were ignored, " in note
    ]
    assert note.startswith("3 files were ignored, not named like images: 2 .txt (such as ")
    assert note.endswith("1 without an ending (README)")


def test_endings_without_end_take_no_memory(tmp_path: Path) -> None:
    put(tmp_path / "src" / "1.jpg")
    for n in range(300):
        put(tmp_path / "src" / f"x.{n}{'y' * 100}")
    listing = listed(tmp_path / "src", tmp_path)[1]
    assert listing.ignored.total == 300
    assert len(listing.ignored._kinds) <= 65
    assert len(str(listing.ignored)) < 1500
