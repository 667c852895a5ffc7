"""`loaderd bench`: the figures are there, whatever they are, and nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loaderd.cli.bench import dataloader
from loaderd.config import load
from loaderd_testing.cli_harness import DEADLINE_S, Place, until

NO_TORCH = """
from importlib.machinery import PathFinder
real = PathFinder.find_spec
PathFinder.find_spec = classmethod(lambda cls, name, path=None, target=None: None if name == "torch" else real(name, path, target))
"""
FIGURES = {
    "batches_s",
    "samples_s",
    "bytes_s",
    "next_p50_s",
    "next_p99_s",
    "ready_p50_s",
    "ready_p99_s",
    "cpu_s",
    "first_s",
}


@pytest.fixture
def no_torch(place: Place) -> dict[str, str]:
    """An environment in which there is no torch: to import it is most of the time of a short run."""
    (place.folder / "sitecustomize.py").write_text(NO_TORCH)
    return {"PYTHONPATH": str(place.folder)}


@pytest.fixture
def temporary(place: Place, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where bench puts its sockets and files."""
    folder = place.folder / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def processes(word: str) -> list[str]:
    """Command lines of all processes that have the word in theirs, but this one's."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if word in line:
                found.append(line)
    return found


def gone(temporary: Path) -> bool:
    return not processes(str(temporary)) and not list(temporary.iterdir())


def test_the_loader_alone_is_measured_and_nothing_is_left(
    place: Place, temporary: Path, run_base: Path
) -> None:
    facts = json.loads(place.cli("bench", place.config(), "--seconds", "0.5", "--json").stdout)
    assert facts["loaderd"].keys() >= FIGURES
    assert all(facts["loaderd"][name] > 0 for name in FIGURES)
    assert facts["loaderd"]["samples_s"] / facts["loaderd"]["batches_s"] == pytest.approx(8)
    assert facts["loaderd"]["bytes_s"] / facts["loaderd"]["samples_s"] == pytest.approx(16 + 8)
    assert list(facts["parts_s"]) == [
        "read",
        "decode",
        "transform",
        "write",
        "schedule",
        "announce",
        "wrap",
    ]
    assert all(facts["parts_s"][name] > 0 for name in ("read", "schedule", "announce", "wrap"))
    assert (
        facts["whole_s"]
        > facts["parts_s"]["schedule"] + facts["parts_s"]["announce"] + facts["parts_s"]["wrap"]
    )
    assert facts["loaderd"]["turn_s"] > 0
    assert 0 <= facts["ready"] <= facts["prefetch"]
    assert facts["versions"]["loaderd"]
    assert "dataloader" not in facts
    until("everything of it to be gone", lambda: gone(temporary))
    assert not (run_base / "loaderd").exists()


def test_the_same_stream_in_a_dataloader_is_measured_beside_it(
    place: Place, temporary: Path
) -> None:
    config = place.config(
        stream="[[streams.train.transforms]]\ncall = 'mine:seeded'",
        workers="num_workers = 1\ninit = 'mine:prints'",
    )
    asked = ("--seconds", "0.3", "--against", "dataloader", "--rounds", "1")
    text = place.cli("bench", config, *asked).stdout
    assert "1 worker, batches of 8, prefetch 4, 0.3 s a round\n" in text
    for row in (
        "batches/s",
        "samples/s",
        "MB/s",
        r"next\(\) p50, ms",
        r"next\(\) p99 after a pause, us",
        "trainer CPU a batch, us",
    ):
        assert re.search(rf"{row} +[\d.e+,]+ +[\d.e+,]+ +[\d.]+x\n", text), row
    assert_parts(text, "transform")
    assert re.search(r"loaderd \S+, torch \S+, numpy ", text)
    until("everything of it to be gone", lambda: gone(temporary))


def assert_parts(text: str, *stages: str) -> None:
    """Each part of a batch's time has its line."""
    parts = ("read", *stages, "write", r"schedule \(daemon\)", r"announce \(daemon\)")
    for row in (*parts, r"wrap \(trainer\)", "sum", "all CPU, less reading the batch"):
        assert re.search(rf"  {row} +[\d.e+-]+ ms", text), row
    assert re.search(r"of which the sum is \d+%", text)


