from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from loaderd_client import ConfigError, Loader
from loaderd_client.ranks import Rank, settle, still
from loaderd_testing.fake_daemon import FakeDaemon
from loaderd_testing.pages import block
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


def compare(loader: Loader[Any], first: list[Any]) -> None:
    """Run the lines of the page on a rank, where rank 0 says `first`."""

    def broadcast(said: list[Any]) -> None:
        assert len(said) == len(first)
        said[:] = first

    torch = SimpleNamespace(distributed=SimpleNamespace(broadcast_object_list=broadcast))
    lines = block("deploy/README.md", "python", "broadcast_object_list")
    exec(lines, {"loader": loader, "torch": torch})


def test_the_lines_that_compare_hosts_pass_equal_ones_and_name_what_differs(
    fake: Callable[..., FakeDaemon], load: Callable[..., Loader[Any]]
) -> None:
    fake()
    first, rank = load(rank=0, world_size=2), load(rank=1, world_size=2)
    said = [first.state_dict(), first.batch_size, first.drop_last]
    compare(rank, said)
    other_data = {**said[0], "order": {**said[0]["order"], "data": "another"}}
    with pytest.raises(ConfigError, match="data was another"):
        compare(rank, [other_data, *said[1:]])
    with pytest.raises(AssertionError, match=r"batch_size, drop_last: \[4, True\] on rank 0"):
        compare(rank, [said[0], 4, True])
