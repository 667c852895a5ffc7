"""`loaderd check --all`: every sample, what they come to, what is wrong; broken off and gone on
with.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import lmdb
import numpy as np
import pytest
from PIL import Image

from loaderd_testing.cli_harness import DEADLINE_S, Place, until

MODULE = '''
import os, select, time
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))

class Odd:
    """40 samples: 5 has NaN, 7 another shape, 9 to 11 are equal, 13 fails."""
    def __len__(self):
        return 40
    def __getitem__(self, index):
        if index == 13:
            raise KeyError("no such file")
        x = np.full((6, 2), 9 if index in (10, 11) else index, np.float32)
        if index == 5:
            x[1, 1] = np.nan
        return {"x": x[:5] if index == 7 else x, "y": index}

class Slow:
    """400 samples, each 10 ms. From the HELD-th making on, in whatever process, each waits until there is a file `go`."""
    def __len__(self):
        return 400
    def __getitem__(self, index):
        asked = os.open(os.path.join(HERE, "asked"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(asked, b".")
        while os.fstat(asked).st_size > HELD and not os.path.exists(os.path.join(HERE, "go")):
            select.select([], [], [], 0.01)
        os.close(asked)
        select.select([], [], [], 0.01)
        if index % 100 == 3:
            raise ValueError("bad %d" % index)
        return {"x": np.full(3, index // 2, np.int32)}

HELD = 512 + 250  # when 256 have been made twice, and 250 of all once more
'''


def config(place: Place, name: str, more: str = "") -> str:
    (place.folder / "odd.py").write_text(MODULE)
    (place.folder / "odd.toml").write_text(
        f"[workers]\nnum_workers = 2\n[streams.train]\ndataset = 'odd:{name}'\nbatch_size = "
        f"8\n{more}"
    )
    return "odd.toml"


def kept(place: Place) -> list[Path]:
    return list((place.folder / "cache").rglob("state.json"))


def packed(place: Place, *, stream: str = "") -> str:
    place.pack(place.images(each=30), "photos.lmdb")
    (place.folder / "c.toml").write_text(
        "[workers]\nnum_workers = 2\n[streams.train]\nlmdb = 'photos.lmdb'\nbatch_size = "
        f"8\n{stream}"
    )
    return "c.toml"


def test_what_the_samples_come_to_is_what_numpy_says_and_the_constants_can_be_pasted(
    place: Place,
) -> None:
    name = packed(place)
    text = place.cli("check", name, "--all").stdout
    files = sorted((place.folder / "photos").rglob("*.png"))
    pixels = np.stack([np.asarray(Image.open(file)) for file in files]).reshape(-1, 3) / 255
    assert "structure every page is sound" in text
    assert "scanned   60 of 60 samples" in text
    assert "shapes    image: 20x30x3 (60)" in text
    for word, values in (("mean", pixels.mean(0)), ("std", pixels.std(0))):
        assert f"            {word} = [{', '.join(f'{value:.4f}' for value in values)}]" in text
    assert 'op = "normalize"' in text
    assert re.search(r"values    label: min 0  max 1  mean 0\.5  std 0\.5\n", text)
    sizes = sorted(file.stat().st_size + 8 for file in files)
    found = re.search(r"stored    (\d+) KiB a sample \(median\), at most (\d+) KiB", text)
    assert found
    assert int(found[2]) == round(sizes[-1] / 1024)
    assert "fine      60 of 60 samples made once, 60 of them once more, in another process" in text

    pasted = re.search(r"normalize (\[\[.*(?:\n {12}.*)*)", text)
    assert pasted
    (place.folder / name).write_text((place.folder / name).read_text() + pasted[1])
    again = place.cli("check", name, "--all").stdout
    means = re.search(r"values    image: .*mean \[(.*)\]  std \[(.*)\]", again)
    assert means
    assert [float(text) for text in means[1].split(", ")] == pytest.approx([0] * 3, abs=1e-3)
    assert [float(text) for text in means[2].split(", ")] == pytest.approx([1] * 3, abs=1e-3)
    assert "op = " not in again


def test_a_stream_that_is_not_trained_on_is_sent_to_the_one_that_is(place: Place) -> None:
    name = packed(place, stream="shuffle = true\nsplit = '0%:50%'\n")
    test = "[streams.test]\nlmdb = 'photos.lmdb'\nsplit = '50%:'\n"
    (place.folder / name).write_text((place.folder / name).read_text() + test)
    train, _, text = place.cli("check", name, "--all").stdout.partition("\ntest  ")
    assert 'op = "normalize"' in train
    assert (
        "normalize image: with mean and std of stream 'train', which check --all --stream train "
        "prints; not with this"
    ) in text
    assert "op = " not in text
    step = "[[streams.train.transforms]]\nop = 'normalize'\nmean = 0.5\nstd = 0.2\n"
    (place.folder / name).write_text((place.folder / name).read_text() + step)
    text = place.cli("check", name, "--all", "--stream", "test").stdout
    assert (
        "normalize image: with mean and std of stream 'train', which has that step; not with this"
        in text
    )


def test_what_the_users_own_code_has_normalised_is_left_alone(place: Place) -> None:
    (place.folder / "own.py").write_text(
        "def norm(sample, rng):\n    return {'image': sample['image'].astype('f4') / 255 - 0.9}\n"
    )
    name = packed(place, stream="[[streams.train.transforms]]\ncall = 'own:norm'\n")
    text = place.cli("check", name, "--all").stdout
    assert re.search(r"values    image: min \[-0\.[\d., -]+\]  max \[0\.", text)
    assert "normalize" not in text


def test_with_an_lmdb_that_has_no_verifier_one_line_says_so_and_the_rest_is_done(
    place: Place,
) -> None:
    name = packed(place)
    older = place.folder / "older" / "lmdb"
    older.mkdir(parents=True)
    for path in Path(lmdb.__file__).parent.iterdir():
        if path.name not in ("verify.py", "__pycache__"):
            (older / path.name).symlink_to(path)
    done = place.cli("check", name, "--all", env={"PYTHONPATH": str(older.parent)})
    assert (
        "  structure not verified: verifying a file needs lmdb 3.0 or newer: pip install -U lmdb\n"
        in done.stdout
    )
    assert "fine      60 of 60 samples made once" in done.stdout


def test_what_is_odd_about_samples_is_told_by_field_and_key(place: Place) -> None:
    done = place.cli("check", config(place, "Odd"), "--all", "--bad", "bad.jsonl", code=1)
    assert "shapes    x: 6x2 (38), 5x2 (1)" in done.stdout
    assert "NONFINITE x: 1 values are NaN or infinite, in 1 samples" in done.stdout
    assert re.search(r"COPIES    '9' = '10' = '11'\n", done.stdout)
    assert "copies    2 samples have the content of another" in done.stdout
    assert (
        "BAD       sample '13' (index 13) failed in read: KeyError: 'no such file'" in done.stdout
    )
    assert (
        "BAD       sample '7' (index 7) failed in check: BadValue: odd:Odd: field 'x' is float32 "
        "of shape (5, 2)"
    ) in done.stdout
    entries = [json.loads(line) for line in (place.folder / "bad.jsonl").read_text().splitlines()]
    assert sorted(
        (entry["stream"], entry["index"], entry["key"], entry["stage"], entry["error"])
        for entry in entries
    ) == [
        ("train", 7, "7", "check", "BadValue"),
        ("train", 13, "13", "read", "KeyError"),
    ]
    assert kept(place) == []


def test_nan_is_a_bad_sample_where_the_stream_says_so(place: Place) -> None:
    text = place.cli("check", config(place, "Odd", "nonfinite = 'error'"), "--all", code=1).stdout
    assert (
        "BAD       sample '5' (index 5) failed in check: NonFinite: field 'x' has 1 values that "
        "are not finite, the first at (1, 1)"
    ) in text
    assert "NONFINITE" not in text


def test_copies_of_stored_images_are_named_by_their_files(place: Place) -> None:
    photos = place.folder / place.images()
    (photos / "b" / "zzz.png").write_bytes((photos / "a" / "003.png").read_bytes())
    place.pack("photos", "photos.lmdb")
    (place.folder / "c.toml").write_text(
        "[streams.train]\nlmdb = 'photos.lmdb'\n[[streams.train.transforms]]\nop = "
        "'random_resized_crop'\nsize = 8\n"
    )
    assert "COPIES    'a/003.png' = 'b/zzz.png'" in place.cli("check", "c.toml", "--all").stdout


def test_a_bit_flipped_in_a_picture_is_a_bad_sample_by_key(place: Place) -> None:
    name = packed(place)
    with (
        lmdb.open(str(place.folder / "photos.lmdb"), subdir=False, lock=False) as env,
        env.begin(write=True) as txn,
    ):
        key, value = next(
            (key, value)
            for key, value in txn.cursor()
            if b"\x89PNG" in value and key.endswith(b"\x09")
        )
        at = value.index(b"IDAT") + 40
        txn.put(key, value[:at] + bytes([value[at] ^ 0xFF] * 30) + value[at + 30 :])
    text = place.cli("check", name, "--all", code=1).stdout
    assert re.search(r"BAD       sample 'a/\d+\.png' \(index \d+\) failed in decode", text)
    assert "faults    1 bad, 0 different; 60 of 60 samples made once, " in text


def test_a_file_with_a_torn_page_is_reported_and_not_opened(place: Place) -> None:
    name = packed(place)
    with (place.folder / "photos.lmdb").open("r+b") as file:
        file.seek(4096 * 5)
        file.write(bytes(4096))
    done = place.cli("check", name, "--all", code=1)
    assert "DAMAGED   " in done.stdout
    assert "the file was not opened" in done.stdout
    assert not re.search(r"\d samples", done.stdout)  # "samples" are in a hint for one processor


def test_a_file_that_is_cut_short_is_reported_and_not_opened(place: Place) -> None:
    name = packed(place)
    os.truncate(place.folder / "photos.lmdb", 4096 * 6)
    assert "is cut short" in place.cli("check", name, "--all", code=3).stderr


def broken_off(place: Place, name: str, number: int) -> tuple[int, str]:
    """Begin a scan of Slow, send it a signal when it waits; (exit code, what it said)."""
    asked = place.folder / "asked"
    with subprocess.Popen(
        [sys.executable, "-m", "loaderd", "check", name, "--all"],
        cwd=place.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as check:
        assert check.stderr is not None
        try:
            until(
                "the scan to wait",
                lambda: (
                    (asked.exists() and asked.stat().st_size > 512 + 250)
                    or check.poll() is not None
                ),
            )
            os.killpg(check.pid, number)
            said = check.stderr.read()
            return check.wait(DEADLINE_S), said
        finally:
            if check.poll() is None:
                check.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_scan_that_was_broken_off_is_gone_on_with(place: Place, number: int) -> None:
    name = config(place, "Slow")
    code, said = broken_off(place, name, number)
    if number == signal.SIGINT:
        assert code == 130
        assert "the same command continues from there" in said
        assert re.search(r"interrupted at sample [1-9]\d* of 400", said)
        assert len(kept(place)) == 1
    else:
        assert code == -signal.SIGKILL
    (place.folder / "go").touch()
    text = place.cli("check", name, "--all", code=1).stdout
    values = np.array([index // 2 for index in range(400) if index % 100 != 3])
    assert (
        f"values    x: min 0  max 199  mean {values.mean():.6g}  std {values.std():.6g}\n" in text
    )
    assert "shapes    x: 3 (396)" in text
    assert re.findall(r"BAD       sample '(\d+)'", text) == ["3", "103", "203", "303"]
    assert "copies    196 samples have the content of another" in text
    earlier = re.search(r"scanned   400 of 400 samples, [1-9]\d* of them by an earlier run", text)
    # a killed one has saved nothing in its first seconds
    assert earlier or number == signal.SIGKILL
    assert kept(place) == []


def test_what_an_earlier_run_found_does_not_count_once_the_stream_is_another(place: Place) -> None:
    name = config(place, "Slow")
    broken_off(place, name, signal.SIGINT)
    (place.folder / "go").touch()
    config(place, "Odd")
    done = place.cli("check", name, "--all", code=1)
    assert (
        "starting over: data, layout, samples, values changed since the interrupted run"
        in done.stderr
    )
    assert "scanned   40 of 40 samples, " in done.stdout
    assert "by an earlier run" not in done.stdout
