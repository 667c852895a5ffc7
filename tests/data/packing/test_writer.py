from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from PIL import Image

from loaderd.config.stream import StreamConfig
from loaderd.data.errors import SourceError
from loaderd.data.images.decode import decode
from loaderd.data.jpeg import rewrite, tiles
from loaderd.data.lmdb import record_format
from loaderd.data.packing import (
    files,
    inputs,
    item_samples,
    pack_state,
    part_file,
    stored_images,
    writer,
)
from loaderd.data.packing.inputs import pack_dataset, pack_imagefolder
from loaderd.data.pipeline.pipeline import SamplePipeline
from loaderd.data.pipeline.request import SampleRequest
from loaderd.data.sources.source import Source
from loaderd_testing import sample_builders
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_testing.sample_builders import (
    QUARTER_ROWS,
    by_pillow,
    coded,
    op,
    picture,
    sampled,
    silent,
)


def images(folder: Path, count: int = 6, kind: str = "png") -> Path:
    for at in range(count):
        path = folder / "ba"[at % 2] / f"{at:03d}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(coded(picture(seed=at), {"png": "PNG", "jpg": "JPEG"}[kind]))
    return folder


def contents(path: Path) -> dict[bytes, bytes]:
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env, env.begin() as txn:
        return dict(txn.cursor())


def test_a_folder_of_images_keeps_bytes_labels_names_and_classes(tmp_path: Path) -> None:
    source = images(tmp_path / "src")
    looked: list[tuple[int, int]] = []
    report = pack_imagefolder(
        str(source), str(tmp_path / "db"), progress=lambda at, of: looked.append((at, of))
    )
    assert (report.samples, report.classes, report.bad, report.bad_count, report.resumed_at) == (
        6,
        ("a", "b"),
        (),
        0,
        0,
    )
    assert report.bytes == (tmp_path / "db").stat().st_size
    assert looked == [(at, 6) for at in range(7)]
    assert sorted(os.listdir(tmp_path)) == ["db", "src"]
    with Source(StreamConfig("t", lmdb=str(tmp_path / "db"))) as opened:
        assert [opened.key(i) for i in range(6)] == [
            "a/001.png",
            "a/003.png",
            "a/005.png",
            "b/000.png",
            "b/002.png",
            "b/004.png",
        ]
        assert opened.classes == ("a", "b")
        sample_pipeline = SamplePipeline(opened.plan, opened)
        for index in range(6):
            sample = sample_pipeline.make(SampleRequest(0, 0, index), silent)
            assert sample["label"].dtype == np.int64
            assert int(sample["label"]) == index // 3
            np.testing.assert_array_equal(
                sample["image"], picture(seed=int(opened.key(index)[2:5]))
            )
        stored = opened.read(0)["image"]
        assert bytes(stored) == (source / "a" / "001.png").read_bytes()
        del stored


def test_a_flat_folder_is_packed_without_labels(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "1.png").write_bytes(coded(picture()))
    assert pack_imagefolder(str(tmp_path / "src"), str(tmp_path / "db")).classes == ()
    with Source(StreamConfig("t", lmdb=str(tmp_path / "db"))) as source:
        assert list(source.read(0)) == ["image"]


def test_the_same_folder_gives_the_same_database_and_identity(tmp_path: Path) -> None:
    source = images(tmp_path / "src")
    first = pack_imagefolder(str(source), str(tmp_path / "one"))
    os.rename(source, tmp_path / "moved")
    second = pack_imagefolder(str(tmp_path / "moved"), str(tmp_path / "two"))
    assert first.identity == second.identity
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    (tmp_path / "moved" / "a" / "001.png").write_bytes(coded(picture(seed=99)))
    assert (
        pack_imagefolder(str(tmp_path / "moved"), str(tmp_path / "three")).identity
        != first.identity
    )


