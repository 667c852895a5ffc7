"""The least that a trainer's start can take, as a contestant of the peers' benchmark: a process
that imports torch and has a batch.

Copy or link this file into a copy of that folder as `contestants/torch_only.py`. What another
contestant needs beyond it, in the same run and with its service up, is what its own start costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lib import Config  # pyright: ignore[reportMissingImports] - of the folder that this goes into

VENV = "v213"
KINDS = "u8 f32 tiny jpeg"
VARIANT = ""


@contextmanager
def client(cfg: Config) -> Iterator[Callable[[], Iterator[tuple[Any, Any]]]]:
    import torch

    batch = torch.zeros((cfg.batch, *cfg.shape), dtype=torch.uint8), list(range(cfg.batch))
    yield lambda: iter([batch])
