"""What it costs to select samples: the first opening works the list out, workers map it.

    python tests/bench/selection.py [--samples 3000000]

Prints one line of JSON for each way to select: CPU seconds of the probing process and of a worker,
MiB of anonymous memory that the worker has more of, us of CPU for a position.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import lmdb
import numpy as np

from loaderd.config.stream import StreamConfig
from loaderd.data.selection.select import select
from loaderd.data.selection.selection import SampleSelection
from loaderd.data.sources.source import Source
from loaderd.data.stream_order import stream_order

POSITIONS = np.arange(400_000)


def anonymous_mib() -> float:
    """Private memory of this process."""
    with open("/proc/self/status", encoding="ascii") as file:
        (line,) = (line for line in file if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1024


def selecting(words: dict[str, Any]) -> None:
    """As a probe does; then a worker, in a process of its own."""
    plan = StreamConfig("train", layout="files", **words)
    with Source(plan) as source:
        begin_s = time.process_time()
        found = select(plan, source)
        probe_s = time.process_time() - begin_s
    told = json.dumps([words, found.listed, found.ends, probe_s])
    subprocess.run([sys.executable, __file__, "--worker", told], check=True)


def working(words: dict[str, Any], listed: str, ends: str, probe_s: float) -> None:
    """Take what the probe has found, and ask for indices."""
    plan = StreamConfig("train", layout="files", **words)
    with Source(plan) as source:
        before, begin_s = anonymous_mib(), time.process_time()
        source.selection = SampleSelection(listed, ends)
        order = stream_order(plan, source)
        worker_s = time.process_time() - begin_s
        added = anonymous_mib() - before
        begin_s = time.process_time()
        for first in range(0, len(POSITIONS), 4096):
            order.indices(0, 0, POSITIONS[first : first + 4096])
        each_us = (time.process_time() - begin_s) / len(POSITIONS) * 1e6
    ways = ", ".join(name for name in words if name != "lmdb")
    figures = {"probe_s": probe_s, "worker_s": worker_s, "added_mib": added, "index_us": each_us}
    print(ways, json.dumps({name: round(value, 4) for name, value in figures.items()}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=3_000_000)
    parser.add_argument("--select", help=argparse.SUPPRESS)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.select:
        selecting(json.loads(args.select))
    elif args.worker:
        working(*json.loads(args.worker))
    else:
        with tempfile.TemporaryDirectory() as folder:
            everything(folder, args.samples)


def everything(folder: str, samples: int) -> None:
    """Each way to select, of a database with keys such as patient000001_7.png."""
    os.environ["XDG_CACHE_HOME"] = folder
    path = os.path.join(folder, "a.lmdb")
    keys = [f"patient{n // 10:06d}_{n % 10}.png" for n in range(samples)]
    with (
        lmdb.open(path, subdir=False, lock=False, map_size=1 << 34) as env,
        env.begin(write=True) as txn,
        txn.cursor() as cursor,
    ):
        cursor.putmulti(((key.encode(), b"\1") for key in keys), append=True)
    rng = np.random.default_rng(0)
    with open(os.path.join(folder, "keys.txt"), "w", encoding="utf-8") as file:
        file.writelines(f"{keys[n]}\n" for n in rng.permutation(samples)[: samples * 2 // 3])
    np.save(os.path.join(folder, "w.npy"), rng.random(samples))
    for words in (
        {},
        {"keys": os.path.join(folder, "keys.txt")},
        {"split": "0%:80%", "split_by": "key", "group": "^([^_]+)_"},
        {"weights": os.path.join(folder, "w.npy")},
    ):
        told = json.dumps({"lmdb": path, "shuffle": 1, **words})
        subprocess.run([sys.executable, __file__, "--select", told], check=True)


if __name__ == "__main__":
    main()
