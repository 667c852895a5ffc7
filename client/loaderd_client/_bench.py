"""A trainer that does nothing but take batches, and says how it was served in one line of JSON.

`loaderd bench` starts it as `python -m loaderd_client._bench JSON`. The argument is an object:

    make      "pkg.module:function", whose result is iterated over again and again; null makes a
              Loader
    args      keyword arguments of that function, or of the Loader
    seconds   how long to measure
    busy_s    seconds that the trainer computes with each batch
    pause_s   seconds that something else does, such as a GPU
    since_s   when somebody asked for it, on the machine's monotonic clock
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import resource
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np

from loaderd_client.loader import Loader
from loaderd_wire.errors import LoaderdError

WARM_BATCHES, WARM_S = 16, 1.0
PAUSE_S = 0.03  # between two calls that find a batch ready
READY_CALLS = 60
PAGE = 4096


class Endless:
    """Batches, epoch after epoch.

    Attributes:
        turns: For each epoch that ended, seconds from its end to the first batch of the next.
    """

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches
        self._epoch = iter(batches)
        self.turns: list[float] = []

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._epoch)
        except StopIteration:
            begin_s = time.perf_counter()
            self._epoch = iter(self._batches)
            batch = next(self._epoch)
            self.turns.append(time.perf_counter() - begin_s)
            return batch


def arrays(batch: Any) -> Iterator[Any]:
    """All arrays of a batch, whatever it is made of; a tensor's as numpy shows it."""
    if isinstance(batch, np.ndarray):
        yield batch
    elif isinstance(batch, Mapping):
        for value in cast("Mapping[Any, Any]", batch).values():
            yield from arrays(value)
    elif isinstance(batch, (list, tuple)):
        for value in cast("Sequence[Any]", batch):
            yield from arrays(value)
    elif hasattr(batch, "numpy"):
        yield batch.numpy()


def touch(batch: Any) -> tuple[int, int]:
    """Read a byte of every page, as any use of the data would; returns (rows, bytes)."""
    rows = size = 0
    for array in arrays(batch):
        rows = rows or (len(array) if array.ndim else 0)
        size += array.nbytes
        lying = (
            array.transpose(0, 2, 3, 1)
            if array.ndim == 4 and not array.flags.c_contiguous
            else array
        )
        if lying.flags.c_contiguous:
            int(lying.reshape(-1).view(np.uint8)[::PAGE].sum())
    return rows, size


def compute(busy_s: float, pause_s: float) -> None:
    """Be busy with a batch, and then wait, as a training step does.

    Args:
        busy_s: Seconds of processor time to use.
        pause_s: Seconds to sleep, in which others may have the core.
    """
    end_s = time.thread_time() + busy_s
    while busy_s and time.thread_time() < end_s:
        pass
    if pause_s:
        time.sleep(pause_s)


