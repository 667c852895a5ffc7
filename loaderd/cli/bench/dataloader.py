"""torch's DataLoader on the samples of a stream, which `bench` compares with.

It is used as whoever has this recipe as a map-style dataset would use it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from loaderd.config.stream import StreamConfig
from loaderd.data.errors import SampleFault
from loaderd.data.pipeline.pipeline import SamplePipeline
from loaderd.data.pipeline.request import SampleRequest
from loaderd.data.selection.select import select
from loaderd.data.sources.source import Source
from loaderd.data.stream_order import once, stream_order
from loaderd.data.user_code import find
from loaderd.data.user_modules import put_first
from loaderd.data.whole_sample import WholeSample

TRIES = 16  # samples in place of a bad one, where the stream doesn't raise


class Mapped:
    """The samples of a stream's split: the same decoding and the same transforms.

    Opened where it is first used.
    """

    def __init__(self, plan: str, folder: str) -> None:
        self._plan = StreamConfig.from_json(plan)
        self._folder = folder
        self._open()
        self._length = self._order.samples
        self._close()

    def _open(self) -> None:
        put_first(self._folder)
        plan = self._plan
        self._source: Source | None = Source(plan)
        self._pipeline = SamplePipeline(plan, self._source)
        self._source.selection = select(plan, self._source)
        self._order = stream_order(once(plan), self._source)

    def _close(self) -> None:
        assert self._source is not None
        self._source.close()
        self._source = None
        del self._pipeline, self._order

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, position: int) -> Any:
        if self._source is None:
            self._open()
        for n in range(TRIES):
            at = np.array([(position + n) % self._length], np.int64)
            try:
                index = int(self._order.indices(self._plan.seed, 0, at)[0])
                sample = self._pipeline.make(
                    SampleRequest(self._plan.seed, 0, index), lambda stage: None
                )
            except SampleFault:
                if self._plan.on_error == "raise" or n + 1 == TRIES:
                    raise
                continue
            return (
                sample
                if isinstance(sample, WholeSample)
                else {name: _tensor(value) for name, value in sample.items()}
            )
        raise AssertionError("unreachable")

    def collate(self, samples: list[Any]) -> Any:
        """The stream's own collate function."""
        made = self._pipeline.batcher.make(samples, self._plan.seed, 0, 0)
        return {name: _tensor(value) for name, value in made.items()}


def _tensor(value: Any) -> Any:
    import torch

    if isinstance(value, list):
        return [_tensor(item) for item in value]
    if not isinstance(value, np.ndarray):
        return value
    return torch.from_numpy(value if value.flags.writeable else value.copy())


def _init(init: str, worker: int) -> None:
    import torch

    torch.set_num_threads(1)
    if init:
        find(init, "init")(worker)


def make(plan: str, folder: str, init: str, workers: int, prefetch: int) -> Iterable[Any]:
    """The DataLoader, with persistent workers.

    Together they make as many batches ahead as a Loader has.

    Args:
        plan: The stream as JSON.
        folder: First on sys.path, or "".
        init: "pkg.module:function" or "".
        workers: How many.
        prefetch: Batches ahead.
    """
    from torch.utils.data import DataLoader

    dataset: Any = Mapped(plan, folder)
    settings = StreamConfig.from_json(plan)
    return DataLoader(
        dataset,
        batch_size=settings.batch_size,
        shuffle=settings.shuffle > 0,
        drop_last=settings.drop_last and len(dataset) >= settings.batch_size,
        num_workers=workers,
        prefetch_factor=max(2, -(-prefetch // workers)),
        persistent_workers=True,
        collate_fn=dataset.collate if settings.collate != "stack" else None,
        worker_init_fn=partial(_init, init),
    )