def test_a_stream_with_a_collate_of_its_own_is_measured_too(place: Place, temporary: Path) -> None:
    asked = ("--seconds", "0.2", "--against", "dataloader", "--rounds", "1", "--json")
    config = place.config(stream="collate = 'mine:pad'")
    facts = json.loads(place.cli("bench", config, *asked).stdout)
    assert facts["dataloader"]["samples_s"] / facts["dataloader"]["batches_s"] == pytest.approx(8)
    assert facts["ratio"]["batches_s"] == pytest.approx(
        facts["loaderd"]["batches_s"] / facts["dataloader"]["batches_s"]
    )


def test_a_dataloader_collates_as_the_stream_does(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = place.config(stream="collate = 'mine:pad'")
    (stream,) = load.load(str(place.folder / config), {}, 0).streams
    monkeypatch.syspath_prepend(place.folder)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    loader: Any = dataloader.make(stream.to_json(), str(place.folder), "", 1, 4)
    samples = [loader.dataset[at] for at in range(loader.batch_size)]
    batch = loader.collate_fn(samples)
    loader.dataset._close()
    assert batch["all"].shape == (8, 16)
    assert batch["t"] == [f"s{number}" for number in range(8)]


def test_without_torch_only_the_loader_alone_can_be_measured(
    place: Place, temporary: Path, no_torch: dict[str, str]
) -> None:
    config = place.config()
    done = place.cli("bench", config, "--against", "dataloader", code=3, env=no_torch)
    assert "torch is not installed" in done.stderr
    text = place.cli("bench", config, "--seconds", "0.2", env=no_torch).stdout
    assert re.search(r"  samples/s +[\d.e+,]+\n", text)
    assert_parts(text)


def test_a_daemon_that_cannot_start_says_why(place: Place, temporary: Path) -> None:
    (place.folder / "c.toml").write_text("[streams.train]\nlmdb = 'none.lmdb'\n")
    done = place.cli("bench", "c.toml", "--seconds", "0.2", code=3)
    assert "the daemon could not start" in done.stderr
    assert "none.lmdb" in done.stderr
    assert gone(temporary)


def test_a_bad_sample_ends_it_with_its_name(
    place: Place, temporary: Path, no_torch: dict[str, str]
) -> None:
    asked = (place.config(args="bad = [3]"), "--seconds", "0.2")
    done = place.cli("bench", *asked, code=4, env=no_torch)
    assert "SampleError" in done.stderr
    assert "unlucky 3" in done.stderr
    until("everything of it to be gone", lambda: gone(temporary))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_breaking_it_off_leaves_nothing(place: Place, temporary: Path, number: int) -> None:
    command = [sys.executable, "-m", "loaderd", "bench", place.config(), "--seconds", "600"]
    with subprocess.Popen(
        command, cwd=place.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as bench:
        try:
            until(
                "its trainer",
                lambda: any("loaderd_client._bench" in line for line in processes(str(temporary))),
            )
            bench.send_signal(number)
            assert bench.wait(DEADLINE_S) == 130
        finally:
            bench.kill()
    until("everything of it to be gone", lambda: gone(temporary))


def test_a_long_name_of_the_folder_for_temporary_files_is_no_hindrance(
    place: Place, temporary: Path, monkeypatch: pytest.MonkeyPatch, no_torch: dict[str, str]
) -> None:
    long = temporary / ("x" * 90)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    asked = (place.config(), "--seconds", "0.2", "--json")
    facts = json.loads(place.cli("bench", *asked, env=no_torch).stdout)
    assert facts["loaderd"]["samples_s"] > 0
    assert list(long.iterdir()) == []
