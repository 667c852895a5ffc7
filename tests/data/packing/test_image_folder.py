from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from loaderd.data.errors import SourceError
from loaderd.data.packing.image_folder import NO_LABEL, Listing
from loaderd_testing.sample_builders import coded, picture


def put(path: Path, data: bytes = b"x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def listed(folder: Path, saved: Path) -> tuple[list[tuple[str, int]], Listing]:
    with Listing(str(folder), str(saved)) as listing:
        return [(os.fsdecode(found.path), found.label) for found in listing.files()], listing


def test_classes_and_files_are_sorted_by_name(tmp_path: Path) -> None:
    for name in (
        "b/2.jpg",
        "b/10.jpg",
        "a/z.PNG",
        "a/sub/1.jpeg",
        "a/sub/deep/0.webp",
        "B/x.bmp",
        "a.b/1.jpg",
        "a/.hidden.jpg",
        ".git/1.jpg",
        "a/notes.txt",
    ):
        put(tmp_path / "src" / name)
    files, listing = listed(tmp_path / "src", tmp_path)
    assert listing.classes == ("B", "a", "a.b", "b")
    assert files == [
        ("B/x.bmp", 0), ("a/z.PNG", 1), ("a/sub/1.jpeg", 1), ("a/sub/deep/0.webp", 1), ("a.b/1.jpg", 2), ("b/10.jpg", 3), ("b/2.jpg", 3),
    ]  # fmt: skip
    assert listing.total == 7
    assert listing.ignored.total == 1
    assert listing.hidden == [".git"]
    assert any("hidden and left out: .git; torchvision's" in note for note in listing.notes)


def test_the_order_is_that_of_the_sorted_folders_and_in_each_of_the_sorted_names(
    tmp_path: Path,
) -> None:
    source = tmp_path / "src"
    for name in (
        "c/b/1.jpg",
        "c/a/2.jpg",
        "c/a-b/3.jpg",
        "c/0.jpg",
        "c/a/x/4.jpg",
        "d/z.jpg",
        "d/A.jpg",
    ):
        put(source / name)
    expected = []
    for name in ("c", "d"):  # as torchvision goes through a class
        for folder, _, files in sorted(os.walk(source / name, followlinks=True)):
            expected += [
                os.path.relpath(os.path.join(folder, file), source) for file in sorted(files)
            ]
    assert [name for name, _ in listed(source, tmp_path)[0]] == expected


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    for name in ("2.jpg", "1.png"):
        put(tmp_path / "src" / name)
    files, listing = listed(tmp_path / "src", tmp_path)
    assert files == [("1.png", NO_LABEL), ("2.jpg", NO_LABEL)]
    assert listing.classes == ()


def test_images_beside_class_folders_are_ignored_and_counted(tmp_path: Path) -> None:
    for name in ("stray.jpg", "a/1.jpg"):
        put(tmp_path / "src" / name)
    files, listing = listed(tmp_path / "src", tmp_path)
    assert files == [("a/1.jpg", 0)]
    assert (listing.ignored.total, listing.beside.total) == (0, 1)
    assert listing.notes == ["1 file was ignored, outside the class folders: 1 .jpg (stray.jpg)"]


def test_a_class_without_images_keeps_its_number(tmp_path: Path) -> None:
    (tmp_path / "src" / "a").mkdir(parents=True)
    put(tmp_path / "src" / "b" / "1.jpg")
    files, listing = listed(tmp_path / "src", tmp_path)
    assert files == [("b/1.jpg", 1)]
    assert listing.empty == ["a"]


def test_links_that_lead_back_end_and_other_links_are_followed(tmp_path: Path) -> None:
    put(tmp_path / "src" / "a" / "1.jpg")
    put(tmp_path / "elsewhere" / "2.jpg")
    for name, target in (("a/up", ".."), ("a/self", "."), ("a/far", "../../elsewhere"), ("b", "a")):
        (tmp_path / "src" / name).symlink_to(target)
    files, _ = listed(tmp_path / "src", tmp_path)
    assert files == [("a/1.jpg", 0), ("a/far/2.jpg", 0), ("b/1.jpg", 1), ("b/far/2.jpg", 1)]


def test_broken_links_and_things_that_are_no_files_are_listed(tmp_path: Path) -> None:
    put(tmp_path / "src" / "a" / "1.jpg")
    (tmp_path / "src" / "a" / "2.jpg").symlink_to("nowhere")
    os.mkfifo(tmp_path / "src" / "a" / "3.jpg")
    (tmp_path / "src" / "a" / "4.jpg").symlink_to("/dev/zero")
    _, listing = listed(tmp_path / "src", tmp_path)
    assert sorted(listing.unreadable) == [
        ("a/2.jpg", "a broken link"), ("a/3.jpg", "a pipe, not a file"), ("a/4.jpg", "a link to a device, not a file"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["/proc/kmsg", "/proc/self/mem", "/sys/kernel/uevent_seqnum"])
def test_files_of_the_kernel_are_left_out_and_never_read(tmp_path: Path, name: str) -> None:
    if not os.path.exists(name):
        pytest.skip(f"no {name} here")
    put(tmp_path / "src" / "a" / "1.jpg")
    (tmp_path / "src" / "a" / "2.jpg").symlink_to(name)
    files, listing = listed(tmp_path / "src", tmp_path)
    assert files == [("a/1.jpg", 0)]
    assert listing.unreadable == [("a/2.jpg", "a link to a file of the kernel (proc, sysfs)")]


def test_names_of_any_bytes_come_through(tmp_path: Path) -> None:
    names = [b"new\nline.jpg", b"\xff\xfe.jpg", "größe.jpg".encode(), b"a b 5 c.jpg"]
    (tmp_path / "src" / "a").mkdir(parents=True)
    for name in names:
        with open(os.path.join(os.fsencode(tmp_path / "src" / "a"), name), "wb") as file:
            file.write(b"x")
    with Listing(str(tmp_path / "src"), str(tmp_path)) as listing:
        assert sorted(found.path for found in listing.files()) == sorted(
            b"a/" + name for name in names
        )
        assert [found.path for found in listing.files(start=2)] == [
            found.path for found in listing.files()
        ][2:]


def test_the_fingerprint_is_of_names_sizes_and_times(tmp_path: Path) -> None:
    put(tmp_path / "src" / "a" / "1.jpg")
    first = listed(tmp_path / "src", tmp_path)[1].fingerprint
    assert listed(tmp_path / "src", tmp_path)[1].fingerprint == first
    put(tmp_path / "src" / "a" / "1.jpg", b"longer")
    assert listed(tmp_path / "src", tmp_path)[1].fingerprint != first


@pytest.mark.parametrize(
    ("make", "words"),
    [("nothing", "no such folder"), ("file", "is not a folder"), ("empty", "holds no images")],
)
def test_a_source_that_cannot_be_is_an_error_that_names_it(
    tmp_path: Path, make: str, words: str
) -> None:
    source = tmp_path / "src"
    if make == "file":
        source.touch()
    elif make == "empty":
        (source / "a").mkdir(parents=True)
    with pytest.raises(SourceError, match=words) as caught:
        Listing(str(source), str(tmp_path))
    assert str(source) in str(caught.value)


def test_no_file_is_left_in_the_spool_folder(tmp_path: Path) -> None:
    put(tmp_path / "src" / "a" / "1.jpg", coded(picture()))
    (tmp_path / "spool").mkdir()
    with Listing(str(tmp_path / "src"), str(tmp_path / "spool")):
        assert os.listdir(tmp_path / "spool") == []


@pytest.mark.parametrize("call", ["stat", "scandir"])
def test_a_folder_that_cannot_be_read_is_listed_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    for name in ("a/1.jpg", "a/locked/2.jpg", "b/3.jpg"):
        put(tmp_path / "src" / name)
    (tmp_path / "src" / "b" / "4.jpg").symlink_to("4.jpg")
    real = getattr(os, call)

    def denied(path: str) -> object:
        if str(path).endswith("locked"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path)

    monkeypatch.setattr(os, call, denied)
    files, listing = listed(tmp_path / "src", tmp_path)
    assert files == [("a/1.jpg", 0), ("b/3.jpg", 1)]
    assert sorted(set(listing.unreadable)) == [
        ("a/locked", "Permission denied"),
        ("b/4.jpg", "Too many levels of symbolic links"),
    ]
