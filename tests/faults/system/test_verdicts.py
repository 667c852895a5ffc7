"""Each kind of load gets its verdict, from a real daemon and a real trainer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from loaderd.cli import status as status_command
from loaderd.data.sample import Sample
from loaderd.server import metrics
from loaderd_testing.daemon_harness import Site
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_testing.sample_builders import coded, write_own

MODULE = """
import time
import numpy as np

class Rows:
    def __init__(self, sleep=0.0, size=16):
        self.sleep, self.row = sleep, np.zeros(size, np.uint8)
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        if self.sleep:
            time.sleep(self.sleep)
        return {"x": self.row}

def slow(sample):
    time.sleep(0.01)
    return sample
"""
CONFIG = """
[daemon]
socket = "d.sock"
memory = "512MiB"
[workers]
num_workers = 2
[streams.read]
dataset = "mine:Rows"
dataset_args = {sleep = 0.01}
batch_size = 8
[streams.decode]
lmdb = "pictures.lmdb"
batch_size = 8
[[streams.decode.transforms]]
op = "resize"
size = 8
exact = true
[streams.transform]
dataset = "mine:Rows"
batch_size = 8
[[streams.transform.transforms]]
call = "mine:slow"
[streams.large]
dataset = "mine:Rows"
dataset_args = {size = 1_000_000}
batch_size = 16
"""


@pytest.fixture(scope="module")
def loads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("loads"))
    (made.folder / "mine.py").write_text(MODULE)
    made.config.write_text(CONFIG)
    noise = np.random.default_rng(0).integers(0, 256, (700, 700, 3), np.uint8)
    photo = Sample({"image": coded(noise)}, encoded=("image",))
    write_own(made.folder / "pictures.lmdb", [photo] * 64)
    made.serve()
    yield made
    made.close()


@pytest.fixture
def judged(loads: Site) -> Iterator[Callable[..., str]]:
    """A trainer that computes for `own_s` after each `burst` batches, until it is told a verdict of
    this kind; returns what it is told.
    """

    def train(
        stream: str, kind: str, *, own_s: float = 0.0, burst: int = 1, prefetch: int = 4
    ) -> str:
        loader = loads.loader(stream=stream, prefetch=prefetch)
        end_s = time.monotonic() + DEADLINE_S
        while True:
            for n, _ in enumerate(loader, 1):
                if n % burst:
                    continue
                said: str = loader.stats()["verdict"]
                if said.startswith(kind):
                    return said
                assert time.monotonic() < end_s, f"told {said!r}, not {kind}"
                if own_s:
                    time.sleep(own_s)

    yield train
    loads.end_sessions()


def test_a_dataset_that_sleeps_is_read_bound_wherever_one_looks(
    loads: Site, judged: Callable[..., str]
) -> None:
    said = judged("read", "read-bound")
    assert "this trainer needs" in said
    assert "it has 2" in said
    status = loads.status()
    assert status["verdict"] == status["sessions"][0]["verdict"]
    assert (status["verdict"]["kind"], status["verdict"]["workers"]) == ("read-bound", 2)
    assert status["verdict"]["need_workers"] > 2
    assert "verdict  read-bound: " in loads.shown()
    assert 'verdict="read-bound"} 1' in metrics.text(status_command.fetch(str(loads.socket)))


@pytest.mark.parametrize(
    ("stream", "kind", "trainer"),
    [
        ("decode", "decode-bound", {}),
        ("transform", "transform-bound", {}),
        ("large", "handoff-bound", {}),
        ("large", "trainer-bound", {"own_s": 0.2}),
        ("read", "memory-bound", {"own_s": 0.3, "burst": 4, "prefetch": 1}),
    ],
)
def test_each_kind_of_load_has_its_verdict(
    judged: Callable[..., str], stream: str, kind: str, trainer: dict[str, Any]
) -> None:
    assert judged(stream, kind, **trainer).startswith(f"{kind}: the trainer waits ")
