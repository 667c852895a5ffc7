"""The same situations under torch's DataLoader and under loaderd, each in a process with a limit;
prints README.md's table.

    python tests/faults/freezes/torch_side.py [--only S13] [--limit 30]

Each case is a `Data` class. Both sides go through its 48 samples in batches of 8 with 2 workers and
print a line a batch; what is reported is how far they came, how they ended, and what they said.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import re
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import asdict, dataclass
from pathlib import Path

TESTS = Path(__file__).parents[2]
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
# What the training scripts have at hand: tell() reaches the table, timed() notes how long was
# waited, own_mb() is what the other processes here have to themselves.
TOLD = """
import os, sys, time

def tell(text):
    print("said:", text, file=sys.stderr, flush=True)

class Times:
    first_s = total_s = waited_s = cpu_s = 0.0
    count = 0

def timed(batches):
    begin, cpu = time.perf_counter(), time.process_time()
    iterator = iter(batches)
    while True:
        asked = time.perf_counter()
        batch = next(iterator, None)
        now = time.perf_counter()
        Times.waited_s += now - asked
        if batch is None:
            Times.total_s += now - begin
            Times.cpu_s += time.process_time() - cpu
            return
        Times.first_s = Times.first_s or now - begin
        Times.count += 1
        yield batch

def own_mb():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if int(pid) != os.getpid() and os.readlink(f"/proc/{pid}/cwd") == os.getcwd():
                lines = open(f"/proc/{pid}/smaps_rollup").read().splitlines()
                found.append(sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) // 1024)
        except OSError:
            continue
    return found or [0]
"""
TORCH = """
import json, os, time, torch
import torch.multiprocessing
from torch.utils.data import DataLoader
import mine
from told import *
def main():
    {before}
    batches = DataLoader(mine.Data(), batch_size={batch}, num_workers={workers}{torch})
    {start}
    for epoch in range({epochs}):
        for batch in timed(batches):
            {body}
            print("batch", flush=True)
    {after}
if __name__ == "__main__":
    main()
"""
LOADERD = """
import json, os, time
from loaderd_client import Loader
from told import *
def main():
    {before}
    with Loader("config.toml"{loader}) as batches:
        {start}
        len(batches)
        for epoch in range({epochs}):
            for batch in timed(batches):
                {body}
                for bad in batch.errors:
                    tell(bad.line())
                print("batch", flush=True)
        {after}
if __name__ == "__main__":
    main()
