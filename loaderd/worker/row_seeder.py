"""The global generators, seeded before each sample of a job."""

from __future__ import annotations

import numpy as np

from loaderd.core.jobs import Job
from loaderd.core.rng import keys_of
from loaderd.worker.order_cache import OrderCache
from loaderd.worker.seeding import GlobalSeeder
from loaderd.worker.streams import WorkerStream


class RowSeeder:
    """Seeds the global generators for one sample of a job at a time."""

    def __init__(
        self,
        stream: WorkerStream,
        job: Job,
        spans: OrderCache,
        epochs: list[int],
    ) -> None:
        """Begin with no sample.

        Args:
            stream: Of the job.
            job: The job.
            spans: The order that its rows are in.
            epochs: Of each row, where the order has such; else empty.
        """
        self._use = stream.use
        self._calls = stream.sample_pipeline.calls
        self._job = job
        self._mixed = spans.mixed
        self._epochs = epochs
        self._own: GlobalSeeder | None = None  # of the rows' own samples
        self._latest: GlobalSeeder | None = None  # of the latest sample

    def seed(self, row: int, index: int, indices: np.ndarray, *, own: bool) -> np.ndarray | None:
        """Seed for a sample.

        Args:
            row: Of the batch.
            index: Of the dataset.
            indices: int64, the dataset index of each row of the job. It is looked at before the
                first own sample alone, since substitutes are put into it later.
            own: It's the row's, and no substitute.

        Returns:
            The seeds of its rng, if they are known.
        """
        first = self._job.first
        if not own:
            self._latest = self._seeder_of(np.array([index]), row)
            self._latest.seed(0)
            return None
        if self._own is None:
            self._own = self._seeder_of(indices.copy(), first)
        self._latest = self._own
        self._own.seed(row - first)
        return self._own.seeds(row - first) if self._calls else None

    def again(self) -> bool:
        """Whether what was made since `seed` is to be made again."""
        return self._latest is not None and self._latest.again()

    def _seeder_of(self, indices: np.ndarray, first: int) -> GlobalSeeder:
        """What seeds for these samples, which are of the rows from `first` on."""
        job, halves = self._job, None
        if self._mixed is not None:
            epochs = self._epochs[first - job.first :]
            halves = keys_of(
                self._mixed.origin(job.seed, epoch, index)
                for epoch, index in zip(epochs, indices.tolist(), strict=False)
            )
        return GlobalSeeder(job.seed, job.epoch, indices, self._use, halves)
