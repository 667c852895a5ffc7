"""The programs of client/examples, run on a daemon of the tests, and what they have trained on."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from loaderd_client import Loader
from loaderd_testing import trainer_forks
from loaderd_testing.daemon_harness import Site, alive, children
from loaderd_testing.deadlines import DEADLINE_S, until
from loaderd_testing.pages import ROOT
from loaderd_testing.witnesses import WITNESSES, parts, processes

FOLDER = ROOT / "client" / "examples"
SAMPLES = 120  # of the stream "train", as config.toml says
LINE = re.compile(r"^epoch (\d+) step (\d+) samples \[(.*?)\]", re.M)

# A sample of the examples' data that a test holds back: a run stands before it, and can be killed
# at a place that is known.
HELD = """
import fcntl, os
from points import Points

class Held(Points):
    def __init__(self, held, **args):
        super().__init__(**args)
        self.held = held
    def __getitem__(self, index):
        try:
            with open(f"{self.held}-{index}") as file:
                fcntl.flock(file, fcntl.LOCK_SH)
        except FileNotFoundError:
            pass
        return super().__getitem__(index)
"""

# an optimizer imports torch._dynamo
IMPORTS = ("torch", "torch._dynamo", "torch.distributed")

Step = tuple[int, int, list[int]]  # epoch, step, indices of the samples


def steps_in(text: str) -> list[Step]:
    """What the lines of an example say: one a step."""
    return [
        (int(epoch), int(step), json.loads(f"[{samples}]"))
        for epoch, step, samples in LINE.findall(text)
    ]


class Run:
    """An example that runs."""

    def __init__(self, examples: Examples, pid: int, out: Path, ranks: int) -> None:
        self.pid = pid
        self._examples, self._out, self._ranks = examples, out, ranks

    def plight(self) -> str:
        """What its processes are doing, for a wait that was in vain."""
        return parts(example=self.all_text, processes=lambda: processes(self.pid))

    def text(self, rank: int = 0, life: int = 0) -> str:
        """What it has printed so far."""
        path = Path(f"{self._out}.{rank}.{life}") if self._ranks else self._out
        return path.read_text() if path.exists() else ""

    def steps(self, rank: int = 0, life: int = 0) -> list[Step]:
        return steps_in(self.text(rank, life))

    def all_text(self) -> str:
        return "\n".join(path.read_text() for path in self._out.parent.glob(f"{self._out.name}*"))

    def has_trained(self, steps: int) -> None:
        """Wait until every rank has done so many steps."""
        ranks = range(max(self._ranks, 1))
        until(
            f"{steps} steps",
            lambda: (
                min(len(self.steps(rank)) for rank in ranks) >= steps
                or self._examples.ended(self.pid) is not None
            ),
        )
        assert self._examples.ended(self.pid) is None, self.all_text()

    def kill_a_rank(self) -> None:
        os.kill(children(self.pid)[-1], signal.SIGKILL)

    def kill(self) -> None:
        """Kill all its processes."""
        ranks = children(self.pid)
        os.killpg(self.pid, signal.SIGKILL)
        for one in ranks:  # in sessions of their own, and gone already if torch was quicker
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        self.code()

    def code(self) -> int:
        """Its exit code, when it has ended."""
        until("the end of an example", lambda: self._examples.ended(self.pid) is not None)
        code = self._examples.ended(self.pid)
        assert code is not None
        return code

    def finished(self) -> Run:
        assert self.code() == 0, self.all_text()
        return self


class Examples:
    """A copy of client/examples, its daemon, and the process that its trainers are forked from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(
            FOLDER, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
        (folder / "held.py").write_text(HELD)
        self.site = Site(folder)
        self._held = folder / "held"
        text = self.site.config.read_text().replace("points:Points", "held:Held")
        text = text.replace("dataset_args = {", f'dataset_args = {{ held = "{self._held}",')
        self.site.config.write_text(
            f'[daemon]\nsocket = "d.sock"\n{text}'.replace(
                "num_workers = 2", "num_workers = 2\nsample_timeout_s = 1000"
            )
        )
        self.site.serve()
        # gloo finds addresses of a first life in the store of the second, without the first
        env = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        env["PYTHONPATH"] = str(Path(trainer_forks.__file__).parents[1])
        env["TMPDIR"] = str(folder / "tmp")  # torchrun leaves folders there
        (folder / "tmp").mkdir()
        self._server = subprocess.Popen(
            [sys.executable, trainer_forks.__file__],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        WITNESSES[self] = self._plight
        self._runs: list[Run] = []
        self._codes: dict[int, int] = {}
        self._rest = b""
        self._count = 0

    def start(
        self, name: str, *args: str, ranks: int = 0, imports: tuple[str, ...] = (), **env: str
    ) -> Run:
        """Run an example as `python NAME CONFIG ARGS`, or with ranks under torchrun.

        imports: what it imports beside torch, so that the next one need not.
        """
        self._count += 1
        out = self.folder / f"out-{self._count}"
        request = {
            "program": str(self.folder / name),
            "args": [str(self.site.config), *args],
            "env": env,
            "folder": str(self.folder),
            "out": str(out),
            "ranks": ranks,
            "imports": [*IMPORTS, *imports],
        }
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(request).encode() + b"\n")
        self._server.stdin.flush()
        while "code" in (said := self._said()):
            self._codes[said["pid"]] = said["code"]
        self._runs.append(Run(self, said["pid"], out, ranks))
        return self._runs[-1]

    def _plight(self) -> str:
        return "\n".join(run.plight() for run in self._runs if self.ended(run.pid) is None)

    def ended(self, pid: int) -> int | None:
        """The exit code of a run, if it has ended."""
        assert self._server.stdout is not None
        while b"\n" in self._rest or select.select([self._server.stdout], [], [], 0)[0]:
            said = self._said()
            self._codes[said["pid"]] = said["code"]
        return self._codes.get(pid)

    def _said(self) -> dict[str, Any]:
        assert self._server.stdout is not None
        while b"\n" not in self._rest:
            assert select.select([self._server.stdout], [], [], DEADLINE_S)[0]
            part = os.read(self._server.stdout.fileno(), 1 << 16)
            assert part, "the process that forks has ended"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    @contextmanager
    def held_back(self, sample: int) -> Iterator[None]:
        """Nobody gets a batch with this sample meanwhile."""
        path = Path(f"{self._held}-{sample}")
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
            path.unlink()

    def undisturbed(
        self, epochs: int, rank: int = 0, world_size: int = 1, **options: Any
    ) -> list[Step]:
        """The steps of one rank that nothing stops."""
        options |= {"output": "numpy", "rank": rank, "world_size": world_size}
        with Loader(self.site.socket, "train", **options) as loader:
            return [
                (batch.epoch, batch.step, batch.indices.tolist())
                for _ in range(epochs)
                for batch in loader
            ]

    def close(self) -> None:
        WITNESSES.pop(self, None)
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.stdout.close()
        self._server.wait(DEADLINE_S)
        self.site.close()
        assert not alive(self._server.pid)
