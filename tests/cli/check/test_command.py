"""`loaderd check`: what is found by making every sample twice, and one sample alone."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from loaderd.cli.check import command
from loaderd_client import Loader
from loaderd_testing.cli_harness import Place


def test_a_good_stream_is_described_and_passes(place: Place) -> None:
    text = place.cli(
        "check",
        place.config(stream="split = '0%:50%'\n[[streams.train.transforms]]\ncall = 'mine:seeded'"),
    ).stdout
    assert "train  mine:Numbers" in text
    assert "samples   20 of 40 (0%:50%), layout mine:Numbers" in text
    for field in (
        "x uint8[4,4], 16 B a row",
        "y int64, 8 B a row",
        "t text",
        "noise float32[4], 16 B a row",
    ):
        assert field in text
    assert "8 rows, 40 B a row, 4 KiB a slot" in text
    assert "memory at full credit: 24 KiB a trainer (prefetch 4, so 6 slots)" in text
    assert re.search(r"speed     [\d,]+ samples/s per worker: read \d+%", text)
    assert "fine      20 of 20 samples made twice, in two processes" in text


def test_every_bad_sample_is_named_whatever_it_does(place: Place) -> None:
    config = place.config(
        args="bad = [3, 4], crash = [17], hang = [23]",
        workers="num_workers = 2\nsample_timeout_s = 1",
    )
    text = place.cli("check", config, "--all", code=1).stdout
    assert "BAD       sample '3' (index 3) failed in read: ValueError: unlucky 3" in text
    assert "BAD       sample '4' (index 4) failed in read: ValueError: unlucky 4" in text
    assert re.search(r"BAD       sample '17' \(index 17\) failed in read: .*SIGSEGV", text)
    assert re.search(r"BAD       sample '23' \(index 23\) failed in read: .*sample_timeout_s", text)
    assert 'raise ValueError("unlucky %d" % index)' in text
    assert (
        "faults    4 bad, 0 different; 40 of 40 samples made once, 40 of them once more, in "
        "another process"
    ) in text


def test_bad_samples_of_one_reason_have_five_lines_and_then_one_for_all(place: Place) -> None:
    config = place.config(args="bad = [1, 2, 3, 4, 5, 6, 7, 30]")
    text = place.cli("check", config, code=1).stdout
    assert text.count("failed in read: ValueError: unlucky") == 5
    assert (
        "BAD       3 more that failed in read with the ValueError of sample '1': '6', '7', '30'"
    ) in text
    assert "faults    8 bad, 0 different" in text


def test_fields_that_differ_between_two_makings_are_named(place: Place) -> None:
    text = place.cli(
        "check",
        place.config(stream="[[streams.train.transforms]]\ncall = 'mine:unseeded'"),
        "--all",
        code=1,
    ).stdout
    assert re.findall(r"DIFFERS   sample '(\d+)' .*different (.*)", text) == [
        ("5", "'x'"),
        ("6", "'x'"),
    ]
    assert "use the rng" in text


def test_a_sample_that_fails_only_sometimes_is_told_apart(place: Place) -> None:
    text = place.cli(
        "check",
        place.config(stream="[[streams.train.transforms]]\ncall = 'mine:sometimes'"),
        "--all",
        code=1,
    ).stdout
    assert "sample '30' (index 30) was made once and failed once" in text
    assert "RuntimeError: only the first time" in text


def test_a_stream_with_a_collate_of_its_own_is_checked_batch_by_batch(place: Place) -> None:
    text = place.cli("check", place.config(stream="collate = 'mine:pad'"), "--all").stdout
    assert "collated" in text
    assert "fine      40 of 40" in text


GROWS = """
def grows(samples, rng):
    first = any(s["t"] == "{first}" for s in samples)
    return {{"all": np.zeros((len(samples), 10 if first else 100_000), np.uint8)}}