def test_bad_files_are_listed_and_left_out(tmp_path: Path) -> None:
    source = images(tmp_path / "src")
    (source / "a" / "000.jpg").write_bytes(b"")
    (source / "a" / "004.png").write_bytes(coded(picture())[:100])
    (source / "b" / "zzz.jpg").write_text("<html>")
    (source / "b" / "link.jpg").symlink_to("nowhere")
    told: list[str] = []
    report = pack_imagefolder(
        str(source), str(tmp_path / "db"), bad=lambda name, reason: told.append(name)
    )
    assert report.samples == 6
    assert report.bad_count == 4
    assert (
        dict(report.bad).keys()
        == {"b/link.jpg", "a/000.jpg", "a/004.png", "b/zzz.jpg"}
        == set(told)
    )
    assert dict(report.bad)["a/000.jpg"] == "the image is empty (0 bytes)"
    assert "truncated or damaged PNG" in dict(report.bad)["a/004.png"]
    assert "not an image" in dict(report.bad)["b/zzz.jpg"]


def test_many_bad_files_are_counted_and_the_first_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_state, "LISTED", 3)
    monkeypatch.setattr(inputs, "LISTED", 3)
    source = images(tmp_path / "src")
    for at in range(10):
        (source / "a" / f"bad{at}.jpg").write_bytes(b"x")
    report = pack_imagefolder(str(source), str(tmp_path / "db"))
    assert (len(report.bad), report.bad_count, report.samples) == (3, 10, 6)


def test_nothing_but_bad_files_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "1.jpg").write_bytes(b"no image")
    with pytest.raises(SourceError, match="not one of 1 samples can be read"):
        pack_imagefolder(str(tmp_path / "src"), str(tmp_path / "db"))
    assert os.listdir(tmp_path) == ["src"]


def test_a_target_that_exists_is_never_touched(tmp_path: Path) -> None:
    source = images(tmp_path / "src")
    (tmp_path / "db").write_text("precious")
    with pytest.raises(SourceError, match="already exists"):
        pack_imagefolder(str(source), str(tmp_path / "db"))
    with pytest.raises(SourceError, match="already exists"):
        pack_dataset("loaderd_testing.sample_builders:Numbers", {}, str(tmp_path / "db"))
    assert (tmp_path / "db").read_text() == "precious"
    with pytest.raises(SourceError, match="there is no folder"):
        pack_imagefolder(str(source), str(tmp_path / "no" / "db"))


