"""How samples of a mixture are made: each by the pipeline of its source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from loaderd.data.pipeline.pipeline import SamplePipeline
from loaderd.data.pipeline.request import Note, SampleRequest
from loaderd.data.sources.mixture import MixtureSource
from loaderd_wire.records import quick
from loaderd_wire.slots import FieldSpec

_request = quick(SampleRequest)  # one is made for every row


class MixturePipeline:
    """Makes the samples of a mixture. Has what is asked of a `SamplePipeline`.

    A request's index counts through the sources, one behind the other; its epoch is that of the
    sample's source.

    Attributes:
        parts: The pipelines of the sources.
        others: As of a SamplePipeline; of the batches as of the first one, since all sources have
            the mixture's settings of them.
    """

    def __init__(self, source: MixtureSource, parts: Sequence[SamplePipeline]) -> None:
        """Take the pipelines of the sources, in their order."""
        self._source = source
        self.parts = list(parts)
        first = self.parts[0]
        self.collated, self.batcher = first.collated, first.batcher
        self.fields, self.specs = first.fields, first.specs
        self.unlike, self.undecided = first.unlike, first.undecided
        self.user_code = any(part.user_code for part in parts)
        self.calls = any(part.calls for part in parts)

    @property
    def form(self) -> str:
        """ "dict" or "tuple"."""
        return self.parts[0].form

    @property
    def schema(self) -> Any:
        """What every sample must be; None until `fix` is called."""
        return self.parts[0].schema

    @property
    def jpeg_extension(self) -> str:
        """That of a source which uses it, else "not used"."""
        return next(
            (used for part in self.parts if (used := part.jpeg_extension) != "not used"),
            "not used",
        )

    def make(self, request: SampleRequest, note: Note) -> Any:
        """As `SamplePipeline.make`."""
        part, own = self._own(request)
        return part.make(own, note)

    def row(self, request: SampleRequest, note: Note) -> Any:
        """As `SamplePipeline.row`."""
        part, own = self._own(request)
        return part.row(own, note)

    def make_many(
        self,
        requests: Sequence[SampleRequest],
        note: Note,
        at: Callable[[int], None] = lambda row: None,
        *,
        copied: bool = False,
    ) -> list[Any]:
        """Never asked for: a MixtureSource does not fetch many at once."""
        raise NotImplementedError

    def tell_ops(self, tell: Callable[[str], None]) -> None:
        """As `SamplePipeline.tell_ops`."""
        for part in self.parts:
            part.tell_ops(tell)

    def fix(self, specs: tuple[FieldSpec, ...]) -> None:
        """From now on the samples of all sources must have these fields."""
        for part in self.parts:
            part.fix(specs)

    def bulk(self) -> None:
        """No rows are copied straight from the databases."""
        return

    def _own(self, request: SampleRequest) -> tuple[SamplePipeline, SampleRequest]:
        number, index = self._source.place(request.index)
        seed = request.seed + self._source.sources[number].plan.seed
        return self.parts[number], _request(
            seed, request.epoch, index, request.out, request.rng_seeds, request.trainer_epoch
        )
