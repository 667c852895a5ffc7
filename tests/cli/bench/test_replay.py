"""`loaderd bench --replay`: a training script's own limit, and what that means."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest

from loaderd.cli.bench.replay import TrainerLimit, lines
from loaderd_client import Loader
from loaderd_testing.cli_harness import DEADLINE_S, Place

LIMIT = TrainerLimit("train", 0, 1, 8, 25.0, 0.2, 5.0, 2)


def test_a_limit_above_what_the_workers_give_says_what_they_give() -> None:
    assert lines(LIMIT) == [
        "train  rank 0 of 1, batches of 8",
        "  25.0 batches/s, 200 samples/s: a step takes 40.0 ms where no batch is waited for",
        "  a batch takes 200.0 ms of a worker: this trainer needs 5.0 workers; it has 2",
        "  with 2 it gets 10.0 batches/s and waits 60% of the time: a faster loader would help",
    ]


def test_a_limit_below_what_the_workers_give_needs_nothing() -> None:
    enough = TrainerLimit("train", 0, 1, 8, 25.0, 0.2, 5.0, 6)
    assert lines(enough)[-1] == "  trainer-bound: a faster loader would not help"
    assert len(lines(TrainerLimit("train", 0, 1, 8, 25.0, None, None, 6))) == 2


def test_a_training_script_beside_it_is_measured_and_ends_it(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    config = place.folder / place.config(more='[daemon]\nsocket = "d.sock"')
    command = [sys.executable, "-m", "loaderd", "bench", str(config), "--replay", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as bench:
        with Loader(str(place.folder / "d.sock"), "train", output="numpy") as loader:
            said = train(loader, bench)
        out, error = bench.communicate(timeout=DEADLINE_S)
    assert bench.returncode == 0, said + error
    assert "do not train with it, only measure" in caplog.text
    (limit,) = json.loads(out)
    assert (limit["stream"], limit["batch_size"], limit["workers"]) == ("train", 8, 2)
    assert 0 < limit["batches_per_s"] < 1 / STEP_S
    assert limit["worker_s_per_batch"] > 0
    assert b"start your training script now" in said
    assert not (place.folder / "d.sock").exists()


STEP_S = 0.02


def train(loader: Loader[Any], bench: subprocess.Popen[bytes]) -> bytes:
    """Until the bench has said something of it; returns that."""
    assert bench.stderr is not None
    end_s = time.monotonic() + DEADLINE_S
    os.set_blocking(bench.stderr.fileno(), False)
    said = b""
    while said.count(b"batches/s") < 1:
        for _ in loader:
            time.sleep(STEP_S)
        said += bench.stderr.read() or b""
        assert time.monotonic() < end_s
    os.set_blocking(bench.stderr.fileno(), True)
    return said