"""


def test_the_memory_of_collated_batches_is_that_of_the_largest(place: Place) -> None:
    with open(place.folder / "mine.py", "a") as module:
        module.write(GROWS.format(first="s0"))
    text = place.cli("check", place.config(stream="collate = 'mine:grows'")).stdout
    (slot,) = re.findall(r"collated, (\d+) KiB a slot", text)
    assert int(slot) * 1024 >= 8 * 100_000
    (needed,) = re.findall(r"memory at full credit: (\S+) MiB", text)
    assert float(needed) * (1 << 20) >= 6 * 8 * 100_000


def test_a_stream_that_no_trainer_could_be_served_with_is_not_fine(place: Place) -> None:
    place.config(stream="drop_last = true")
    (place.folder / "config.toml").write_text(
        (place.folder / "config.toml").read_text().replace("batch_size = 8", "batch_size = 4000")
    )
    for more in ([], ["--all"]):
        out = place.cli("check", "config.toml", *more, code=1).stdout
        assert "no whole step: 40 samples, batch_size = 4000" in out
    config = place.folder / "config.toml"
    config.write_text(
        '[daemon]\nmemory = "64KB"\n' + config.read_text().replace("drop_last = true", "")
    )
    assert "[daemon] memory is" in place.cli("check", "config.toml", code=1).stdout


def test_so_many_samples_as_asked_for_are_made_and_no_socket_is_left(
    place: Place, run_base: Path
) -> None:
    """Nor a process, as after every test."""
    config = place.config(stream="drop_last = true")
    text = place.cli("check", config, "--samples", "5").stdout
    assert "fine      5 of 40" in text
    assert "BAD" not in text
    assert not (run_base / "loaderd").exists()


def test_all_streams_are_checked_and_the_worst_decides(place: Place) -> None:
    config = place.config(
        more="[streams.val]\ndataset = 'mine:Numbers'\ndataset_args = {bad = "
        "[1]}\n[streams.none]\nlmdb = 'none.lmdb'\n"
    )
    done = place.cli("check", config, code=3)
    assert "fine      40 of 40" in done.stdout
    assert "faults    1 bad" in done.stdout
    assert "none.lmdb" in done.stderr
    assert "fine" in place.cli("check", config, "--stream", "train").stdout


def test_what_a_worker_prints_is_shown(place: Place) -> None:
    done = place.cli("check", place.config(workers="num_workers = 2\ninit = 'mine:prints'"))
    assert "init of 0" in done.stderr


def test_one_sample_is_made_here_stage_by_stage(place: Place) -> None:
    place.pack(place.images(), "photos.lmdb")
    (place.folder / "c.toml").write_text(
        "[streams.train]\nlmdb = 'photos.lmdb'\n[[streams.train.transforms]]\nop = 'hflip'\np = 1\n"
    )
    for which in (("--index", "11"), ("--key", "b/001.png")):
        text = place.cli("check", "c.toml", *which).stdout
        assert "train  sample 'b/001.png' (index 11)" in text
        assert re.search(r"read +[\d.]+ ms\n  decode +[\d.]+ ms\n  transform +[\d.]+ ms\n", text)
        assert "image uint8[20,30,3]  from 0 to" in text
        assert "label int64  1" in text


def test_what_one_sample_raises_is_shown_whole(place: Place) -> None:
    done = place.cli("check", place.config(args="bad = [3]"), "--index", "3", code=1)
    assert "Traceback (most recent call last)" in done.stderr
    assert 'raise ValueError("unlucky %d" % index)' in done.stderr
    assert "it failed in read: ValueError: unlucky 3" in done.stderr


def test_a_breakpoint_in_user_code_works(place: Place) -> None:
    config = place.config(stream="[[streams.train.transforms]]\ncall = 'mine:stops'")
    done = place.cli("check", config, "--index", "7", stdin="p 'here is', sample['t']\nc\n")
    assert "('here is', 's7')" in done.stdout
    assert "x uint8[4,4]" in done.stdout


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["--index", "40"], 2, "0 to 39"),
        (["--key", "x"], 2, "keys here are the numbers 0 to 39"),
        (["--stream", "val"], 2, "there are: train"),
    ],
)
def test_a_sample_that_is_not_there_is_told(
    place: Place, args: list[str], code: int, said: str
) -> None:
    assert said in place.cli("check", place.config(), *args, code=code).stderr


def test_images_whose_numbers_become_colours_are_told_with_the_word_that_keeps_them(
    place: Place,
) -> None:
    (place.folder / "masks").mkdir()
    numbers = np.arange(12, dtype=np.uint8).reshape(3, 4)
    for n in range(3):
        mask = Image.fromarray(numbers + n)
        mask.putpalette(list(range(256)) * 3)
        mask.save(place.folder / "masks" / f"{n}.png")
    place.pack("masks", "masks.lmdb")
    word = '{op = "decode", field = "image", mode = "index"}'
    assert word in place.cli("inspect", "masks.lmdb").stdout
    config = place.folder / "masks.toml"
    config.write_text('[workers]\nnum_workers = 1\n[streams.train]\nlmdb = "masks.lmdb"\n')
    said = place.cli("check", "masks.toml").stdout
    assert word in said
    assert "image uint8[3,4,3]" in said
    config.write_text(config.read_text() + f"transforms = [{word}]\n")
    kept = place.cli("check", "masks.toml").stdout
    assert "mode" not in kept
    assert "image uint8[3,4,1]" in kept
    with Loader(str(config), stream="train", output="numpy", batch_size=3) as loader:
        batch = next(iter(loader))
    np.testing.assert_array_equal(batch["image"][:, :, :, 0], [numbers + n for n in range(3)])


@pytest.mark.parametrize(("codes", "highest"), [([], 0), ([0, 0], 0), ([1, 0], 1), ([0, 3, 1], 3)])
def test_the_worst_stream_decides_whichever_comes_last(codes: list[int], highest: int) -> None:
    assert command.worst(codes) == highest


def test_after_a_stream_that_was_broken_off_no_other_is_checked() -> None:
    codes = iter([1, 130, 3])
    assert command.worst(codes) == 130
    assert next(codes) == 3


@pytest.mark.parametrize(
    ("stream", "said"),
    [
        ('weights = "w.npy"', "w.npy: No such file or directory"),
        ('bucket_by = "z"', 'bucket_by = "z": samples have no such field; they have'),
        ('bucket_by = "y"\nmax_tokens = 20', "length 21 alone is over max_tokens = 20"),
    ],
)
def test_weights_and_lengths_that_no_trainer_could_be_served_with_are_told(
    place: Place, stream: str, said: str
) -> None:
    text = place.cli("check", place.config(stream=stream), code=1).stdout
    told = [line for line in text.splitlines() if line.startswith("  BAD  ")]
    assert len(told) == 1
    assert said in told[0]
    assert "40 of 40 samples made twice" in text
