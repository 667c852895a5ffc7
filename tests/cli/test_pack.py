"""`loaderd pack` and `loaderd inspect`."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import pytest
from PIL import Image

from loaderd.cli import pack
from loaderd.cli.exit_codes import FINE, NO_START, USAGE, CommandError
from loaderd.cli.pack import SHOWN_BAD
from loaderd.data.errors import SourceError
from loaderd.data.jpeg import rewrite
from loaderd.data.lmdb import record_format
from loaderd.data.packing import inputs
from loaderd.data.packing.stored_images import KEPT
from loaderd.data.packing.writer import PackReport
from loaderd.system.progress import ProgressLine
from loaderd_testing.cli_harness import DEADLINE_S, Place


def test_an_image_folder_is_packed_and_what_was_left_out_is_named(place: Place) -> None:
    photos = place.images()
    (place.folder / photos / "a" / "broken.png").write_bytes(b"not a picture")
    (place.folder / photos / "a" / "notes.txt").write_text("not a picture either")
    done = place.cli("pack", "imagefolder", photos, "photos.lmdb")
    assert done.stdout.startswith(f"{place.folder}/photos.lmdb: 20 samples, 2 classes, ")
    assert "loaderd: left out: a/broken.png: " in done.stderr
    assert "1 bad sample was left out" in done.stderr
    assert (
        "loaderd: 1 file was ignored, not named like images: 1 .txt (a/notes.txt)\n" in done.stderr
    )


def test_a_file_name_looks_like_no_line_of_ours_and_does_nothing_to_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, reason = "\x1b[2J\nloaderd: all is well", "no\rJPEG\n"
    pack._BadInputs(ProgressLine("samples")).tell(name, reason)
    report = PackReport("a\x07.lmdb", 1, "", 1, (), ((name, reason),), 1, 1, False)
    pack._tell(report)
    said = capsys.readouterr()
    assert said.out.startswith("a\\x07.lmdb: 1 sample")
    first, *_, last = said.err.splitlines()
    assert first == r"loaderd: left out: \x1b[2J\nloaderd: all is well: no\rJPEG\n"
    assert last == r"loaderd:   \x1b[2J\nloaderd: all is well: no\rJPEG\n"


def test_class_folders_without_images_are_warned_of_with_the_labels_that_nobody_gets(
    place: Place,
) -> None:
    photos = place.folder / place.images(classes="abc")
    (photos / "b-lost").mkdir()
    done = place.cli("pack", "imagefolder", str(photos), "photos.lmdb")
    assert (
        "loaderd: warning: 1 class has no images: 'b-lost' (label 2); its label is given to no "
        "sample. torchvision's"
    ) in done.stderr
    with (
        lmdb.open(
            str(place.folder / "photos.lmdb"), subdir=False, readonly=True, lock=False
        ) as env,
        env.begin() as txn,
    ):
        labels = {
            int(record_format.unpack_sample(value)["label"])
            for key, value in txn.cursor()
            if len(key) == 8
        }
    assert labels == {0, 1, 3}
    (photos / "d").mkdir()
    (photos / "d" / "notes.txt").touch()
    done = place.cli("pack", "imagefolder", str(photos), "more.lmdb")
    assert (
        "2 classes have no images: 'b-lost' (label 2), 'd' (label 4); their labels are given to "
        "no sample"
    ) in done.stderr


def test_jpegs_are_rewritten_for_random_access_unless_told_not_to(place: Place) -> None:
    photos = place.folder / place.images()
    for path in sorted(photos.rglob("*.png"))[:3]:
        with Image.open(path) as image:
            image.save(path.with_suffix(".jpg"), quality=90)
    done = place.cli("pack", "imagefolder", str(photos), "photos.lmdb")
    assert (
        "loaderd: 3 images rewritten for random access" in done.stderr
        or "JPEGs keep their bytes: nothing here can rewrite" in done.stderr
    )
    assert (
        "rewritten"
        not in place.cli(
            "pack", "imagefolder", str(photos), "plain.lmdb", "--no-random-access"
        ).stderr
    )


def test_a_dataset_is_packed_by_name_with_its_arguments(place: Place) -> None:
    done = place.cli("pack", "dataset", "mine:Numbers", "n.lmdb", "--args", '{"n": 7, "bad": [3]}')
    assert "6 samples" in done.stdout
    assert "left out: 3: ValueError: unlucky 3" in done.stderr


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["imagefolder", "nowhere", "a.lmdb"], 3, "nowhere"),
        (["imagefolder", ".", "no/folder/a.lmdb"], 3, "no/folder"),
        (["imagefolder", ".", "mine.py"], 3, "already exists"),
        (["dataset", "mine:Nobody", "a.lmdb"], 3, "Nobody"),
        (["dataset", "nowhere:A", "a.lmdb"], 3, "nowhere"),
        (["imagefolder", ".", "a.lmdb", "--args", "{}"], 3, "holds no images"),
        (["imagefolder", ".", "a.lmdb", "--args", '{"n": 1}'], 2, "--args is for pack dataset"),
        (
            ["dataset", "mine:Numbers", "a.lmdb", "--random-access"],
            2,
            "--random-access is for pack imagefolder",
        ),
    ],
)
def test_what_cannot_be_packed_says_why_and_leaves_nothing(
    place: Place, args: list[str], code: int, said: str
) -> None:
    before = set(os.listdir(place.folder))
    done = place.cli("pack", *args, code=code)
    assert said in done.stderr
    assert set(os.listdir(place.folder)) - before <= {"__pycache__"}


def test_on_a_terminal_a_bar_shows_how_far_it_is(place: Place) -> None:
    photos = place.images(each=50)
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "loaderd", "pack", "imagefolder", photos, "photos.lmdb"]
    with subprocess.Popen(
        command, cwd=place.folder, stdout=subprocess.DEVNULL, stderr=its
    ) as process:
        os.close(its)
        shown = b""
        try:
            while data := os.read(ours, 4096):
                shown += data
        except OSError:  # how a terminal says that its other end is closed
            pass
        finally:
            os.close(ours)
        assert process.wait(DEADLINE_S) == 0
    assert "of 100 samples" in shown.decode()
    assert shown.endswith(b"\r\x1b[K")


def test_inspect_tells_what_pack_wrote(place: Place) -> None:
    place.cli("pack", "imagefolder", place.images(), "photos.lmdb")
    text = place.cli("inspect", "photos.lmdb").stdout
    assert "layout   loaderd" in text
    assert "samples  20" in text
    assert "classes  2: a, b" in text
    assert "'a/000.png'" in text
    assert "image png image, 20 x 30 x 3" in text
    assert "label int64" in text
    facts = json.loads(place.cli("inspect", "photos.lmdb", "--json").stdout)
    assert (facts["samples"], facts["classes"]) == (20, ["a", "b"])


def test_inspect_shows_an_unknown_database_and_how_to_read_it(place: Place) -> None:
    with lmdb.open(str(place.folder / "foreign")) as env, env.begin(write=True) as txn:
        for n in range(5):
            txn.put(b"image-%09d" % n, b"\xff\xd8\xff" + b"x" * n)
            txn.put(b"label-%09d" % n, b"word")
    text = place.cli("inspect", "foreign").stdout
    assert "layout   unknown" in text
    assert "image-######### (5 of 10)" in text
    assert "JPEG" in text
    assert "def keys(self, index):" in text


@pytest.mark.parametrize("name", ["none", "mine.py", "."])
def test_inspect_of_what_is_no_database_is_one_line(place: Place, name: str) -> None:
    done = place.cli("inspect", name, code=3)
    assert done.stderr.startswith(f"loaderd: {name}")
    assert done.stderr.count("\n") == 1


def test_a_pack_that_was_broken_off_is_told_apart_and_goes_on(place: Place) -> None:
    photos = place.images(each=10)
    place.cli("pack", "imagefolder", photos, "whole.lmdb")
    code = (
        "import os, sys\nfrom loaderd.data.packing import writer as pack\n"
        "pack.BATCH_SAMPLES = 4\n"
        "flush = pack.PackRun._flush\n"
        "def once(run):\n    flush(run)\n    os.kill(os.getpid(), 9)\n"
        "pack.PackRun._flush = once\n"
        "from loaderd.__main__ import main\nmain(sys.argv[1:])"
    )
    command = [sys.executable, "-c", code, "pack", "imagefolder", photos, "cut.lmdb"]
    assert subprocess.run(command, cwd=place.folder, timeout=DEADLINE_S).returncode == -9
    assert "unfinished" in place.cli("inspect", "cut.lmdb.part").stdout
    assert "continued at sample 4" in place.cli("pack", "imagefolder", photos, "cut.lmdb").stderr
    assert contents(place.folder / "cut.lmdb") == contents(place.folder / "whole.lmdb")


def contents(path: Path) -> list[tuple[bytes, bytes]]:
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env, env.begin() as txn:
        return list(txn.cursor())


def test_inspect_of_a_database_with_a_slash_behind_it_shows_it(place: Place) -> None:
    place.cli("pack", "imagefolder", place.images(), "photos.lmdb")
    assert "samples  20" in place.cli("inspect", "photos.lmdb/").stdout


def test_a_folder_whose_name_is_not_utf_8_is_packed_into_and_inspected(place: Place) -> None:
    folder = os.path.join(os.fsencode(place.folder), b"f\xff")
    os.mkdir(folder)
    target = os.fsdecode(os.path.join(folder, b"db"))
    assert "20 samples" in place.cli("pack", "imagefolder", place.images(), target).stdout
    assert "samples  20" in place.cli("inspect", target).stdout
    assert json.loads(place.cli("inspect", target, "--json").stdout)["samples"] == 20


def test_standard_error_that_is_closed_costs_nothing_but_its_lines(place: Place) -> None:
    photos = place.images()
    done = subprocess.run(
        [
            "sh",
            "-c",
            'exec "$@" 2>&-',
            "sh",
            sys.executable,
            "-m",
            "loaderd",
            "pack",
            "imagefolder",
            photos,
            "x.lmdb",
        ],
        cwd=place.folder,
        stdout=subprocess.PIPE,
        text=True,
        timeout=DEADLINE_S,
    )
    assert (done.returncode, "20 samples" in done.stdout) == (0, True)


# What the command says, of packing that a test makes up

FOLDER = Namespace(
    kind="imagefolder",
    src=["s"],
    db="d",
    args={},
    random_access=None,
    classes=None,
    classes_from=None,
    fields=(),
    split=None,
    shuffle=False,
    seed=0,
    resize=0,
    quality=0,
    workers=0,
    shard=0,
)
REPORT = PackReport("/d", 3, "", 2048, ("a", "b"), (), 0, 0, False)


def packed(
    monkeypatch: pytest.MonkeyPatch, report: PackReport, during: Callable[..., object] = dict
) -> None:
    """The command with `report`; during(bad=, waits=): called in between."""

    def make(*_: Any, bad: Any, waits: Any, **__: Any) -> PackReport:
        during(bad=bad, waits=waits)
        return report

    monkeypatch.setattr(inputs, "pack_source", make)
    assert pack.run(FOLDER) == FINE


Caught = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("changes", "err", "out"),
    [
        ({}, "", "/d: 3 samples, 2 classes, 2 KiB"),
        ({"classes": ("a",), "samples": 1}, "", "/d: 1 sample, 1 class, 2 KiB"),
        ({"classes": (), "samples": 2000}, "", "/d: 2,000 samples, no classes, 2 KiB"),
        ({"files": 3, "path": "/d-*"}, "", "/d-*: 3 samples, 2 classes, 2 KiB in 3 files"),
        ({"resumed_at": 1000}, "continued at sample 1,000, where an earlier run was", ""),
        ({"restarted": True, "resumed_at": 5}, "the source has changed since an interrupted", ""),
        ({"tally": (("kept", 1), ("rewritten", 2))}, "1 image kept\nloaderd: 2 images rew", ""),
        ({"tally": ((KEPT, 1),)}, "loaderd: 1 image kept as it is\n", ""),
        ({"tally": ((KEPT, 2),)}, "loaderd: 2 images kept as they are\n", ""),
        ({"notes": ("a note",)}, "loaderd: a note\n", ""),
        ({"bad": (("x", "y"),), "bad_count": 1}, "loaderd: 1 bad sample was left out\n", ""),
        ({"bad_count": SHOWN_BAD}, f"loaderd: {SHOWN_BAD} bad samples were left out\n", ""),
        ({"bad_count": SHOWN_BAD + 1}, "left out; the first 20 are named above\n", ""),
        (
            {"bad": (("x", "y"), ("z", "w")), "bad_count": 2, "resumed_at": 9},
            "2 bad samples were left out; the first of them:\nloaderd:   x: y\nloaderd:   z: w\n",
            "",
        ),
    ],
)
def test_what_became_of_the_samples_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: Caught, changes: dict[str, Any], err: str, out: str
) -> None:
    packed(monkeypatch, replace(REPORT, **changes))
    said = capsys.readouterr()
    assert err in said.err
    assert out in said.out
    if not changes:
        assert said.err == ""
    assert ("continued" in said.err) == ("resumed_at" in changes and "restarted" not in changes)


def test_the_first_samples_left_out_and_a_file_that_takes_long_are_named_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: Caught
) -> None:
    def during(bad: Any, waits: Any) -> None:
        for number in range(SHOWN_BAD + 5):
            bad(f"{number}.jpg", "damaged")
        waits("far.jpg", 12.4)

    packed(monkeypatch, REPORT, during)
    *named, waiting = capsys.readouterr().err.splitlines()
    assert named == [f"loaderd: left out: {n}.jpg: damaged" for n in range(SHOWN_BAD)]
    assert waiting == (
        "loaderd: reading far.jpg has taken 12 s so far: does its file system respond?"
    )


def test_where_jpegs_cannot_be_rewritten_it_is_said_unless_it_was_not_wanted(
    monkeypatch: pytest.MonkeyPatch, capsys: Caught
) -> None:
    monkeypatch.setattr(rewrite, "can_rewrite", lambda: False)
    packed(monkeypatch, REPORT)
    assert capsys.readouterr().err == f"loaderd: JPEGs keep their bytes: {rewrite.HELP}\n"
    monkeypatch.setattr(FOLDER, "random_access", False)
    packed(monkeypatch, REPORT)
    assert capsys.readouterr().err == ""


def test_who_interrupts_is_told_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: Caught
) -> None:
    def during(**_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        packed(monkeypatch, REPORT, during)
    assert "interrupted; the same command continues from here" in capsys.readouterr().err


def test_what_the_source_is_found_to_lack_ends_it_with_the_users_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def during(**_: Any) -> None:
        raise SourceError("s: nothing in it", "Traceback: mine")

    with pytest.raises(CommandError, match=r"\As: nothing in it\nTraceback: mine\Z") as caught:
        packed(monkeypatch, REPORT, during)
    assert caught.value.code == NO_START


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"src": ["a.jpg", "b.jpg"]}, "takes one SRC and one DB; these are 3 names: a.jpg b.jpg d"),
        ({"kind": "coco", "resize": 256}, "the op `resize` with boxes moves them along"),
        ({"kind": "parquet", "shuffle": True}, "loaderd pack lmdb DB NEW.lmdb --shuffle"),
        ({"args": {"n": 1}}, "--args is for pack dataset.*; imagefolder takes none"),
        (
            {"kind": "dataset", "random_access": False},
            "--random-access is for pack imagefolder.*: what a dataset",
        ),
        (
            {"kind": "dataset", "classes": "c"},
            "--classes is for pack imagefolder.*attribute `classes`",
        ),
        ({"kind": "dataset", "classes_from": "c"}, "--classes-from is for pack imagefolder"),
    ],
)
def test_an_option_of_the_other_kind_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CommandError, match=words) as caught:
        pack.run(Namespace(**{**vars(FOLDER), **changes}))
    assert caught.value.code == USAGE
