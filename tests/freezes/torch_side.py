"""The same situations under torch's DataLoader and under loaderd, each in a process with a limit; prints README.md's table.

    python tests/freezes/torch_side.py [--only S13] [--limit 30]

Each case is a `Data` class. Both sides go through its 48 samples in batches of 8 with 2 workers and print a line a batch; what is reported is
how far they came, how they ended, and what they said.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parents[1]
HEAD = """
import ctypes, multiprocessing, os, re, signal, sys, threading, time
import numpy as np

class Base:
    def __len__(self):
        return 48
    def __getitem__(self, index):
        if index == 21:
            return self.odd(index)
        return self.good(index)
    def good(self, index):
        return {"x": np.full(1000, index, np.float32), "y": index}
"""
TORCH = """
import torch.multiprocessing
from torch.utils.data import DataLoader
import mine
def main():
    {before}
    batches = DataLoader(mine.Data(), batch_size=8, num_workers=2)
    for epoch in range({epochs}):
        for batch in batches:
            {body}
            print("batch", flush=True)
if __name__ == "__main__":
    main()
"""
LOADERD = """
from loaderd_client import Loader
def main():
    {before}
    with Loader("config.toml", stream="train") as batches:
        for epoch in range({epochs}):
            for batch in batches:
                {body}
                for bad in batch.errors:
                    print("said:", bad.line(), file=sys.stderr)
                print("batch", flush=True)
if __name__ == "__main__":
    import sys
    main()
"""
CONFIG = """
[daemon]
socket = "d.sock"
[workers]
num_workers = 2
sample_timeout_s = 2
[streams.train]
dataset = "mine:Data"
batch_size = 8
on_error = "replace"
{more}
"""


@dataclass(frozen=True)
class Case:
    """data: the body of class Data(Base). before, body: of the training script. interrupt: Ctrl-C to its group once it stands."""

    name: str
    data: str
    before: str = "pass"
    body: str = "pass"
    more: str = ""
    epochs: int = 1
    shell: str = 'exec "$@"'
    interrupt: bool = False


def odd(code: str) -> str:
    return "def odd(self, index):\n" + textwrap.indent(textwrap.dedent(code), "    ")


CASES = [
    Case("S8 a sample divides by zero", odd("1 / 0")),
    Case("S9 a sample's error is printed and None returned", odd("print('oh no')")),
    Case(
        "S10 a worker is killed while it holds a lock that all share",
        "lock = multiprocessing.get_context('fork').Lock()\n"
        "def good(self, index):\n    with self.lock: return Base.good(self, index)\n"
        + odd("self.lock.acquire()\nif not os.path.exists('killed'):\n    open('killed', 'w'); os.kill(os.getpid(), 9)"),
    ),
    Case("S12 a sample blocks for ever", odd("threading.Event().wait()")),
    Case("S13 a sample loops for ever in Python", odd("while True: os.path.exists('not there')")),
    Case("S13 a sample loops for ever in C, holding the GIL", odd("re.match('(a+)+$', 'a' * 60 + 'b')")),
    Case("S14 a sample reads a pipe that nobody writes", odd("os.path.exists('fifo') or os.mkfifo('fifo')\nopen('fifo')")),
    Case("S15 a sample crashes the interpreter", odd("ctypes.string_at(0)")),
    Case("S15 a worker is killed by the kernel, once", odd("if not os.path.exists('killed'):\n    open('killed', 'w'); os.kill(os.getpid(), 9)\nreturn self.good(index)")),
    Case("I7 a sample calls sys.exit()", odd("sys.exit()")),
    Case(
        "S16 /dev/shm of 1 MB, batches of 8 MB",
        "def good(self, index): return {'x': np.full(1 << 20, index, np.uint8), 'y': index}\nodd = good\n",
        shell='mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"',
    ),
    Case(
        "S17 fork after the trainer has used OpenCV's and OpenMP's threads",
        "import cv2, torch\ndef good(self, index):\n    x = self.cv2.resize(np.full((500, 500, 3), index, np.float32), (100, 100))\n    return {'x': x, 'y': self.torch.ones(300, 300).mm(self.torch.ones(300, 300))[0, 0]}\nodd = good\n",
        before="import cv2, numpy, torch; torch.ones(1500, 1500).mm(torch.ones(1500, 1500)); cv2.resize(numpy.ones((3000, 3000, 3), 'f'), (1000, 1000))",
        epochs=2,
    ),
    Case("S18 the trainer writes into its batches, over two epochs", "odd = Base.good\n", body="batch['x'].add_(1); assert (batch['x'][:, 0] == batch['y'] + 1).all()", epochs=2),
    Case("S19 the trainer keeps 300 batches, 256 descriptors allowed", "def __len__(self): return 2400\nodd = Base.good\n", before="global kept; kept = []", body="kept.append(batch)", shell='ulimit -n 256; exec "$@"'),
    Case("S20 a NaN in one record", odd("return {'x': np.full(1000, np.nan, np.float32), 'y': index}"), body="assert not batch['x'].isnan().any(), 'the loss is NaN'", more='nonfinite = "error"'),
    Case("E11 a sample of another shape", odd("return {'x': np.zeros(999, np.float32), 'y': index}")),
    Case("A5 an exception that takes two arguments", "class Odd(Exception):\n    def __init__(self, what, where): super().__init__(what + where)\n" + odd("raise self.Odd('a', 'b')")),
    Case("S25 Ctrl-C while a sample blocks", odd("threading.Event().wait()"), interrupt=True, more=""),
]  # fmt: skip


def run(case: Case, side: str, limit_s: float) -> str:
    """What came of it, in a few words."""
    with tempfile.TemporaryDirectory(prefix="loaderd-side-") as name:
        folder = Path(name)
        (folder / "mine.py").write_text(HEAD + "\nclass Data(Base):\n" + textwrap.indent(case.data, "    "))
        more = case.more if not case.interrupt else ""
        config = CONFIG.format(more=more)
        (folder / "config.toml").write_text(config.replace("timeout_s = 2", "timeout_s = 1000") if case.interrupt else config)
        script = TORCH if side == "torch" else LOADERD
        (folder / "train.py").write_text(script.format(before=case.before, body=case.body, epochs=case.epochs))
        command = ["sh", "-c", case.shell, "sh", sys.executable, "-W", "ignore", "train.py"]
        if "mount" in case.shell:
            user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
            command = ["unshare", *user, "--mount", *command]
        env = {**os.environ, "PYTHONPATH": f"{folder}:{TESTS.parent}:{TESTS.parent / 'client'}"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, cwd=folder, text=True, start_new_session=True, env=env, **pipes)
        interrupts = 0
        try:
            if case.interrupt:
                out, err, interrupts = interrupted(process, limit_s)
            else:
                out, err = process.communicate(timeout=limit_s)
            end = "done" if process.returncode == 0 else f"ends with {process.returncode}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            end = f"**stands still** (killed after {limit_s:.0f} s)"
        left = survivors(folder)
        return words(out, err, end, case, interrupts, left)


def interrupted(process: subprocess.Popen[str], limit_s: float) -> tuple[str, str, int]:
    """Ctrl-C to the group after a while, again each 3 s; (stdout, stderr, how many it took)."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=limit_s / 2)
    for count in range(1, 4):
        os.killpg(process.pid, signal.SIGINT)
        try:
            return (*process.communicate(timeout=3), count)
        except subprocess.TimeoutExpired:
            continue
    raise subprocess.TimeoutExpired("train.py", limit_s)


