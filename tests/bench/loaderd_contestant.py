"""loaderd as a contestant of the peers' benchmark: copy or link this file into a copy of that
folder as `contestants/loaderd.py`.

Variants, as in NAME:VARIANT:

    ""         arrays packed by `loaderd pack dataset`, JPEGs by `loaderd pack imagefolder` as they
    are ra         JPEGs packed for random access lmdb       the very LMDBs that the others read,
    through a layout class of twenty lines dataset    the shared map-style dataset and its
    transform, as they are: what moving over costs nobody embedded   no daemon is started
    beforehand: the trainer's Loader does it numpy      the batches as numpy arrays, in a trainer
    without torch shared     trainers get the same batches from one making

`+` joins them: "ra+numpy". What is packed lies in the folder of the corpora and is made once;
`python -m contestants.loaderd` does it ahead.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lib import (  # pyright: ignore[reportMissingImports] - of the folder that this goes into
    COUNTS,
    DATA,
    LABEL,
    Config,
    LmdbDataset,
    key,
    limit_native_threads,
)

VENV = "v213"
READS = "loaderd/{kind}"
KINDS = "u8 f32 tiny jpeg"
VARIANT = ""

MEAN = [0.485, 0.456, 0.406]
STD = [0.229, 0.224, 0.225]
# in the LMDB of a million keys: the name of a sample, which ends in the number of its record
NAMES = "k%09d"


class Records:
    """Their LMDB as a layout: sample i is record i % count, whose value is a label and the payload.

    Where samples have names, the name is looked up first, in the database.
    """

    def __init__(
        self, get: Callable[[bytes], memoryview], kind: str, length: int, named: bool
    ) -> None:
        cfg = Config(kind=kind)
        self.get, self.length, self.named, self.count = get, length, named, COUNTS[kind]
        self.shape, self.dtype = (None, None) if kind == "jpeg" else (cfg.shape, cfg.dtype)

    def __len__(self) -> int:
        return self.length

    def keys(self, index: int) -> list[bytes]:
        if self.named:
            index = int(bytes(self.get((NAMES % index).encode()))[-14:-5])
        return [key(index % self.count)]

    def parse(self, index: int, values: list[memoryview]) -> dict[str, Any]:
        import numpy as np

        payload = values[0][LABEL.size :]
        x = (
            payload
            if self.shape is None
            else np.frombuffer(payload, self.dtype).reshape(self.shape)
        )
        return {"x": x, "y": index}


class Arrays(LmdbDataset):
    """What is packed: each record once."""

    def __init__(self, kind: str) -> None:
        super().__init__(Config(kind=kind, length=COUNTS[kind]))

    def __getitem__(self, index: int) -> dict[str, Any]:
        x, y = super().__getitem__(index)
        return {"x": x, "y": y}


class Shared(LmdbDataset):
    """The dataset that every other contestant has, built from plain values."""

    def __init__(self, **values: Any) -> None:
        limit_native_threads()
        super().__init__(Config(**values))

    def __getitem__(self, index: int) -> dict[str, Any]:
        x, y = super().__getitem__(index)
        return {"x": x, "y": y}


def packed(kind: str, random_access: bool) -> Path:
    """The database of a kind, made if it isn't there."""
    folder = DATA / "loaderd" / kind
    target = folder / ("ra.lmdb" if random_access else "plain.lmdb")
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "loaderd", "pack"]
    with tempfile.TemporaryDirectory(dir=folder) as name:
        if kind == "jpeg":
            dataset = LmdbDataset(Config(kind=kind))
            for i in range(COUNTS[kind]):
                Path(name, f"{i:08d}.jpg").write_bytes(dataset.raw(i))
            how = "--random-access" if random_access else "--no-random-access"
            command += ["imagefolder", name, str(target), how]
        else:
            command += [
                "dataset",
                "contestants.loaderd:Arrays",
                str(target),
                "--args",
                json.dumps({"kind": kind}),
            ]
        subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL, cwd=Path(__file__).parent.parent
        )
    return target


def same(kind: str) -> Path:
    """Their LMDB, linked to where it is read before each run."""
    folder = DATA / "loaderd" / kind / "same"
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "data.mdb"
    if not link.exists():
        link.symlink_to(DATA / f"{kind}.lmdb" / "data.mdb")
    return folder


