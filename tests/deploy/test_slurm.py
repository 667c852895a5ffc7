"""The script for Slurm, with commands of paper that run everything on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from loaderd.data.sample import Sample
from loaderd_testing.daemon_harness import until
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_testing.sample_builders import write_own

SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "train.sbatch"
COMMANDS = {
    "srun": """
        echo "$@" >> "$HERE/steps"
        while [[ $1 == --* ]]; do shift; done
        SLURM_PROCID=0 SLURM_LOCALID=0 exec "$@"
    """,
    "scontrol": '[ "$1" = show ] && echo node1 || echo "$@" >> "$HERE/requeued"',
    "loaderd": 'exec "$PYTHON" -m loaderd "$@"',
}
TRAIN = """
import json, os, signal, sys
from loaderd_client import Loader

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
with Loader(sys.argv[1], stream="train", output="numpy") as loader:
    for batch in loader:
        if batch.step == 1:
            print('step 1 of rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)
            signal.sigwait([signal.SIGUSR1])
            print(json.dumps(loader.state_dict()), flush=True)
            break
"""


@pytest.mark.needs("shellcheck")
def test_the_script_passes_shellcheck() -> None:
    done = subprocess.run(
        ["shellcheck", SCRIPT], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_a_job_that_is_preempted_saves_its_place_drains_and_is_queued_again(tmp_path: Path) -> None:
    for name, text in COMMANDS.items():
        command = tmp_path / "bin" / name
        command.parent.mkdir(exist_ok=True)
        command.write_text(f"#!/usr/bin/env bash\n{text}\n")
        command.chmod(0o755)
    (tmp_path / "train.py").write_text(TRAIN)
    samples = [Sample({"y": np.array(i, np.int64)}) for i in range(40)]
    write_own(tmp_path / "train.lmdb", samples)
    (tmp_path / "disk").mkdir()
    config = tmp_path / "config.toml"
    config.write_text(
        '[daemon]\nsocket = "/tmp/loaderd-${SLURM_JOB_ID}/train.sock"\nstage = "disk"\n[workers]\nnum_workers = 1\n'
        '[streams.train]\nlmdb = "train.lmdb"\nbatch_size = 4\nshuffle = true\n'
    )
    job = f"test-{os.getpid()}"
    allocated = {
        "JOB_ID": job,
        "NTASKS": "1",
        "JOB_NUM_NODES": "1",
        "JOB_NODELIST": "node[1]",
        "CPUS_ON_NODE": "2",
        "CPUS_PER_TASK": "1",
    }
    env = {
        **os.environ,
        **{f"SLURM_{name}": value for name, value in allocated.items()},
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "HERE": str(tmp_path),
        "PYTHON": sys.executable,
    }
    socket = f"/tmp/loaderd-{job}/train.sock"
    command = ["bash", SCRIPT, config, sys.executable, tmp_path / "train.py", socket]
    out = tmp_path / "out"
    with out.open("wb") as log:
        batch = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        until(
            "step 1", lambda: batch.poll() is not None or "step 1 of rank 0 of 1" in out.read_text()
        )
        batch.send_signal(signal.SIGUSR1)
        assert batch.wait(DEADLINE_S) == 0, out.read_text()
    finally:
        batch.kill()
        batch.wait()
    state = next(json.loads(line) for line in out.read_text().splitlines() if line[0] == "{")
    assert (state["epoch"], state["position"]) == (0, 8)
    assert "draining: requested by" in out.read_text()
    assert (tmp_path / "requeued").read_text() == f"requeue {job}\n"
    assert not Path(socket).parent.exists()
    serve = next(line for line in (tmp_path / "steps").read_text().splitlines() if "serve" in line)
    assert "--overlap" in serve
    assert "--ntasks-per-node=1" in serve
    (copy,) = tmp_path.glob("disk/loaderd-*/train-*.mdb")
    assert copy.read_bytes() == (tmp_path / "train.lmdb").read_bytes()
