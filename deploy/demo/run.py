"""`make demo`: real images packed into an LMDB, served by a daemon, learnt by a small network,
while a worker and the daemon are killed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

HERE = Path(__file__).parent
LOADERD = [sys.executable, "-m", "loaderd"]
EPOCHS = 24
KILL_WORKER_AFTER, KILL_DAEMON_AFTER = 4, 10  # epochs
LEAST_ACCURACY = 0.95


class Supervisor:
    """Keeps `loaderd serve` running, as systemd or Kubernetes would: whatever ends it but `stop`,
    it is started again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stopping = False
        self.starts = 0
        self._log = (folder / "daemon.log").open("ab")
        self._start()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _start(self) -> None:
        self.starts += 1
        self.process = subprocess.Popen(
            [*LOADERD, "serve", "config.toml"], cwd=self._folder, stdout=self._log, stderr=self._log
        )

    def _watch(self) -> None:
        while True:
            code = self.process.wait()
            if self._stopping:
                return
            print(f"    the daemon has ended ({code}); its supervisor starts another", flush=True)
            self._start()

    def stop(self) -> None:
        self._stopping = True
        self.process.terminate()
        self._thread.join(20)
        if self.process.poll() is None:
            self.process.kill()
        self._log.close()


def step(text: str) -> None:
    print(f"\n--- {text}", flush=True)


def loaderd(folder: Path, *args: str) -> str:
    """Run a command in the demo's folder and show it. What it prints comes back."""
    print("    $ loaderd " + " ".join(args), flush=True)
    done = subprocess.run([*LOADERD, *args], cwd=folder, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    return done.stdout + done.stderr


def indented(text: str) -> None:
    print("".join(f"    {line}\n" for line in text.splitlines()), end="", flush=True)


def picture(folder: Path) -> dict[str, Any]:
    return json.loads(loaderd(folder, "status", "config.toml", "--json"))


def write_digits(folder: Path) -> int:
    """scikit-learn's handwritten digits as PNG files, one folder a class."""
    digits: Any = load_digits()
    for n, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        place = folder / str(label)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * (255 / 16)).astype(np.uint8)).save(place / f"{n:04}.png")
    return len(digits.images)


def kill_worker(folder: Path) -> None:
    worker = next(worker for worker in picture(folder)["workers"] if worker.get("pid"))
    print(
        f"    $ kill -9 {worker['pid']}        # worker {worker['worker']}, in the middle of its "
        "work",
        flush=True,
    )
    os.kill(worker["pid"], signal.SIGKILL)


def kill_daemon(supervisor: Supervisor) -> None:
    print(f"    $ kill -9 {supervisor.process.pid}        # the daemon itself", flush=True)
    supervisor.process.kill()


def train(folder: Path, supervisor: Supervisor) -> dict[str, Any]:
    """Run the training, show what it says, and kill things on the way. Returns its last line."""
    shutil.copy(HERE / "train.py", folder)
    command = [sys.executable, "train.py", "digits.sock", str(EPOCHS)]
    print(
        f"    $ python {' '.join(command[1:])}        # imports torch, and waits for the daemon "
        "if it is not up yet",
        flush=True,
    )
    last = ""
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                last = line
                continue
            print(f"    {line}", end="", flush=True)
            if line.startswith(f"epoch {KILL_WORKER_AFTER:2} "):
                kill_worker(folder)
            elif line.startswith(f"epoch {KILL_DAEMON_AFTER:2} "):
                kill_daemon(supervisor)
    if process.returncode != 0 or not last:
        raise SystemExit(
            f"the training ended with {process.returncode}; the daemon's log: {folder}/daemon.log"
        )
    return json.loads(last)


def main() -> int:
    begin = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="loaderd-demo-"))
    print(f"Everything that this demo writes is in {folder}")

    step("1,797 handwritten digits as PNG files, packed into one LMDB")
    write_digits(folder / "digits")
    shutil.copy(HERE / "config.toml", folder)
    indented(loaderd(folder, "pack", "imagefolder", "digits", "digits.lmdb"))

    step("A daemon that serves them, and a network that learns from them")
    supervisor = Supervisor(folder)
    try:
        result = train(folder, supervisor)
        step("What the daemon looks like now")
        indented(loaderd(folder, "status", "config.toml"))
        step("The very batch of epoch 12, step 3, whenever you like")
        indented(
            loaderd(
                folder,
                "preview",
                "config.toml",
                "--stream",
                "train",
                "--epoch",
                "12",
                "--step",
                "3",
                "-o",
                "batch.png",
            )
        )
    finally:
        supervisor.stop()

    step("Result")
    print(
        f"    accuracy        {result['accuracy']:.1%} on {result['held_out']} digits that the "
        "training has never seen"
    )
    print(
        f"    throughput      {result['images_per_s']:,.0f} images/s, training included; "
        f"{result['batches']} batches, no image lost or twice in any epoch"
    )
    print(
        f"    waited          {result['wait_fraction']:.1%} of the time, the start and the kills "
        "included"
    )
    print(f"    daemon          started {supervisor.starts} times")
    print(f"    took            {time.monotonic() - begin:.0f} s")
    print(f"    a batch to see  {folder}/batch.png")

    step("The same with your images: a folder with one subfolder a class")
    own = f"{Path(sys.executable).parent}/loaderd"
    print(f"    {own} pack imagefolder YOUR_FOLDER mine.lmdb")
    print(f"    sed 's/digits/mine/' {folder}/config.toml > mine.toml && {own} check mine.toml")
    print(
        f'    {own} serve mine.toml        # then, in your training: Loader("mine.toml", '
        'stream="train")'
    )
    if result["accuracy"] < LEAST_ACCURACY:
        print(f"\nthe accuracy is below {LEAST_ACCURACY:.0%}: something is wrong")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
