"""What a database costs whose keys no pattern gives: the first opening, which lists them, and later
ones, in a process each.

    python tests/bench/key_index.py [--keys 3000000]

Prints one line of JSON an opening: seconds, MiB of anonymous memory that it added, us for a key.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time

import lmdb

from loaderd.config.stream import StreamConfig
from loaderd.data.sources.source import Source

LOOKED_UP = 100_000


def anonymous_mib() -> float:
    """Private memory of this process."""
    with open("/proc/self/status", encoding="ascii") as file:
        (line,) = (line for line in file if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1024


def opening(path: str) -> None:
    """Open the database once, and print what that took."""
    before, begin_s = anonymous_mib(), time.perf_counter()
    with Source(StreamConfig("keys", lmdb=path, layout="raw", dtype="uint8")) as source:
        opened_s = time.perf_counter() - begin_s
        added = anonymous_mib() - before
        draw = random.Random(1)
        indices = [draw.randrange(source.total) for _ in range(LOOKED_UP)]
        begin_s = time.perf_counter()
        for index in indices:
            source.key(index)
        each_us = (time.perf_counter() - begin_s) / LOOKED_UP * 1e6
    print(json.dumps({"seconds": opened_s, "added_mib": added, "key_us": each_us}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=3_000_000)
    parser.add_argument("--open", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.open:
        opening(args.open)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "keys.lmdb")
        keys = sorted(hashlib.sha1(b"%d" % i).hexdigest().encode() for i in range(args.keys))
        with (
            lmdb.open(path, subdir=False, lock=False, map_size=1 << 34) as env,
            env.begin(write=True) as txn,
            txn.cursor() as cursor,
        ):
            cursor.putmulti(((key, b"\1") for key in keys), append=True)
        for _ in range(3):
            subprocess.run([sys.executable, __file__, "--open", path], check=True)


if __name__ == "__main__":
    main()
