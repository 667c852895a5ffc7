"""Where a storm takes place: the user's module, whose samples misbehave in every way by their
index, and the config around it.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

CLAIMS = ((0, 1), (0, 2), (1, 2))  # (rank, world_size) that trainers may have
EPOCHS = 2
MEMORY_MIB = 24
PASSED = ""  # the mark of a step that lost all its rows and is passed over


@dataclass(frozen=True)
class Rules:
    """A stream's. most: samples that it has at most, fewer where a batch is small."""

    on_error: str
    batch_size: int = 16
    empty: str = ""
    claims: tuple[tuple[int, int], ...] = CLAIMS
    most: int = 1 << 30


# In batches of one sample a bad one leaves nothing.
STREAMS = {
    "raise": Rules("raise"),
    "skip": Rules("skip", empty="deliver"),
    "replace": Rules("replace"),
    "passed": Rules("skip", batch_size=1, empty="skip", claims=CLAIMS[:1], most=400),
    "hollow": Rules("skip", batch_size=1, empty="deliver", most=400),
}

# A worker notes each fault before it commits it: (monotonic seconds, kind, stream).
NOTE = struct.Struct("<d8s8s")

# Bad for ever, each at an index of its own; index 0 is good, so that the probe learns fields and
# shapes from it. What a worker does only once lies in a token that the storm drops into the folder.
MODULE = """
import ctypes, os, signal, struct, threading, time
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
NOTE = struct.Struct("<d8s8s")
hoard = []
BAD = {{13: "raise", 101: "none", 133: "shape", 167: "dtype", 201: "hang", 233: "crash", 269: "exit", 301: "raise", 333: "system"}}


def note(kind, stream):
    fd = os.open(os.path.join(HERE, "notes"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(fd, NOTE.pack(time.monotonic(), kind.encode(), stream.encode()))
    finally:
        os.close(fd)


def token(name):
    try:
        os.unlink(os.path.join(HERE, "token-" + name))
        return True
    except FileNotFoundError:
        return False


def struck(stream, index):
    # Whether this sample has had its one death, which it has from now on: a second one would rightly make it bad for ever.
    name = b"%s %d" % (stream.encode(), index)
    fd = os.open(os.path.join(HERE, "struck"), os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        before = os.pread(fd, 1 << 20, 0)
        os.write(fd, name + b",")
        return name in before.split(b",")
    finally:
        os.close(fd)


def once(stream, index):
    if token("die") and not struck(stream, index):
        note("die once", stream)
        os._exit(9)
    if token("abort") and not struck(stream, index):
        note("abort 1x", stream)
        os.kill(os.getpid(), signal.SIGABRT)
    if token("slow"):
        note("slow", stream)
        time.sleep(0.7)


class Numbers:
    def __init__(self, stream, samples, calm):
        self.stream, self.samples, self.calm = stream, samples, calm

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        kind = BAD.get(index)
        if not self.calm:
            if index >= 64:  # who opens the stream makes some of those, and would not come through it
                once(self.stream, index)
            if index % 50 == 7:
                if index == 7:
                    note("leak", self.stream)
                hoard.append(np.ones(4 << 20, np.uint8))
            if kind:
                note(kind, self.stream)
                if kind == "hang":
                    threading.Event().wait()
                if kind == "crash":
                    ctypes.string_at(0)
                if kind == "exit":
                    os._exit(3)
        if kind == "none":
            return None
        if kind == "system":
            raise SystemExit(5)
        if kind in ("raise", "hang", "crash", "exit"):
            raise ValueError("sample %d is bad" % index)
        rng = np.random.default_rng(index)
        x = rng.integers(0, 256, (16, 16, 3), np.uint8)
        if kind == "shape":
            x = x[:9]
        if kind == "dtype":
            x = x.astype(np.float32)
        return {{"x": x, "y": index, "t": "s%d" % index}}


def augment(sample, rng):
    sample["noise"] = rng.random(4, np.float32)
    return sample
"""

DAEMON = """
[daemon]
socket = "d.sock"
memory = "{memory}MiB"
drain_s = 5
[workers]
num_workers = {workers}
sample_timeout_s = {timeout}
worker_memory = "160MB"
"""

STREAM = """
[streams.{name}]
dataset = "mine:Numbers"
dataset_args = {{stream = "{name}", samples = {samples}, calm = {calm}}}
batch_size = {batch_size}
shuffle = true
seed = 11
on_error = "{on_error}"
{more}
[[streams.{name}.transforms]]
call = "mine:augment"
"""


def lay(folder: Path, *, samples: int, workers: int, timeout_s: float, calm: bool) -> Path:
    """Write module and config into the folder; returns the config's path.

    calm: what hangs or crashes raises instead, nothing leaks.
    """
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text(MODULE.format())
    (folder / "struck").touch()
    text = DAEMON.format(memory=MEMORY_MIB, workers=workers, timeout=timeout_s)
    for name, rules in STREAMS.items():
        text += STREAM.format(
            name=name,
            samples=min(samples, rules.most),
            calm=str(calm).lower(),
            batch_size=rules.batch_size,
            on_error=rules.on_error,
            more=f'empty = "{rules.empty}"' if rules.empty else "",
        )
    config = folder / "config.toml"
    config.write_text(text)
    return config


def mark(batch: Any) -> str:
    """Sixteen hex digits over everything of a batch: place, fields, indices, keys, which samples
    were bad and what took their place.
    """
    total = hashlib.blake2b(digest_size=8)
    bad = sorted((e.index, e.substitute) for e in batch.errors)
    total.update(
        repr(
            (batch.epoch, batch.step, batch.indices.tolist(), list(batch.sample_keys), bad)
        ).encode()
    )
    for name, value in batch.items():
        total.update(name.encode())
        total.update(
            np.ascontiguousarray(value).data
            if isinstance(value, np.ndarray)
            else repr(value).encode()
        )
    return total.hexdigest()


def mark_error(epoch: int, step: int, errors: Any) -> str:
    """The same of a SampleError in place of that batch."""
    bad = sorted(e.index for e in errors)
    return hashlib.blake2b(repr((epoch, step, bad)).encode(), digest_size=8).hexdigest()


def table(stream: str, rank: int, world: int) -> str:
    return f"{stream}/{rank}/{world}"
