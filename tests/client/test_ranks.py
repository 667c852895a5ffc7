from __future__ import annotations

import pytest

from loaderd_client import ConfigError
from loaderd_client.ranks import Rank, settle, still
from loaderd_testing.python_processes import TORCH, run_code


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, Rank(0, 1, "default")),
        ({"WORLD_SIZE": "1"}, Rank(0, 1, "default")),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, Rank(3, 8, "environment")),
        ({"LOCAL_RANK": "3"}, Rank(0, 1, "default")),
    ],
)
def test_the_environment_tells_the_rank(env: dict[str, str], expected: Rank) -> None:
    assert settle(None, None, env) == expected


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"WORLD_SIZE": "8"}, ["WORLD_SIZE=8", "RANK"]),
        ({"RANK": "0"}, ["RANK=0", "WORLD_SIZE"]),
        ({"RANK": "8", "WORLD_SIZE": "8"}, ["RANK=8", "WORLD_SIZE=8"]),
        ({"RANK": "one", "WORLD_SIZE": "8"}, ["RANK='one'"]),
        ({"RANK": "-1", "WORLD_SIZE": "8"}, ["RANK='-1'"]),
    ],
)
def test_half_of_it_is_refused_by_name(env: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        settle(None, None, env)
    assert all(word in str(caught.value) for word in words)


def test_an_argument_outranks_the_environment() -> None:
    assert settle(1, 2, {"RANK": "3", "WORLD_SIZE": "8"}) == Rank(1, 2, "argument")


GROUP = """
import sys, tempfile
import torch.distributed as dist
from loaderd_client import ConfigError, ranks
before = ranks.settle(None, None, {})
assert before == ranks.Rank(0, 1, "default")
ranks.still(before)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
assert ranks.settle(None, None, {"RANK": "3", "WORLD_SIZE": "8"}) == ranks.Rank(0, 1, "torch.distributed")
ranks.still(before)
ranks.still(ranks.Rank(1, 2, "argument"))
try:
    ranks.still(ranks.Rank(3, 8, "environment"))
except ConfigError as error:
    assert "rank 3 of 8" in str(error) and "rank 0 of 1" in str(error)
    print("refused")
dist.destroy_process_group()
"""


def test_a_process_group_that_says_otherwise_later_is_refused() -> None:
    done = run_code(GROUP, TORCH)
    assert done.stdout == "refused\n", done.stderr


def test_without_a_group_nothing_is_compared() -> None:
    still(Rank(3, 8, "environment"))


MESH = """
import pickle
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from loaderd_client import ConfigError, Loader, ranks
dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=8)
mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
print(ranks.of_mesh(mesh["dp"]), ranks.of_mesh(mesh["tp"]))
loader = Loader("d.sock", "train", mesh=mesh["dp"])
print(loader._arguments.rank, loader._arguments.world_size)
print(pickle.loads(pickle.dumps(loader))._arguments.rank)
for given in (
    {"mesh": mesh}, {"mesh": mesh["dp"], "rank": 0}, {"mesh": 3}, {"mesh": DeviceMesh("cpu", [0, 1])}
):
    try:
        Loader("d.sock", "train", **given)
    except ConfigError as error:
        print(error)
dist.destroy_process_group()
"""


def test_a_dimension_of_a_mesh_tells_the_rank() -> None:
    done = run_code(MESH, TORCH)
    assert done.stdout.splitlines() == [
        "(2, 4) (1, 2)",
        "2 4",
        "2",
        "mesh= has several dimensions (dp, tp): give the one of the data-parallel ranks, as in "
        'mesh["dp"]',
        "mesh= is given with rank= or world_size=: give one of them",
        'mesh=3: give one dimension of a torch.distributed DeviceMesh, as in mesh["dp"]',
        "this process is not in the mesh= of 2 ranks: give one that it is in, or rank= and "
        "world_size=",
    ], done.stderr
