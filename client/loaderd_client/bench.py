"""A trainer that does nothing but take batches, and says as one line of JSON how it was served: `python -m loaderd_client.bench JSON`.

The argument is {"make": "pkg.module:function" or null, "args": {...}, "seconds": S}. What `make(**args)` returns is iterated over again and
again; null makes a Loader with these arguments. `loaderd bench` starts this.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from loaderd_client.loader import Loader
from loaderd_wire.errors import LoaderdError

WARM_BATCHES, WARM_S = 16, 2.0
PAUSE_S = 0.03  # between two calls that find a batch ready
READY_CALLS = 60
PAGE = 4096


def forever(batches: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from batches


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
        lying = array.transpose(0, 2, 3, 1) if array.ndim == 4 and not array.flags.c_contiguous else array
        if lying.flags.c_contiguous:
            int(lying.reshape(-1).view(np.uint8)[::PAGE].sum())
    return rows, size


def measure(batches: Iterator[Any], seconds: float) -> dict[str, float]:
    """batches, rows, bytes a second; cpu_s: of this process, a batch; first_s: until the first batch; ready_p50_s, ready_p99_s: of a next()
    that finds its batch ready, after a pause; next_p50_s, next_p99_s: of the others, without any pause between them. begin_s, end_s: of the
    part without pauses, on the machine's monotonic clock."""
    begin_s = time.perf_counter()
    touch(next(batches))
    first_s = time.perf_counter() - begin_s
    for _ in range(WARM_BATCHES):
        touch(next(batches))
        if time.perf_counter() - begin_s > WARM_S:
            break
    waits: list[float] = []
    rows = size = 0
    begin_s, cpu_s = time.perf_counter(), time.process_time()
    at_s = begin_s
    while not waits or at_s < begin_s + seconds:
        batch = next(batches)
        waits.append(time.perf_counter() - at_s)
        more = touch(batch)
        rows, size = rows + more[0], size + more[1]
        at_s = time.perf_counter()
    spent_s, cpu_s = at_s - begin_s, time.process_time() - cpu_s
    ready = _ready(batches, max(PAUSE_S, 2 * spent_s / len(waits)), seconds / 2)
    return {
        "batches_s": len(waits) / spent_s,
        "samples_s": rows / spent_s,
        "bytes_s": size / spent_s,
        "batches": len(waits),
        "begin_s": begin_s,
        "end_s": at_s,
        "seconds": spent_s,
        "cpu_s": cpu_s / len(waits),
        "first_s": first_s,
        "next_p50_s": float(np.percentile(waits, 50)),
        "next_p99_s": float(np.percentile(waits, 99)),
        "ready_p50_s": float(np.percentile(ready, 50)),
        "ready_p99_s": float(np.percentile(ready, 99)),
    }


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
    if asked["make"] is None:
        output = "torch" if importlib.util.find_spec("torch") else "numpy"
        if output == "torch":
            importlib.import_module("torch")  # before the clock runs
        with Loader(**asked["args"], output=output) as loader:
            made = measure(forever(loader), asked["seconds"])
    else:
        module, _, name = asked["make"].partition(":")
        batches = getattr(importlib.import_module(module), name)(**asked["args"])
        made = measure(forever(batches), asked["seconds"])
    sys.stdout.write(json.dumps(made) + "\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1]))
    except LoaderdError as error:
        sys.exit(f"{type(error).__name__}: {error}")