def test_a_second_pack_into_the_same_target_is_refused(tmp_path: Path) -> None:
    source = images(tmp_path / "src")
    with open(tmp_path / "db.part", "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        words = f"pid {os.getpid()} is packing into it right now"
        with pytest.raises(SourceError, match=words):
            pack_imagefolder(str(source), str(tmp_path / "db"))
    assert pack_imagefolder(str(source), str(tmp_path / "db")).samples == 6


SCRIPT = """
import math, sys
from loaderd.data.packing import writer as pack
from loaderd.data.packing.inputs import pack_imagefolder
pack.BATCH_SAMPLES, pack.BATCH_S = 5, math.inf  # what lies between two transactions is no question of time
stop = int(sys.argv[3])
def progress(at, of):
    if at == stop:
        print("there", flush=True)
        sys.stdin.read()
pack_imagefolder(sys.argv[1], sys.argv[2], progress=progress)
"""


def killed(source: Path, target: Path, at: int) -> None:
    """A pack into `target` by another process, killed with -9 after `at` files."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(source), str(target), str(at)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        process.send_signal(signal.SIGKILL)
        assert process.wait(DEADLINE_S) == -signal.SIGKILL


def test_a_pack_killed_with_9_goes_on_where_it_was_and_ends_the_same(tmp_path: Path) -> None:
    source = images(tmp_path / "src", 24)
    (source / "a" / "bad.png").write_bytes(b"x")
    expected = pack_imagefolder(str(source), str(tmp_path / "undisturbed"))
    target = tmp_path / "db"
    for at in (7, 13, 22):
        killed(source, target, at)
        assert not target.exists()
    report = pack_imagefolder(str(source), str(target))
    assert report.resumed_at == 21  # four batches of five, and the bad one
    assert not report.restarted
    assert (report.samples, report.identity, report.bad) == (
        expected.samples,
        expected.identity,
        expected.bad,
    )
    assert contents(target) == contents(tmp_path / "undisturbed")
    assert sorted(os.listdir(tmp_path)) == ["db", "src", "undisturbed"]


def test_a_pack_whose_source_has_changed_begins_anew(tmp_path: Path) -> None:
    source = images(tmp_path / "src", 12)
    killed(source, tmp_path / "db", 8)
    (source / "a" / "extra.png").write_bytes(coded(picture()))
    report = pack_imagefolder(str(source), str(tmp_path / "db"))
    assert report.restarted
    assert (report.resumed_at, report.samples) == (0, 13)
    assert record_format.PART_KEY not in contents(tmp_path / "db")


@pytest.mark.parametrize("harm", ["cut", "garbage"])
def test_a_damaged_part_is_begun_anew(tmp_path: Path, harm: str) -> None:
    source = images(tmp_path / "src", 12)
    killed(source, tmp_path / "db", 8)
    part = tmp_path / "db.part"
    if harm == "cut":
        os.truncate(part, part.stat().st_size // 2)
    else:
        part.write_bytes(b"garbage" * 1000)
    report = pack_imagefolder(str(source), str(tmp_path / "db"))
    assert report.restarted
    assert report.samples == 12


def test_a_pack_killed_behind_its_last_sample_still_knows_a_tuple_from_a_dict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_end(self: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(writer.PackRun, "finish", no_end)
        with pytest.raises(KeyboardInterrupt):
            pack_dataset("loaderd_testing.sample_builders:Numbers", {"n": 5}, str(tmp_path / "db"))
    report = pack_dataset("loaderd_testing.sample_builders:Numbers", {"n": 5}, str(tmp_path / "db"))
    assert report.resumed_at == 5
    assert (
        record_format.unpack_meta(contents(tmp_path / "db")[record_format.META_KEY]).form == "tuple"
    )


FULL = """
import math, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
from loaderd.data.packing import writer as pack
from loaderd.data.errors import SourceError
from loaderd.data.packing.inputs import pack_imagefolder
pack.BATCH_SAMPLES, pack.BATCH_S = 5, math.inf  # what lies between two transactions is no question of time
try:
    pack_imagefolder(sys.argv[1], sys.argv[2])
except SourceError as error:
    print(error)
"""


def test_a_full_disk_is_one_clear_error_and_the_same_command_goes_on_later(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    for at in range(40):
        Image.fromarray(np.random.default_rng(at).integers(0, 256, (64, 64, 3), np.uint8)).save(
            source / f"{at:02d}.png"
        )
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(source), str(tmp_path / "db")],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert done.stderr == ""
    assert "no space left on the disk" in done.stdout
    assert str(tmp_path / "db") in done.stdout
    assert len(done.stdout.splitlines()) == 1
    assert not (tmp_path / "db").exists()
    report = pack_imagefolder(str(source), str(tmp_path / "db"))
    assert report.resumed_at > 0
    assert report.samples == 40


def test_a_dataset_is_baked_as_it_comes(tmp_path: Path) -> None:
    report = pack_dataset(
        "loaderd_testing.sample_builders:Numbers", {"n": 5, "fails_at": 3}, str(tmp_path / "db")
    )
    assert (report.samples, report.bad, report.classes) == (
        4,
        (("3", "ValueError: sample 3 is broken"),),
        ("even", "odd"),
    )
    with Source(StreamConfig("t", lmdb=str(tmp_path / "db"))) as source:
        assert (source.total, source.form, source.keys) == (4, "tuple", "index")
        samples = [
            SamplePipeline(source.plan, source).make(SampleRequest(0, 0, i), silent)
            for i in range(4)
        ]
        assert [sample["0"].tolist() for sample in samples] == [[i] * 4 for i in (0, 1, 2, 4)]
        assert [int(sample["1"]) for sample in samples] == [0, 1, 0, 0]
        del samples


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"ids": [1, 2, 3]}, "field 'ids.2' is an array of int64, in the first sample it is missing"),
        ({"ids": [1, 2.5]}, "field 'ids.1' is an array of float64, in the first sample it is an array of int64"),
        ({"ids": "12"}, "field 'ids' is text, in the first sample it is missing"),
    ],
)  # fmt: skip
def test_a_dataset_that_no_stream_could_stack_is_refused_at_the_first_sample_that_differs(
    tmp_path: Path, other: dict[str, Any], words: str
) -> None:
    sample_builders.HELD[:] = [{"ids": [1, 2]}, {"ids": [3, 4]}, other]
    with pytest.raises(SourceError, match=f"sample 2: {words}: no stream") as caught:
        pack_dataset("loaderd_testing.sample_builders:Holding", {}, str(tmp_path / "db"))
    assert "Return each list of numbers as one array" in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_pictures_text_bytes_and_odd_shapes_of_a_dataset_come_back(tmp_path: Path) -> None:
    sample_builders.HELD[:] = [
        {
            "im": Image.fromarray(picture()),
            "t": "wörter",
            "b": b"\xff\xd8\xff",
            "x": np.zeros((0, 3), np.float32),
            "big": np.arange(9000),
        },
        {
            "im": Image.fromarray(picture(9, 8)),
            "t": "",
            "b": b"",
            "x": np.ones((2, 3), np.float32),
            "big": np.arange(3),
        },
    ]
    pack_dataset("loaderd_testing.sample_builders:Holding", {}, str(tmp_path / "db"))
    plan = StreamConfig("t", lmdb=str(tmp_path / "db"))
    with Source(plan) as source:
        first, second = (
            SamplePipeline(plan, source).make(SampleRequest(0, 0, i), silent) for i in (0, 1)
        )
        np.testing.assert_array_equal(first["im"], picture())
        assert first.images == {"im"}
        assert second["im"].shape == (9, 8, 3)
        assert (first["t"], first["b"], first["x"].shape, first["big"].sum()) == (
            "wörter",
            b"\xff\xd8\xff",
            (0, 3),
            9000 * 8999 // 2,
        )
        assert (second["t"], second["b"], second["x"].shape) == ("", b"", (2, 3))
        del first, second


def test_a_dataset_of_masks_is_told_only_what_a_pack_can_take(tmp_path: Path) -> None:
    sample_builders.HELD[:] = [
        {"mask": Image.fromarray(np.zeros((4, 4), bool))},
        {"mask": np.zeros((4, 4), np.uint8)},
    ]
    ((_, reason),) = pack_dataset(
        "loaderd_testing.sample_builders:Holding", {}, str(tmp_path / "db")
    ).bad
    assert "numpy.asarray(image)" in reason
    assert 'image.convert("RGB")' in reason
    assert "transform" not in reason


def test_a_file_that_is_waited_for_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, named = threading.Event(), []

    def slow(data: bytes) -> np.ndarray:
        assert told.wait(DEADLINE_S)
        return decode(data)

    def waits(name: str, waited_s: float) -> None:
        named.append((name, waited_s))
        told.set()

    monkeypatch.setattr(item_samples, "WAIT_S", 0.01)
    monkeypatch.setattr(stored_images, "decode", slow)
    report = pack_imagefolder(str(images(tmp_path / "src", 3)), str(tmp_path / "db"), waits=waits)
    assert named[0] == ("a/001.png", 0.01)
    assert (report.samples, report.bad) == (3, ())


def test_files_that_nobody_has_begun_are_left_alone_when_a_pack_is_broken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, begun = threading.Event(), []

    class Pool(item_samples.ThreadPoolExecutor):
        """Its threads go on once it has been told what is to become of the rest."""

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            go.set()
            super().shutdown(wait=wait)

    def make(folder: object, found: object) -> None:
        begun.append(found)
        assert go.wait(DEADLINE_S)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    threads = len(os.sched_getaffinity(0))
    monkeypatch.setattr(item_samples, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(item_samples.ItemSamples, "_make", make)
    monkeypatch.setattr(item_samples.ItemSamples, "_result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pack_imagefolder(str(images(tmp_path / "src", 4 * threads)), str(tmp_path / "db"))
    assert len(begun) <= threads


needs_means = pytest.mark.needs("extensions")


def stored(path: Path) -> dict[str, bytes]:
    with Source(StreamConfig("t", lmdb=str(path))) as source:
        return {
            source.key(index): bytes(source.read(index)["image"]) for index in range(source.total)
        }


def photos(folder: Path, count: int = 6) -> Path:
    """JPEGs, and a few images that cannot be rewritten."""
    for at in range(count):
        path = folder / "ba"[at % 2] / f"{at:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(
            coded(picture(200 + at, 240, seed=at), "JPEG", quality=90, progressive=at % 3 == 1)
        )
    (folder / "a" / "cmyk.jpg").write_bytes(
        coded(Image.fromarray(picture(64, 80)).convert("CMYK"), "JPEG")
    )
    (folder / "a" / "some.png").write_bytes(coded(picture()))
    (folder / "a" / "gray.jpg").write_bytes(
        coded(Image.fromarray(picture(64, 80)).convert("L"), "JPEG")
    )
    return folder


@needs_means
def test_jpegs_are_rewritten_and_show_the_same_pixels_and_the_report_says_how_many(
    tmp_path: Path,
) -> None:
    source = photos(tmp_path / "src")
    report = pack_imagefolder(str(source), str(tmp_path / "db"))
    assert (report.samples, report.bad_count) == (9, 0)
    assert dict(report.tally) == {
        "rewritten for random access": 7,
        "kept as they are: 4 components (CMYK has 4), not 1 or 3": 1,
    }
    values = stored(tmp_path / "db")
    for name, value in values.items():
        old = (source / name).read_bytes()
        assert (
            (tiles.read(value) is None) == (name in ("a/cmyk.jpg", "a/some.png")) == (value == old)
        )
        np.testing.assert_array_equal(decode(value), decode(old))


@needs_means
@pytest.mark.parametrize("wanted", [True, False])
def test_jpegs_keep_their_bytes_if_asked_or_where_nothing_can_rewrite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    source = photos(tmp_path / "src")
    if wanted:
        monkeypatch.setattr(stored_images, "can_rewrite", lambda: False)
    report = pack_imagefolder(str(source), str(tmp_path / "db"), random_access=wanted)
    assert report.tally == ()
    values = stored(tmp_path / "db")
    assert len(values) == 9
    assert all(value == (source / name).read_bytes() for name, value in values.items())


@needs_means
def test_a_damaged_jpeg_is_bad_and_one_that_only_decoders_can_read_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = photos(tmp_path / "src")
    (source / "a" / "cut.jpg").write_bytes(coded(picture(200, 240), "JPEG")[:2000])

    def refused(data: bytes) -> bytes:
        out = rewrite.rewrite(data)
        # the sampling of its first component, which decoders do not know then
        at = out.index(b"\xff\xc0") + 11
        return out[:at] + b"\x53" + out[at + 1 :]

    report = pack_imagefolder(str(source), str(tmp_path / "db"))
    assert [name for name, _ in report.bad] == ["a/cut.jpg"]
    monkeypatch.setattr(stored_images, "rewrite", refused)
    report = pack_imagefolder(str(source), str(tmp_path / "other"))
    assert dict(report.tally)["kept as they are: no decoder can read it"] == 7
    assert stored(tmp_path / "other")["a/gray.jpg"] == (source / "a" / "gray.jpg").read_bytes()


@needs_means
def test_a_pack_of_jpegs_killed_with_9_ends_the_same_and_counts_all(tmp_path: Path) -> None:
    source = photos(tmp_path / "src", 20)
    expected = pack_imagefolder(str(source), str(tmp_path / "undisturbed"))
    for at in (7, 13):
        killed(source, tmp_path / "db", at)
    report = pack_imagefolder(str(source), str(tmp_path / "db"))
    assert report.resumed_at == 10
    assert (report.identity, report.tally) == (expected.identity, expected.tally)
    assert contents(tmp_path / "db") == contents(tmp_path / "undisturbed")


@needs_means
def test_a_pack_that_goes_on_without_what_rewrote_its_first_images_begins_anew(
    tmp_path: Path,
) -> None:
    source = photos(tmp_path / "src", 20)
    killed(source, tmp_path / "db", 8)
    report = pack_imagefolder(str(source), str(tmp_path / "db"), random_access=False)
    assert report.restarted
    assert report.tally == ()


def test_memory_does_not_grow_with_the_number_of_files(tmp_path: Path) -> None:
    code = (
        "import sys, tracemalloc; from loaderd.data.packing.image_folder import Listing; "
        "tracemalloc.start()\n"
        "with Listing(sys.argv[1], sys.argv[2]) as found:\n"
        "    assert sum(1 for _ in found.files()) == int(sys.argv[3])\n"
        "    print(tracemalloc.get_traced_memory()[1])"
    )
    peaks = []
    for folders in (5, 50):
        for folder in range(folders):
            (tmp_path / f"s{folders}" / f"{folder:03d}").mkdir(parents=True)
            for at in range(200):
                os.close(
                    os.open(
                        tmp_path / f"s{folders}" / f"{folder:03d}" / f"{at:04d}.jpg",
                        os.O_CREAT | os.O_WRONLY,
                    )
                )
        args = [
            sys.executable,
            "-c",
            code,
            str(tmp_path / f"s{folders}"),
            str(tmp_path),
            str(folders * 200),
        ]
        peaks.append(
            int(
                subprocess.run(
                    args, capture_output=True, text=True, timeout=DEADLINE_S, check=True
                ).stdout
            )
        )
    assert peaks[1] < peaks[0] + 100_000


def test_a_pack_closes_what_it_opens(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    pack_imagefolder(str(images(tmp_path / "src")), str(tmp_path / "db"))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("random_access", [True, False])
def test_chroma_of_a_quarter_of_the_rows_is_packed_and_cropped(
    tmp_path: Path, random_access: bool
) -> None:
    (tmp_path / "src").mkdir()
    large = sampled(1, 4, 333, 500)
    for name, data in (("a.jpg", QUARTER_ROWS), ("b.jpg", large)):
        (tmp_path / "src" / name).write_bytes(data)
    report = pack_imagefolder(
        str(tmp_path / "src"), str(tmp_path / "db"), random_access=random_access
    )
    assert (report.samples, report.bad) == (2, ())
    plan = StreamConfig("t", lmdb=str(tmp_path / "db"))
    with Source(plan) as opened:
        for index, data in enumerate((QUARTER_ROWS, large)):
            np.testing.assert_array_equal(
                SamplePipeline(plan, opened).make(SampleRequest(0, 0, index), silent)["image"],
                by_pillow(data),
            )
            cropped = SamplePipeline(
                replace(plan, transforms=(op("center_crop", size=16),)), opened
            )
            height, width = by_pillow(data).shape[:2]
            top, left = round((height - 16) / 2), round((width - 16) / 2)
            np.testing.assert_array_equal(
                cropped.make(SampleRequest(0, 0, index), silent)["image"],
                by_pillow(data)[top : top + 16, left : left + 16],
            )


def test_a_picture_with_an_adobe_segment_of_64_kilobytes_is_packed(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    data = coded(picture(), "JPEG")
    payload = b"Adobe\0\x64\0\0\0\0\1" + bytes(65521)
    (tmp_path / "src" / "a.jpg").write_bytes(data[:2] + b"\xff\xee\xff\xff" + payload + data[2:])
    report = pack_imagefolder(str(tmp_path / "src"), str(tmp_path / "db"))
    assert (report.samples, report.bad) == (1, ())


def test_a_part_that_its_former_owner_has_just_finished_is_not_packed_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = images(tmp_path / "src")
    locked, times = part_file._locked, []

    def late(fd: int, part: str) -> bool:
        times.append(part)
        if len(times) == 1:
            os.rename(part, tmp_path / "finished")  # between its being opened here and locked
        return locked(fd, part)

    monkeypatch.setattr(part_file, "_locked", late)
    assert pack_imagefolder(str(source), str(tmp_path / "db")).samples == 6
    assert len(times) == 2
    assert (tmp_path / "finished").stat().st_size == 0


def test_bytes_that_wait_to_be_written_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "BATCH_BYTES", 1)

    def stop(at: int, of: int) -> None:
        if at == 4:
            raise KeyboardInterrupt

    source = images(tmp_path / "src")
    with pytest.raises(KeyboardInterrupt):
        pack_imagefolder(str(source), str(tmp_path / "db"), progress=stop)
    assert pack_imagefolder(str(source), str(tmp_path / "db")).resumed_at == 3


def test_an_empty_file_is_bad_where_nothing_is_decoded_either(tmp_path: Path) -> None:
    source = images(tmp_path / "src")
    (source / "a" / "000.jpg").write_bytes(b"")
    report = pack_imagefolder(str(source), str(tmp_path / "db"), verify=False)
    assert (report.samples, report.bad) == (6, (("a/000.jpg", "the file is empty"),))


def test_a_file_larger_than_any_image_is_bad_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = images(tmp_path / "src")
    monkeypatch.setattr(files, "MAX_FILE", 20_000)
    with open(source / "b" / "sparse.jpg", "wb") as file:
        file.truncate(20_001)
    report = pack_imagefolder(str(source), str(tmp_path / "db"))
    assert (report.samples, report.bad) == (
        6,
        (("b/sparse.jpg", "the file is larger than 20,000 bytes"),),
    )
