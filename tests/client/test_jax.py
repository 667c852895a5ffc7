"""JAX uses the memory of a batch in place, and keeps it as long as it needs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from loaderd_testing.fake_daemon import FakeDaemon

PROGRAM = """
import sys
import jax, numpy as np
from loaderd_client import Loader

in_place, kept = 0, []
with Loader(sys.argv[1], "train", output="numpy", batch_size=5, fields=["x"], prefetch=1) as loader:
    for epoch in range(2):
        for batch in loader:
            on_device = jax.device_put(batch["x"])
            in_place += on_device.unsafe_buffer_pointer() == batch["x"].ctypes.data
            kept.append((batch.indices % 251, on_device))
            del batch, on_device
            kept[:-2] = []
            for rows, x in kept:
                assert (np.asarray(x) == rows[:, None, None]).all(), rows
print(in_place)
"""


def test_what_jax_keeps_of_a_batch_is_not_overwritten(tmp_path: Path) -> None:
    with FakeDaemon(tmp_path) as daemon:
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(daemon.path)], capture_output=True, text=True
        )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 0