def named(kind: str, keys: int) -> Path:
    """Their records and, before them, the names of so many samples."""
    import lmdb

    target = DATA / "loaderd" / f"{kind}-{keys}.lmdb"
    if not target.exists():
        dataset = LmdbDataset(Config(kind=kind))
        part = target.with_suffix(".part")
        with (
            lmdb.open(
                str(part), subdir=False, map_size=4 << 30, writemap=True, sync=False, lock=False
            ) as env,
            env.begin(write=True) as txn,
        ):
            for i in range(COUNTS[kind]):
                txn.put(key(i), bytes(8) + bytes(dataset.raw(i)), append=True)
            for i in range(keys):
                txn.put(
                    (NAMES % i).encode(),
                    f"train/class_{i % 1000:04d}/image_{i:09d}.jpeg".encode(),
                    append=True,
                )
        part.rename(target)
    return target


def stream(cfg: Config, variant: set[str]) -> str:
    """The stream's table of the config."""
    lines = [
        f"batch_size = {cfg.batch}",
        "shuffle = true",
        "drop_last = true",
        f"seed = {cfg.seed}",
    ]
    if cfg.fault or "dataset" in variant:
        values = ", ".join(f"{name} = {json.dumps(value)}" for name, value in asdict(cfg).items())
        return "\n".join(
            [*lines, 'dataset = "contestants.loaderd:Shared"', f"dataset_args = {{ {values} }}"]
        )
    if "lmdb" in variant or cfg.keys:
        database = named(cfg.kind, cfg.keys) if cfg.keys else same(cfg.kind)
        args = (
            f'{{ kind = "{cfg.kind}", length = {cfg.length}, named = {json.dumps(cfg.keys > 0)} }}'
        )
        lines += [
            f'lmdb = "{database}"',
            'layout = "contestants.loaderd:Records"',
            f"layout_args = {args}",
        ]
    else:
        lines.append(f'lmdb = "{packed(cfg.kind, "ra" in variant)}"')
    if cfg.kind == "jpeg":
        ops = ['op = "random_resized_crop"\nsize = 224', 'op = "hflip"']
        if cfg.out == "f32":
            ops += [f'op = "normalize"\nmean = {MEAN}\nstd = {STD}', 'op = "to_chw"']
        lines += [f"[[streams.train.transforms]]\n{op}" for op in ops]
    return "\n".join(lines)


def place(cfg: Config) -> Path:
    """The folder of sockets and configs; both processes know it by the port."""
    folder = Path(tempfile.gettempdir()) / f"loader-bench-{os.getuid()}-{cfg.port}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def config_of(cfg: Config) -> Path:
    """Of this run and no other: what an earlier one left behind serves somebody else's data.

    The socket's name is the same.
    """
    return place(cfg) / f"{os.environ.get('LOADER_BENCH_RUN', '')[:8]}.toml"


def serve(cfg: Config, ready: Callable[[], None]) -> None:
    """A trainer may come at once: a Loader waits for its daemon, as where both are started by one
    script.
    """
    variant: set[str] = set(VARIANT.split("+"))
    for left in place(cfg).iterdir():
        left.unlink(missing_ok=True)
    config = config_of(cfg)
    socket = config.with_suffix(".sock").name
    config.write_text(
        f'[daemon]\nsocket = "{socket}"\n[workers]\nnum_workers = '
        f"{cfg.workers}\n[streams.train]\n{stream(cfg, variant)}\n"
    )
    if "embedded" in variant:
        ready()
        time.sleep(86400)  # this process has nothing to do until it is killed
    ready()
    os.execv(sys.executable, [sys.executable, "-m", "loaderd", "serve", str(config)])


@contextmanager
def client(cfg: Config) -> Iterator[Callable[[], Iterator[tuple[Any, Any]]]]:
    from loaderd_client import Loader

    variant = set(VARIANT.split("+"))
    source = config_of(cfg).with_suffix(".toml" if "embedded" in variant else ".sock")
    with Loader(
        source,
        stream="train",
        output="numpy" if "numpy" in variant else "torch",
        shared="shared" in variant or None,
    ) as loader:

        def epoch() -> Iterator[tuple[Any, Any]]:
            for batch in loader:
                x = batch["x"] if "x" in batch else batch["image"]
                yield as_it_lies(x), batch.get("y", batch.indices)

        yield epoch


def as_it_lies(x: Any) -> Any:
    """Pictures are the channels_last view of what lies in memory, row by row; who reads the memory
    from end to end wants that.
    """
    return (
        x.permute(0, 2, 3, 1)
        if hasattr(x, "permute") and x.ndim == 4 and not x.is_contiguous()
        else x
    )


if __name__ == "__main__":
    for kind in KINDS.split():
        print(packed(kind, False))
    print(packed("jpeg", True))
    print(named("jpeg", 1_000_000))
