"""The streams that a worker has opened: plan, source, recipe and order of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from loaderd.core.jobs import Stage
from loaderd.core.order import Order
from loaderd.data.faults import SampleFault
from loaderd.data.plan import StreamPlan
from loaderd.drivers.orders import Use
from loaderd.worker import guards
from loaderd_wire.slots import FieldSpec


class OpenSource(Protocol):
    """What a worker needs of loaderd.data.source.Source."""

    total: int
    identity: str
    state: str
    layout: str
    keys: str
    classes: tuple[str, ...]
    warnings: tuple[str, ...]
    many: bool

    def key(self, index: int) -> str: ...

    def changed(self) -> str: ...

    def close(self) -> None: ...


class Note(Protocol):
    def __call__(self, stage: Stage, /) -> None: ...


class SampleRecipe(Protocol):
    """What a worker needs of loaderd.data.recipe.Recipe."""

    form: str
    collated: bool
    user_code: bool

    def make(self, index: int, seed: int, epoch: int, note: Note) -> Any: ...

    def make_many(
        self, indices: Sequence[int], seed: int, epoch: int, note: Note, at: Callable[[int], None]
    ) -> Sequence[Any | SampleFault]: ...

    def specs(self, sample: Any) -> tuple[FieldSpec, ...]: ...

    def fit(self, sample: Any, specs: tuple[FieldSpec, ...]) -> None: ...

    def collate(self, samples: Sequence[Any], seed: int, epoch: int, position: int) -> dict[str, Any]: ...

    def batch_specs(self, batch: dict[str, Any]) -> tuple[FieldSpec, ...]: ...


class Open(Protocol):
    """How a plan becomes a source and a recipe. Raises SourceError, or whatever user code raises."""

    def __call__(self, plan: StreamPlan, /) -> tuple[OpenSource, SampleRecipe]: ...


@dataclass(slots=True)
class Stream:
    """An open stream. specs: of one sample; empty while it is being probed. changed: what differs from the stream as probed, or ""."""

    plan: StreamPlan
    source: OpenSource
    recipe: SampleRecipe
    order: Order
    specs: tuple[FieldSpec, ...] = ()
    differs: str = ""

    def changed(self) -> str:
        """ "" or what is no longer as it was, path, old and new."""
        return self.differs or self.source.changed()

    def first_indices(self, count: int) -> np.ndarray:
        """The first samples of the split as stored, whatever the shuffle: at most `count` dataset indices."""
        stored = Order(self.source.total, self.plan.split, self.plan.split_by, 0)
        return stored.indices(0, 0, np.arange(min(count, stored.samples), dtype=np.int64))


class Shelf:
    """Opens each stream at its first use. Owns the sources."""

    def __init__(self, plans: Sequence[StreamPlan], opener: Open, place: int, num_workers: int) -> None:
        self._plans = {plan.name: plan for plan in plans}
        self._opener = opener
        self._place = place
        self._num_workers = num_workers
        self._open: dict[str, Stream] = {}
        self._uses: dict[str, Use] = {}

    def use(self, use: Use) -> None:
        """What the stream was found to be when it was probed; to be told before `get`."""
        self._uses[use.stream] = use

    def get(self, name: str) -> Stream:
        """The open stream. Raises SourceError, or whatever user code raises while it is built."""
        stream = self._open.get(name)
        if stream is None:
            plan = self._plans[name]
            source, recipe = self._opener(plan)
            order = Order(source.total, plan.split, plan.split_by, plan.shuffle)
            stream = self._open[name] = Stream(plan, source, recipe, order)
            guards.pin_native_threads()
            use = self._uses.get(name)
            if use is not None:
                stream.specs = use.specs
                stream.differs = _difference(plan, source, use)
        if stream.recipe.user_code:
            guards.tell_torch(self._place, self._num_workers, stream.plan.seed, getattr(stream.source, "dataset", None))
        return stream


def _difference(plan: StreamPlan, source: OpenSource, use: Use) -> str:
    name = plan.lmdb or plan.dataset
    if source.total != use.total:
        return f"{name} had {use.total} samples when the stream was opened and has {source.total} now"
    if source.state != use.state:
        return f"{name} is not as the stream was opened: it was {use.state}, now it is {source.state}"
    if source.identity != use.identity:
        return f"{name} is not what the stream was opened with: its identity was {use.identity}, now {source.identity}"
    return ""
