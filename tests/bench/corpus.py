"""Synthetic corpora for the benchmarks, made once a folder: LMDBs in loaderd's own layout and the same samples for a DataLoader."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

RECORDS = 512  # distinct records; an epoch of more samples reads them again
SHAPES = {"u8": ((3, 224, 224), "uint8"), "f32": ((3, 224, 224), "float32"), "tiny": ((1024,), "uint8")}


class Records:
    """The map-style dataset that is packed: {"x": array, "y": index}."""

    def __init__(self, kind: str, n: int = RECORDS) -> None:
        self.shape, self.dtype = SHAPES[kind]
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> dict[str, Any]:
        raw = np.random.default_rng(index).integers(0, 256, self.shape, np.uint8)
        return {"x": raw.astype(self.dtype), "y": index}


def database(folder: Path, kind: str, n: int = RECORDS) -> Path:
    """The packed LMDB of a kind, made if it isn't there."""
    from loaderd.data.packers import pack_dataset

    target = folder / f"{kind}-{n}.lmdb"
    if not target.exists():
        sys.path.insert(0, str(Path(__file__).parent))
        pack_dataset("corpus:Records", {"kind": kind, "n": n}, str(target))
    return target
