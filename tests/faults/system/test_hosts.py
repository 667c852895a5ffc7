"""A training on several hosts, each with a daemon and a copy of the data of its own: one is lost."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaderd.data.sample import Sample
from loaderd_testing.daemon_harness import Site, rows, take
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_testing.pipes import line_of
from loaderd_testing.python_processes import TRAINING, python
from loaderd_testing.sample_builders import write_own

SAMPLES, BATCH_SIZE, RANKS_OF_A_HOST = 120, 4, 2
SAVED_STEPS = 2  # a checkpoint is saved after so many, and the host is lost after one more

CONFIG = f"""
[daemon]
socket = "d.sock"
[workers]
num_workers = 1
[streams.train]
lmdb = "train.lmdb"
batch_size = {BATCH_SIZE}
shuffle = true
seed = 5
[[streams.train.transforms]]
op = "random_crop"
size = 4
"""

# a line for each batch; with `holds` it stays in the last of so many until it is ended
TRAINER = """
import json, sys
from loaderd_client import Loader
from loaderd_testing.daemon_harness import plain, rows

given = json.loads(sys.argv[1])
state, holds = given.pop("state"), given.pop("holds")
loader = Loader("d.sock", "train", output="numpy", **given)
if state:
    loader.load_state_dict(state)
for taken, batch in enumerate(loader, 1):
    line = {"step": batch.step, "rows": [*rows([plain(batch)]).items()], "state": loader.state_dict()}
    print(json.dumps(line), flush=True)
    if taken == holds:
        sys.stdin.read()
loader.close()
"""

Batch = dict[str, Any]
Trainer = subprocess.Popen[str]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Site]]:
    pixels = np.random.default_rng(0).integers(0, 256, (SAMPLES, 6, 6, 3), np.uint8)
    database = write_own(
        tmp_path / "train.lmdb", [Sample({"image": image}, images=("image",)) for image in pixels]
    )
    with ExitStack() as ends:
        made = []
        for number in range(4):
            (tmp_path / str(number)).mkdir()
            host = Site(tmp_path / str(number))
            shutil.copyfile(database, host.folder / "train.lmdb")
            host.config.write_text(CONFIG)
            ends.callback(host.close)
            made.append(host.serve())
        yield made


def trainers(
    hosts: list[Site], *, state: object = None, holds: int = 0, **asked: Any
) -> list[Trainer]:
    """The ranks of a training: the first two on the first host, the next two on the second."""
    world_size = RANKS_OF_A_HOST * len(hosts)
    return [
        python(
            "-c",
            TRAINER,
            json.dumps(
                {"state": state, "holds": holds, "rank": rank, "world_size": world_size, **asked}
            ),
            imports=TRAINING,
            cwd=hosts[rank // RANKS_OF_A_HOST].folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]


def end(ranks: list[Trainer]) -> None:
    for rank in ranks:
        rank.kill()
        rank.communicate(timeout=DEADLINE_S)


def finished(rank: Trainer) -> list[Batch]:
    """All batches of a trainer that comes to its end."""
    out, _ = rank.communicate(timeout=DEADLINE_S)
    assert rank.returncode == 0
    return [json.loads(line) for line in out.splitlines()]


def places(rank: int, world_size: int, origin: int, drop_last: bool) -> list[range]:
    """The positions of each step of a rank, from an origin to the end of the epoch."""
    block = world_size * BATCH_SIZE
    steps, left = divmod(SAMPLES - origin, block)
    starts = [origin + step * block + rank * BATCH_SIZE for step in range(steps)]
    whole = [range(start, start + BATCH_SIZE) for start in starts]
    tail = origin + steps * block
    share = range(tail + rank * left // world_size, tail + (rank + 1) * left // world_size)
    return whole if drop_last else [*whole, share]


def samples(ranks: list[list[Batch]]) -> list[int]:
    return [index for batches in ranks for batch in batches for index, _ in batch["rows"]]


def test_a_training_that_loses_one_of_four_hosts_goes_on_with_three_and_takes_every_sample_once(
    hosts: list[Site],
) -> None:
    ranks = trainers(hosts, holds=SAVED_STEPS + 1)
    before = [[json.loads(line_of(rank)) for _ in range(SAVED_STEPS + 1)] for rank in ranks]
    lost = hosts.pop(1)
    lost.workers()  # it remembers them, and looks for them at the end
    lost.kill()
    end(ranks[2:4])
    end(ranks[:2] + ranks[4:])  # what a launcher does with the ranks that are left

    saved = [batches[:SAVED_STEPS] for batches in before]
    state = saved[0][-1]["state"]
    assert [batches[-1]["state"] for batches in saved] == [state] * len(ranks)
    after = {
        drop_last: [*map(finished, trainers(hosts, state=state, drop_last=drop_last))]
        for drop_last in (False, True)
    }

    row = rows(take(hosts[0].loader(batch_size=SAMPLES)))
    order = [*row]
    assert order != sorted(order)

    def expected(rank: int, world_size: int, origin: int, drop_last: bool) -> list[Any]:
        cuts = places(rank, world_size, origin, drop_last)
        return [[[order[at], row[order[at]]] for at in cut] for cut in cuts]

    for rank, batches in enumerate(before):
        assert [batch["rows"] for batch in batches] == expected(rank, 8, 0, True)
    for drop_last, taken in after.items():
        for rank, batches in enumerate(taken):
            assert [batch["rows"] for batch in batches] == expected(rank, 6, 64, drop_last)
            assert [batch["step"] for batch in batches] == [2, 3, 4][: len(batches)]
    assert sorted(samples(saved) + samples(after[False])) == [*range(SAMPLES)]
    # six ranks take 24 samples a step: of the 56 that were left, drop_last leaves out the last 8
    assert sorted(samples(saved) + samples(after[True])) == sorted(order[:112])