def survivors(folder: Path) -> int:
    """Processes that still work in this folder half a second after the end; they are killed."""
    found = 0
    subprocess.run(["sleep", "3"], check=True)
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (os.readlink(entry / "cwd") == str(folder)):
                found += 1
                os.kill(int(entry.name), signal.SIGKILL)
        except (OSError, ValueError):
            continue
    return found


def words(out: str, err: str, end: str, case: Case, interrupts: int, left: int) -> str:
    done = out.count("batch\n")
    total = 6 * case.epochs if "2400" not in case.data else 300
    lines = [line for line in err.splitlines() if line.strip() and not line.startswith(" ")]
    said = next(
        (
            line
            for line in reversed(lines)
            if re.match(r"\w*(Error|Exception|Exit|Interrupt|Exhausted)\b|said:|[\w.]+(Error|Failed|Gone):", line)
        ),
        lines[-1] if lines else "",
    )
    said = said.removeprefix("said: ").replace("|", "/")
    said = said if len(said) < 150 else said[:147] + "..."
    text = f"all {total} batches" if done == total else f"{done} of {total} batches"
    if end != "done" or done != total:
        text += f", then it {end}" if not end.startswith("done") else ""
    if interrupts:
        text += f" after {interrupts} Ctrl-C"
    if left:
        text += f", {left} processes left"
    return text + (f": `{said}`" if said else "; nothing said")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--limit", type=float, default=30)
    args = parser.parse_args()
    import torch

    print(f"Python {platform.python_version()}, torch {torch.__version__}, Linux {platform.release()}, {os.cpu_count()} CPUs\n")
    print("| situation | DataLoader | loaderd |\n|---|---|---|")
    for case in CASES:
        if args.only in case.name:
            print(f"| {case.name} | {run(case, 'torch', args.limit)} | {run(case, 'loaderd', args.limit * 2)} |", flush=True)


if __name__ == "__main__":
    main()
