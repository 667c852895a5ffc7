"""A Ray that is installed and cannot be imported is told in one line."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from loaderd.config.ray import RayConfig
from loaderd.engine.channel import Channel, pair
from loaderd.engine.messages import WorkerFault
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_testing.engine_harness import Workshop, numbers
from loaderd_testing.ports import reserved_port


def test_a_ray_that_cannot_be_imported_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("raise ImportError('no\\n  such part')")
    ours, its = pair()
    with its:
        rest = json.dumps([os.getpid(), its.fileno(), 0, 0, 0, 0])
        proxy = subprocess.Popen(
            [sys.executable, "-m", "loaderd.worker", "proxy", rest],
            pass_fds=[its.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        )
    received = Channel(ours, blocking=True).receive()
    assert received is not None
    assert received[0] == WorkerFault("Ray cannot be imported: ImportError: no such part")
    assert proxy.wait(DEADLINE_S) == -9
    ours.close()


@pytest.mark.parametrize("listens", [False, True])
def test_ray_is_loaded_only_where_somebody_listens_at_its_address(
    tmp_path: Path, listens: bool
) -> None:
    (tmp_path / "ray.py").write_text("raise ImportError('it was loaded')")
    with reserved_port() as port, socket.create_server(("127.0.0.1", port)) as head:
        address = f"127.0.0.1:{port}"
        if not listens:
            head.close()
        shop = Workshop(tmp_path, [numbers()], ray=RayConfig(address=address))
        try:
            shop.facts("train")
            shop.pool.start(1, 0.0, True)
            death = shop.death(1)
        finally:
            shop.close()
    assert not death.own
    loaded = "Ray cannot be imported: ImportError: it was loaded"
    assert death.boot.startswith(loaded if listens else f"Ray at {address} is not reachable: ")


def test_it_needs_no_part_of_ray() -> None:
    code = "import sys, loaderd.worker.remote.unavailable; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
