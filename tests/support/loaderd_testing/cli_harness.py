"""A folder with a user's module, configs and images, and the command line run in it as a process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from loaderd.data.packing.inputs import pack_imagefolder
from loaderd_testing.daemon_harness import DEADLINE_S, until
from loaderd_testing.python_processes import command, run

__all__ = ["DEADLINE_S", "Place", "until"]

ROOT = Path(__file__).parents[3]
MODULE = '''
import os, select, signal, sys, time
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))

class Numbers:
    """x, y and t are functions of the index. `bad`: indices that raise; `gate`: a file that must be there before it can be built."""
    def __init__(self, n=40, bad=(), crash=(), hang=(), gate=""):
        end = time.monotonic() + 60
        while gate and not os.path.exists(os.path.join(HERE, gate)):
            assert time.monotonic() < end, "nobody made " + gate
            select.select([], [], [], 0.01)
        self.n, self.bad, self.crash, self.hang = n, bad, crash, hang
    def __len__(self):
        return self.n
    def __getitem__(self, index):
        if index in self.bad:
            raise ValueError("unlucky %d" % index)
        if index in self.crash:
            os.kill(os.getpid(), signal.SIGSEGV)
        if index in self.hang:
            time.sleep(1000)
        return {"x": np.full((4, 4), index, np.uint8), "y": index, "t": "s%d" % index}

def seeded(sample, rng):
    sample["noise"] = rng.random(4, np.float32)
    return sample

def unseeded(sample, rng):
    if sample["y"] in (5, 6):
        sample["x"] = np.frombuffer(os.urandom(16), np.uint8).reshape(4, 4)
    return sample

def sometimes(sample, rng):
    if sample["y"] == 30:
        try:
            os.close(os.open(os.path.join(HERE, "once"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return sample
        raise RuntimeError("only the first time")
    return sample

def stops(sample, rng):
    breakpoint()
    return sample

def pad(samples, rng):
    return {"all": np.concatenate([s["x"].ravel() for s in samples]).reshape(len(samples), -1), "t": [s["t"] for s in samples]}

def prints(worker_id):
    print("init of", worker_id)
'''


class Place:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.daemons: list[subprocess.Popen[bytes]] = []
        (folder / "mine.py").write_text(MODULE)

    def config(
        self,
        name: str = "config.toml",
        *,
        args: str = "",
        stream: str = "",
        workers: str = "num_workers = 2",
        more: str = "",
    ) -> str:
        """A config with the stream `train` of Numbers; its name."""
        (self.folder / name).write_text(
            f"[workers]\n{workers}\n[streams.train]\ndataset = 'mine:Numbers'\ndataset_args = "
            f"{{{args}}}\nbatch_size = 8\n{stream}\n{more}"
        )
        return name

    def images(self, name: str = "photos", classes: str = "ab", each: int = 10) -> str:
        """Class folders of small PNG files, each of its own colours; their name."""
        for label in classes:
            (self.folder / name / label).mkdir(parents=True)
            for n in range(each):
                pixels = np.random.default_rng([ord(label), n]).integers(
                    0, 256, (20, 30, 3), np.uint8
                )
                Image.fromarray(pixels).save(self.folder / name / label / f"{n:03}.png")
        return name

    def pack(self, folder: str, target: str) -> str:
        """What `loaderd pack imagefolder FOLDER TARGET --no-random-access` writes, without the
        command; the target's name.
        """
        pack_imagefolder(str(self.folder / folder), str(self.folder / target), random_access=False)
        return target

    def cli(self, *args: str, code: int = 0, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run `loaderd ARGS` here; fails unless it ends with `code`."""
        done = run(*args, cwd=self.folder, **more)
        assert done.returncode == code, (
            f"{args} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
        return done

    def serve(
        self,
        config: str,
        *args: str,
        ready: bool = True,
        **more: Any,
    ) -> subprocess.Popen[bytes]:
        """`loaderd serve`, its log in <config>.log; waits for its ready line unless told not to."""
        log = self.folder / f"{config}.log"
        with log.open("wb") as file:
            daemon = command(
                "serve",
                config,
                *args,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                **more,
            )
        self.daemons.append(daemon)
        if ready:
            until(
                "the ready line",
                lambda: b"ready: " in log.read_bytes() or daemon.poll() is not None,
            )
            assert daemon.poll() is None, log.read_text()
        return daemon

    def log(self, config: str) -> str:
        return (self.folder / f"{config}.log").read_text()

    def status(self, target: str) -> dict[str, Any]:
        return json.loads(self.cli("status", target, "--json").stdout)

    def bare(self) -> str:
        """A copy of loaderd without its native parts; the value of PYTHONPATH that has it imported."""
        for name in ("loaderd", "client"):
            shutil.copytree(
                ROOT / name,
                self.folder / "bare" / name,
                ignore=shutil.ignore_patterns("__pycache__", "*.so"),
            )
        return f"{self.folder}/bare{os.pathsep}{self.folder}/bare/client"

    def close(self) -> None:
        for daemon in self.daemons:
            if daemon.poll() is None:
                daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
                raise