def children_s() -> float:
    """Seconds of CPU of the processes that this one has started and those have."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parents[int(entry)] = int(
                    Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[1]
                )
            except OSError:
                continue
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(map(threads_s, ours - {os.getpid()}))


def threads_s(pid: int) -> float:
    """Seconds of CPU of all threads of a process, to the nanosecond; 0 if it has gone."""
    try:
        return (
            sum(
                int((task / "schedstat").read_text().split()[0])
                for task in Path(f"/proc/{pid}/task").iterdir()
            )
            / 1e9
        )
    except OSError:
        return 0.0


def minor_faults() -> int:
    """Minor page faults of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a measurement without pauses.

    Attributes:
        begin_s: On the machine's monotonic clock.
        end_s: Likewise.
        waits: Seconds of each next().
        rows: Of all batches.
        size: Bytes of all batches.
        cpu_s: Processor seconds of this process, without what it computes.
        touched_s: The part of `cpu_s` that reads the batches.
        faults: Minor page faults of this process.
        children_s: Processor seconds of the processes that it has.
    """

    begin_s: float
    end_s: float
    waits: list[float]
    rows: int
    size: int
    cpu_s: float
    touched_s: float
    faults: int
    children_s: float


def measure(
    endless: Iterable[Any],
    seconds: float,
    busy_s: float = 0.0,
    pause_s: float = 0.0,
    since_s: float | None = None,
) -> dict[str, float]:
    """Iterate for some time, and say what that cost.

    Args:
        endless: The batches.
        seconds: How long to measure. 0: one batch after the first, and nothing warms up.
        busy_s: Seconds to compute with each batch.
        pause_s: Seconds to sleep after each batch.
        since_s: When somebody asked for it, on the machine's monotonic clock.

    Returns:
        A dict with these entries:
            batches, rows, bytes: Each a second.
            cpu_s: Processor seconds of this process, a batch, without what it computes.
            wrap_s: The part of `cpu_s` that does not read the batch.
            children_s: Processor seconds of the processes that it has, a batch.
            faults: Its minor page faults, a batch.
            first_s: Seconds until the first batch.
            start_s: The same, since `since_s`.
            turn_s: Seconds from an epoch's end to the first batch of the next; 0 if none ended.
            ready_p50_s, ready_p99_s: Of a next() that finds its batch ready, after a pause.
            next_p50_s, next_p99_s: Of the others, without any pause between them.
            begin_s, end_s: When the part without pauses was, on the machine's monotonic clock.
    """
    begin_s = time.perf_counter()
    batches = Endless(endless)
    touch(next(batches))
    first_at_s = time.perf_counter()
    for _ in range(WARM_BATCHES if seconds else 0):
        touch(next(batches))
        compute(busy_s, pause_s)
        if time.perf_counter() - first_at_s > WARM_S:
            break
    part = _window(batches, seconds, busy_s, pause_s)
    waits, spent_s = part.waits, part.end_s - part.begin_s
    ready = _ready(batches, max(PAUSE_S, 2 * spent_s / len(waits)), seconds / 2)
    return {
        "batches_s": len(waits) / spent_s,
        "samples_s": part.rows / spent_s,
        "bytes_s": part.size / spent_s,
        "batches": len(waits),
        "begin_s": part.begin_s,
        "end_s": part.end_s,
        "seconds": spent_s,
        "cpu_s": part.cpu_s / len(waits),
        "wrap_s": (part.cpu_s - part.touched_s) / len(waits),
        "children_s": part.children_s / len(waits),
        "faults": part.faults / len(waits),
        "first_s": first_at_s - begin_s,
        "start_s": first_at_s - (begin_s if since_s is None else since_s),
        "turn_s": median(batches.turns) if batches.turns else 0.0,
        "next_p50_s": float(np.percentile(waits, 50)),
        "next_p99_s": float(np.percentile(waits, 99)),
        "ready_p50_s": float(np.percentile(ready, 50)),
        "ready_p99_s": float(np.percentile(ready, 99)),
    }


def _window(batches: Iterator[Any], seconds: float, busy_s: float, pause_s: float) -> Window:
    """Iterate without pauses of our own for `seconds`, and for one batch at least."""
    waits: list[float] = []
    rows = size = 0
    touched_s, others_s, faults = 0.0, children_s(), minor_faults()
    begin_s, cpu_s = time.perf_counter(), time.process_time()
    at_s = begin_s
    while not waits or at_s < begin_s + seconds:
        batch = next(batches)
        waits.append(time.perf_counter() - at_s)
        thread_s = time.thread_time()
        more = touch(batch)
        touched_s += time.thread_time() - thread_s
        rows, size = rows + more[0], size + more[1]
        compute(busy_s, pause_s)
        at_s = time.perf_counter()
    cpu_s = time.process_time() - cpu_s - busy_s * len(waits)
    return Window(
        begin_s,
        at_s,
        waits,
        rows,
        size,
        cpu_s,
        touched_s,
        faults=minor_faults() - faults,
        children_s=children_s() - others_s,
    )


def _ready(batches: Iterator[Any], pause_s: float, seconds: float) -> list[float]:
    times: list[float] = []
    end_s = time.perf_counter() + seconds
    while not times or (len(times) < READY_CALLS and time.perf_counter() < end_s):
        time.sleep(pause_s)  # the trainer's own work
        begin_s = time.perf_counter()
        next(batches)
        times.append(time.perf_counter() - begin_s)
    return times


def main(text: str) -> int:
    asked = json.loads(text)
    how = {
        name: asked[name] for name in ("seconds", "busy_s", "pause_s", "since_s") if name in asked
    }
    if asked["make"] is None:
        output = "torch" if importlib.util.find_spec("torch") else "numpy"
        if output == "torch":
            importlib.import_module("torch")  # before the clock runs
        arguments: dict[str, Any] = {"output": output, **asked["args"]}
        with Loader(**arguments) as loader:
            made = measure(loader, **how)
    else:
        module, _, name = asked["make"].partition(":")
        made = measure(getattr(importlib.import_module(module), name)(**asked["args"]), **how)
    sys.stdout.write(json.dumps(made) + "\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1]))
    except LoaderdError as error:
        sys.exit(f"{type(error).__name__}: {error}")