"""
CONFIG = """
[daemon]
socket = "d.sock"
{daemon}
[workers]
num_workers = {workers}
sample_timeout_s = 2
{pool}
[streams.train]
dataset = "mine:Data"
batch_size = {batch}
on_error = "replace"
{more}
"""


@dataclass(frozen=True)
class Case:
    """data: the body of class Data(Base).

    before, start, body, after: of the training script. daemon, pool, more: lines of the config.

    torch, loader: further arguments of DataLoader and of Loader. interrupt: Ctrl-C to its group
    once it stands. patient: no sample is
    ever given up. warns: Python's warnings are shown. total: batches of all epochs.
    """

    name: str
    data: str
    before: str = "pass"
    start: str = "pass"
    body: str = "pass"
    after: str = "pass"
    daemon: str = ""
    pool: str = ""
    more: str = ""
    torch: str = ""
    loader: str = ""
    workers: int = 2
    batch: int = 8
    epochs: int = 1
    total: int = 6
    shell: str = 'exec "$@"'
    interrupt: bool = False
    patient: bool = False
    warns: bool = False


def odd(code: str) -> str:
    return "def odd(self, index):\n" + textwrap.indent(textwrap.dedent(code), "    ")


ALL = "odd = good\n"
MEMORY = "tell(f'the largest of the other processes has {min(seen)} MB to itself at first, {max(seen)} MB at the end')"

CASES = [
    Case(
        "S1 1,000 passes of arithmetic in each sample",
        "def good(self, index):\n    x = np.full((64, 64, 3), index, np.float32)\n    for _ in range(1000): x = x * 1.0001 + 0.5\n    return {'x': x}\n" + ALL,
        after="tell(f'{Times.cpu_s:.2f} s of CPU in the trainer')",
    ),
    Case(
        "S2 batches of 1,024 images (147 MB), 256 MB for them",
        "def __len__(self): return 4096\ndef good(self, index): return {'x': np.full((224, 224, 3), index % 251, np.uint8)}\n" + ALL,
        batch=1024,
        total=4,
        daemon='memory = "256MiB"',
        shell='mount -t tmpfs -o size=256m tmpfs /dev/shm && exec "$@"',
    ),
    Case(
        "S3 16 workers on 2 CPUs",
        ALL.replace("good", "Base.good"),
        workers=16,
        after="os.path.exists('d.sock.log') and tell([line for line in open('d.sock.log') if 'num_workers' in line][0].split('warning')[1].strip())",
        warns=True,
    ),
    Case(
        "S4 ten million ints in a list, 5 epochs",
        "def __init__(self): self.labels = list(range(0, 10_000_000_000, 1000))\ndef good(self, index): return {'y': sum(self.labels[index * 200_000 : index * 200_000 + 200_000])}\n" + ALL,
        before="seen = []",
        body="seen.append(max(own_mb()))",
        after=MEMORY,
        more="shuffle = true",
        torch=", shuffle=True, persistent_workers=True",
        epochs=5,
        total=30,
    ),
    Case(
        "S5 each sample sleeps for 0.1 s",
        "def good(self, index):\n    time.sleep(0.1)\n    return Base.good(self, index)\n" + ALL,
        after="tell(f'the first batch after {Times.first_s:.1f} s, all after {Times.total_s:.1f} s')",
    ),
    Case(
        "S6 20,000 batches of one",
        "def __len__(self): return 20_000\n" + ALL.replace("good", "Base.good"),
        after="tell(f'{Times.cpu_s / Times.count * 1e6:.0f} us of CPU in the trainer for each')",
        batch=1,
        total=20_000,
    ),
    Case(
        "S7 all workers read one file at once",
        "def good(self, index):\n    with open('numbers', 'rb') as file:\n        file.seek(index * 4000)\n        return {'x': np.frombuffer(file.read(4000), np.float32).copy(), 'y': index}\n" + ALL,
        before="import numpy; numpy.repeat(numpy.arange(48, dtype='f'), 1000).tofile('numbers')",
        body="assert (batch['x'] == batch['y'][:, None]).all()",
    ),
    Case("S8 a sample divides by zero", odd("1 / 0")),
    Case("S9 a sample's error is printed and None returned", odd("print('oh no')")),
    Case(
        "S10 a worker is killed while it holds a lock that all share",
        "lock = multiprocessing.get_context('fork').Lock()\n"
        "def good(self, index):\n    with self.lock: return Base.good(self, index)\n"
        + odd("self.lock.acquire()\nif not os.path.exists('killed'):\n    open('killed', 'w'); os.kill(os.getpid(), 9)"),
    ),
    Case(
        "S11 a lock, held for 0.02 s, that all workers share",
        "lock = multiprocessing.get_context('fork').Lock()\ndef good(self, index):\n    with self.lock: time.sleep(0.02)\n    return Base.good(self, index)\n" + ALL,
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
        total=12,
    ),
    Case("S18 the trainer writes into its batches, over two epochs", "odd = Base.good\n", body="batch['x'].add_(1); assert (batch['x'][:, 0] == batch['y'] + 1).all()", epochs=2, total=12),
    Case("S19 the trainer keeps 300 batches, 256 descriptors allowed", "def __len__(self): return 2400\nodd = Base.good\n", before="global kept; kept = []", body="kept.append(batch)", shell='ulimit -n 256; exec "$@"', total=300),
    Case("S20 a NaN in one record", odd("return {'x': np.full(1000, np.nan, np.float32), 'y': index}"), body="assert not batch['x'].isnan().any(), 'the loss is NaN'", more='nonfinite = "error"'),
    Case("S21 three damaged records among the others", "def __getitem__(self, index):\n    if index in (21, 30, 43): raise OSError(f'record {index} is damaged')\n    return self.good(index)\n"),
    Case(
        "S22 40 ms of work for a batch, 40 ms of the trainer",
        "def good(self, index):\n    time.sleep(0.01)\n    return Base.good(self, index)\n" + ALL,
        body="time.sleep(0.04)",
        after="tell(f'waited {Times.waited_s:.2f} s of {Times.total_s:.2f} s')",
        epochs=4,
        total=24,
    ),
    Case(
        "S23 the dataset holds on to 5 MB a sample",
        "held = []\ndef good(self, index):\n    self.held.append(np.ones(5 << 20, np.uint8))\n    return Base.good(self, index)\n" + ALL,
        before="seen = []",
        body="seen.append(max(own_mb()))",
        after=MEMORY,
        pool='worker_memory = "200MiB"',
        torch=", persistent_workers=True",
        epochs=5,
        total=30,
    ),
    Case("S24 the frozen run (stall_warning_s = 3, timeout_s = 20)", odd("threading.Event().wait()"), loader=", stall_warning_s=3, timeout_s=20", patient=True),
    Case(
        "S26 a training that crashes after 3 batches and is started again",
        "odd = Base.good\n",
        start="os.path.exists('state') and hasattr(batches, 'load_state_dict') and batches.load_state_dict(json.load(open('state')))",
        body="print(*batch['y'].tolist(), file=open('seen', 'a')); Times.count == 3 and hasattr(batches, 'state_dict') and json.dump(batches.state_dict(), open('state', 'w')); Times.count == 3 and not os.path.exists('crashed') and (open('crashed', 'w'), print('batch', flush=True), os._exit(1))",
        after="seen = open('seen').read().split(); tell(f'{len(seen) - len(set(seen))} samples came twice, {48 - len(set(seen))} never')",
        shell='"$@"; exec "$@"',
    ),
    Case("E11 a sample of another shape", odd("return {'x': np.zeros(999, np.float32), 'y': index}")),
    Case("A5 an exception that takes two arguments", "class Odd(Exception):\n    def __init__(self, what, where): super().__init__(what + where)\n" + odd("raise self.Odd('a', 'b')")),
    Case("S25 Ctrl-C while a sample blocks", odd("threading.Event().wait()"), interrupt=True, patient=True),
]  # fmt: skip


def run(case: Case, side: str, limit_s: float) -> str:
    """What came of it, in a few words."""
    with tempfile.TemporaryDirectory(prefix="loaderd-side-") as name:
        folder = Path(name)
        (folder / "mine.py").write_text(
            HEAD + "\nclass Data(Base):\n" + textwrap.indent(case.data, "    ")
        )
        config = CONFIG.format(
            daemon=case.daemon,
            workers=case.workers,
            pool=case.pool,
            batch=case.batch,
            more=case.more,
        )
        (folder / "config.toml").write_text(
            config.replace("timeout_s = 2", "timeout_s = 1000") if case.patient else config
        )
        (folder / "told.py").write_text(TOLD)
        script = TORCH if side == "torch" else LOADERD
        (folder / "train.py").write_text(script.format(**asdict(case)))
        warnings = [] if case.warns else ["-W", "ignore"]
        command = ["sh", "-c", case.shell, "sh", sys.executable, *warnings, "train.py"]
        if "mount" in case.shell:
            user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
            command = ["unshare", *user, "--mount", *command]
        env = {**os.environ, "PYTHONPATH": f"{folder}:{TESTS.parent}:{TESTS.parent / 'client'}"}
        process = subprocess.Popen(
            command,
            cwd=folder,
            text=True,
            start_new_session=True,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
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
    """Processes that still work in this folder ten seconds after the end; they are killed."""
    end = time.monotonic() + 10
    while (found := working_in(folder)) and time.monotonic() < end:
        select.select([], [], [], 0.1)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(found)


def working_in(folder: Path) -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and os.readlink(entry / "cwd") == str(folder):
                found.append(int(entry.name))
    return found


def words(out: str, err: str, end: str, case: Case, interrupts: int, left: int) -> str:
    done = out.count("batch\n")
    lines = [line for line in err.splitlines() if line.strip() and not line.startswith(" ")]
    said = next(
        (
            line
            for line in reversed(lines)
            if re.match(
                r"\w*(Error|Exception|Exit|Interrupt|Exhausted)\b|said:|[\w.]+(Error|Failed|Gone|RefusedError):",
                line,
            )
        ),
        lines[-1] if lines else "",
    )
    said = re.sub(r"^.*UserWarning: |^said: ", "", said).replace("|", "/")
    said = said if len(said) < 150 else said[:147] + "..."
    text = (
        f"all {case.total:,} batches" if done == case.total else f"{done} of {case.total:,} batches"
    )
    if end != "done" or done != case.total:
        text += f", then it {end}" if not end.startswith("done") else ""
    if interrupts:
        text += f" after {interrupts} Ctrl-C"
    if left:
        text += f", {left} processes left"
    return text + (f": `{said}`" if said else "; nothing said")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="")
    parser.add_argument("--limit", type=float, default=30)
    args = parser.parse_args()
    import torch

    print(
        f"Python {platform.python_version()}, torch {torch.__version__}, Linux {platform.release()}, {os.cpu_count()} CPUs\n"
    )
    print("| situation | DataLoader | loaderd |\n|---|---|---|")
    for case in CASES:
        if args.only in case.name:
            print(
                f"| {case.name} | {run(case, 'torch', args.limit)} | {run(case, 'loaderd', args.limit * 2)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
