"""Ranks that torchrun starts, on one host or several, and starts again: together they take every
sample once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from loaderd_testing.daemon_harness import Site
from loaderd_testing.deadlines import DEADLINE_S

TRAINER = """
import json, os, signal, sys
from pathlib import Path

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from loaderd import Loader

dist.init_process_group("gloo")
dp, dies_after, sockets = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (dp, dist.get_world_size() // dp), mesh_dim_names=("dp", "tp"))
loader = Loader(sockets[rank % len(sockets)], "train", mesh=mesh["dp"], output="numpy")
saved, taken = Path("saved.json"), []
if saved.exists():
    checkpoint = json.loads(saved.read_text())
    loader.load_state_dict(checkpoint["state"])
    taken = checkpoint["taken"]
dist.barrier()  # all have read it before one writes it
for batch in loader:
    step = [None] * dist.get_world_size()
    dist.all_gather_object(step, batch.indices.tolist())
    taken.append(step)
    if rank == 0:
        Path("new.json").write_text(json.dumps({"state": loader.state_dict(), "taken": taken}))
        os.replace("new.json", saved)
    dist.barrier()
    first_life = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if first_life and rank == 1 and len(taken) == dies_after:
        Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
loader.close()
dist.destroy_process_group()
"""


def trained(
    folder: Path, ranks: int, groups: int, sockets: list[str], dies_after: int = 0
) -> list[list[list[int]]]:
    """The samples of each rank in each step of an epoch.

    dies_after: after so many steps rank 1 is killed, and torchrun starts all again. 0: never.
    """
    (folder / "train.py").write_text(TRAINER)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=1"]
    command += ["--monitor-interval=0.1", "--log-dir=logs", f"--nproc-per-node={ranks}"]
    command += ["train.py", str(groups), str(dies_after), *sockets]
    # else gloo finds addresses of the first life in the store of the second
    env = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    # of two that died between two looks torchrun names the first, which need not be the killed one
    assert (folder / "killed").exists() == (dies_after > 0)
    return json.loads((folder / "saved.json").read_text())["taken"]


def test_two_hosts_that_are_started_again_after_a_death_take_every_sample_once(
    site: Site, tmp_path: Path
) -> None:
    site.write().serve()
    (tmp_path / "other").mkdir()
    other = Site(tmp_path / "other").write().serve()
    try:
        steps = trained(site.folder, 2, 2, [str(site.socket), str(other.socket)], 2)
    finally:
        other.close()
    assert len(steps) == 7
    assert sorted(index for step in steps for rank in step for index in rank) == list(range(100))


def test_four_ranks_in_two_groups_have_the_same_batches_in_a_group(site: Site) -> None:
    site.write().serve()
    steps = trained(site.folder, 4, 2, [str(site.socket)])
    assert len(steps) == 7
    assert all(step[0] == step[1] and step[2] == step[3] for step in steps)
    taken = [index for step in steps for rank in step[::2] for index in rank]
    assert sorted(taken) == list(range(100))
