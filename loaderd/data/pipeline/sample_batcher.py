"""Batches of whole samples: by the stream's collate function, or by `pad`, `ragged` and mixing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loaderd.config.stream import StreamConfig
from loaderd.core.rng import CounterRng
from loaderd.data.errors import ANYTHING, SampleFault
from loaderd.data.pipeline.collate import Batch, Collate, batch_of, fields_of
from loaderd.data.pipeline.lengths import LengthBatcher
from loaderd.data.sample import BadValue
from loaderd_wire.slots import FieldSpec


class SampleBatcher:
    """Makes batches of the samples that a SamplePipeline has made.

    Raises SourceError for a collate function that cannot be imported.

    Attributes:
        form: "dict" or "tuple", as a collate function returns it; "" before the first batch.
    """

    def __init__(self, plan: StreamConfig, whole_samples: bool, pictures: set[str]) -> None:
        """Import the stream's collate function, if it has one.

        Args:
            plan: The stream.
            whole_samples: The samples are WholeSamples.
            pictures: Names of the fields that are images; the pipeline adds to them.
        """
        self.form = ""
        self._modes = plan.modes()
        self._pictures = pictures
        self._collate = Collate(plan) if whole_samples else None
        self._lengths = None if self._collate else LengthBatcher(plan)

    def make(self, samples: Sequence[Any], seed: int, epoch: int, position: int) -> Batch:
        """Make a batch.

        Args:
            samples: As `SamplePipeline.make` returns them.
            seed: Of the stream.
            epoch: Counted from 0.
            position: The place of the batch's first row in the epoch.

        Returns:
            Field -> numpy array, or list of arrays, of str or of bytes.

        Raises:
            SampleFault: The function failed, or returned no batch ("collate").
        """
        # differs from the generator of the sample with this index
        rng = np.random.Generator(np.random.PCG64([CounterRng(seed, epoch, position).key(), 1]))
        try:
            if self._lengths is not None:
                batch = self._lengths(samples)
                self._lengths.mix(batch, samples, rng)
                return batch
            assert self._collate is not None
            made = self._collate([sample.value for sample in samples], rng, epoch)
            batch, form = batch_of(made, self._modes)
            if self.form and form != self.form:
                raise BadValue(f"collate returned a {form}, before it was a {self.form}")
        except ANYTHING as error:
            raise SampleFault.of("collate", error) from None
        self.form = form
        return batch

    def specs(self, batch: Batch) -> tuple[FieldSpec, ...]:
        """The fields of a batch, with the row shapes that this one has."""
        return fields_of(batch, self._pictures if self._collate is None else frozenset())
