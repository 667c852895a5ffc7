"""A Ray cluster on this machine: a head without room for workers, and nodes that have some.

It runs below a process of its own: what Ray starts and ends there is no leftover of a test, and
Ray's own files lie in a folder of theirs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loaderd.config.ray import RayConfig
from loaderd_testing import leaks
from loaderd_testing.deadlines import until
from loaderd_testing.ports import reserved_port

STORE_BYTES = 80 << 20  # about the least that Ray takes
CPUS = 2  # of a node


class Nodes:
    """A running cluster.

    Attributes:
        address: Of its head.
    """

    def __init__(self, process: subprocess.Popen[str], folder: str) -> None:
        self._process = process
        self._folder = f"RAY_TMPDIR={folder}".encode()  # in the environment of all that is its own
        self.address = self._answer()

    def config(self, num_workers: int = 1, **more: Any) -> RayConfig:
        return RayConfig(address=self.address, num_workers=num_workers, **more)

    def ask(self, order: str) -> None:
        """add: one more node. lose: the last one is gone, as if its machine were off. behead: the
        head is; nothing can be asked afterwards.
        """
        assert self._process.stdin is not None
        print(order, file=self._process.stdin, flush=True)
        assert self._answer() == order

    def actors(self) -> set[int]:
        """Pids of the actors' processes. Another test run may have some on this machine, too."""
        return {
            int(place.name)
            for place in Path("/proc").glob("[0-9]*")
            if b"ray::NodeWorker" in _read(place / "cmdline")
            and self._folder in _read(place / "environ").split(b"\0")
        }

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "the process of the cluster has ended"
        return line


@contextmanager
def two_nodes() -> Iterator[Nodes]:
    """A head, and one node with room for CPUS workers."""
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    # what is ours of the environment would mark its processes as a test's
    run = str(Path(tempfile.gettempdir()).parent)
    env = {name: value for name, value in os.environ.items() if run not in value}
    env |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": folder}
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    process = subprocess.Popen(
        [sys.executable, "-m", "loaderd_testing.ray_nodes"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=env,
    )
    leaks.KEPT_PIDS.add(process.pid)
    try:
        with process:
            yield Nodes(process, folder)
    finally:
        leaks.KEPT_PIDS.discard(process.pid)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def head_with_a_token(folder: Path) -> Iterator[str]:
    """The process of a head that whoever connects asks first; it wants a token. Gives its address."""
    spec = importlib.util.find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    with reserved_port() as port, _head(folder, os.path.dirname(spec.origin), port):
        until("the head", lambda: listens(port))
        yield f"127.0.0.1:{port}"


@contextmanager
def _head(folder: Path, ray: str, port: int) -> Iterator[None]:
    program = f"{ray}/core/src/ray/gcs/gcs_server"
    options = {
        "log_dir": folder, "gcs_server_port": port, "node-ip-address": "0.0.0.0", "session-name": "test", "config_list": "e30="
    }  # fmt: skip
    process = subprocess.Popen(
        [program, *(f"--{name}={value}" for name, value in options.items())],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "t" * 64},
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended, or is another user's
        return b""


def listens(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port)).close()
        return True
    return False


def main() -> None:
    """Run a cluster until the end of the standard input."""
    from ray.cluster_utils import Cluster

    answers = os.dup(1)
    os.dup2(2, 1)  # Ray prints
    head = {"num_cpus": 0, "include_dashboard": False}
    sizes: Any = {"object_store_memory": STORE_BYTES}
    cluster: Any = Cluster(initialize_head=True, head_node_args={**head, **sizes})
    nodes = [cluster.add_node(num_cpus=CPUS, **sizes)]
    os.write(answers, f"{cluster.address}\n".encode())
    try:
        for line in sys.stdin:
            if line.strip() == "add":
                nodes.append(cluster.add_node(num_cpus=CPUS, **sizes))
            elif line.strip() == "lose":
                cluster.remove_node(nodes.pop(), allow_graceful=False)
            else:
                cluster.remove_node(cluster.head_node, allow_graceful=False)
            os.write(answers, line.encode())
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
