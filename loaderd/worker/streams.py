"""The streams that a worker has opened: plan, source, recipe and order of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from loaderd.config.stream import StreamConfig
from loaderd.core.order import StreamOrder
from loaderd.data.selection.selection import Tick
from loaderd.data.selection.tables import TableError
from loaderd.data.stream_order import once, stream_order
from loaderd.engine.messages import UseStream
from loaderd.worker import process_setup
from loaderd.worker.generator_watch import GeneratorUse
from loaderd.worker.order_cache import OrderCache
from loaderd.worker.seeding import seed_build
from loaderd.worker.staging import explained
from loaderd_wire.slots import FieldSpec

if TYPE_CHECKING:
    from loaderd.data.lmdb.bulk_rows import RowCopier
    from loaderd.data.pipeline.mixture import MixturePipeline
    from loaderd.data.pipeline.pipeline import SamplePipeline
    from loaderd.data.sources.mixture import MixtureSource
    from loaderd.data.sources.source import Source

ORDERS = 8  # lengths of an epoch that are remembered: sessions with other batches or ranks


class DataChanged(Exception):
    """The data is no longer what the stream was opened with; str() says how."""


@dataclass(slots=True)
class WorkerStream:
    """An open stream.

    Attributes:
        batch_specs: The fields of a collated batch; empty while it is being probed.
        differs: What is not as in the stream as probed, or "".
        use: The global generators that its code has been seen to use in this process.
        pictures: Bad samples come with what is stored of their images.
    """

    plan: StreamConfig
    source: Source | MixtureSource
    sample_pipeline: SamplePipeline | MixturePipeline
    order: StreamOrder
    batch_specs: tuple[FieldSpec, ...] = ()
    differs: str = ""
    use: GeneratorUse = field(default_factory=GeneratorUse)
    pictures: bool = False
    _orders: dict[tuple[int, int], OrderCache] = field(
        default_factory=dict[tuple[int, int], OrderCache]
    )
    _bulk: RowCopier | None = None
    _sought: bool = False

    def spans(self, epoch_samples: int = 0, batch_size: int = 0) -> OrderCache:
        """The order.

        Args:
            epoch_samples: Positions of an epoch, where its steps are counted.
            batch_size: Positions of a batch, where batches have their own rows.
        """
        length = epoch_samples if self.plan.epoch_steps else 0
        size = batch_size if self.plan.bucket_by else 0
        spans = self._orders.pop((length, size), None)
        if spans is None:
            while len(self._orders) >= ORDERS:
                del self._orders[next(iter(self._orders))]
            own = length or size
            order = stream_order(self.plan, self.source, length, size) if own else self.order
            spans = OrderCache(order)
        self._orders[length, size] = spans  # the one that was used last is the last
        return spans

    def bulk(self) -> RowCopier | None:
        """What copies many rows at once, if this stream's are stored so that it can be done.

        It looks at the first sample the first time.
        """
        if not self._sought and self.sample_pipeline.schema is not None:
            self._sought, self._bulk = True, self.sample_pipeline.bulk()
        return self._bulk

    def parts(self) -> list[WorkerStream]:
        """The sources of a mixture, each as the stream that it is in the mixture."""
        pipelines = getattr(self.sample_pipeline, "parts", ())
        return [
            WorkerStream(plan, source, pipeline, stream_order(plan, source))
            for plan, source, pipeline in zip(
                self.plan.sources, self.source.sources, pipelines, strict=True
            )
        ]

    def changed(self) -> str:
        """ "" or what is no longer as it was, path, old and new."""
        return explained(self.plan, self.source.changed() or self.differs)

    def first_indices(self, count: int) -> np.ndarray:
        """The first samples of the split as stored, whatever the shuffle.

        Returns:
            At most `count` dataset indices.
        """
        if self.plan.sources:  # of each source some, in turn
            parts = self.parts()
            offsets = accumulate((part.source.total for part in parts), initial=0)
            each = [
                part.first_indices(count) + offset
                for part, offset in zip(parts, offsets, strict=False)
            ]
            turns = [some[at : at + 1] for at in range(count) for some in each]
            return np.concatenate(turns)[:count]
        stored = stream_order(once(self.plan), self.source)
        return stored.indices(0, 0, np.arange(min(count, stored.samples), dtype=np.int64))


class OpenStreams:
    """Opens each stream at its first use. Owns the sources."""

    def __init__(
        self, plans: Sequence[StreamConfig], place: int, num_workers: int, *, pictures: bool = False
    ) -> None:
        self._plans = {plan.name: plan for plan in plans}
        self._place = place
        self._num_workers = num_workers
        self._pictures = pictures
        self._open: dict[str, WorkerStream] = {}
        self._uses: dict[str, UseStream] = {}
        # that somebody asked for; None while one is being opened
        self._latest: WorkerStream | None = None

    def plan(self, plan: StreamConfig) -> None:
        """A stream that is not open yet is to be opened so."""
        self._plans[plan.name] = plan

    def use(self, use: UseStream) -> None:
        """What the stream was found to be when it was probed; to be told before `get`.

        An open file is shared by all streams of it, and data that has changed may be what this
        stream was opened with: then all are closed, and opened when they are next asked for, as
        they are if this one is open: it was opened anew, or by a probe in this process.
        """
        if (
            use.stream in self._open
            or use.stream in self._uses
            or any(map(self._stale, self._open.values()))
        ):
            for stream in self._open.values():
                stream.source.close()
            self._open.clear()
            self._latest = None
        self._uses[use.stream] = use
        if use.plan:
            self._plans[use.stream] = StreamConfig.from_json(use.plan)

    def _stale(self, stream: WorkerStream) -> bool:
        """What is open may not be what is stored, in a part that nobody has read since either."""
        used = self._uses.get(stream.plan.name)
        return bool(stream.source.changed() or _changed_since(stream.plan, used))

    def notes(self) -> list[str]:
        """Lines that somebody should be told, each once."""
        return [
            explained(stream.plan, text)
            for stream in self._open.values()
            for text in stream.source.notes()
        ]

    def get(self, name: str, tick: Tick = lambda count: None) -> WorkerStream:
        """The open stream.

        Args:
            name: Which one.
            tick: Called now and then with a count, where samples are selected for the first time.

        Raises DataChanged where its data cannot be opened as it was before, SourceError, or
        whatever user code raises while it is built.
        """
        stream = self._open.get(name)
        if stream is None:
            self._latest = None
            plan, use = self._plans[name], self._uses.get(name)
            try:
                source, sample_pipeline = _open(plan)
            except (
                Exception,
                SystemExit,
            ) as error:  # whatever it is, a file that is not what it was comes first
                changed = _changed_since(plan, use)
                if changed:
                    text = explained(self._plans[name], changed)
                    raise DataChanged(f"{text}; now it cannot be opened: {error}") from None
                raise
            try:
                order = _order(plan, source, use, tick)
            except BaseException:
                source.close()
                raise
            stream = self._open[name] = WorkerStream(
                plan, source, sample_pipeline, order, pictures=self._pictures
            )
            process_setup.pin_native_threads()
            if use is not None:
                sample_pipeline.fix(use.specs)
                stream.batch_specs = use.batch_specs
                stream.differs = _difference(plan, source, use)
        self._latest = stream
        if stream.sample_pipeline.user_code:
            self.tell_torch()
        return stream

    def torch_came(self) -> None:
        """Take note that torch was imported in the middle of a sample, or of a stream's opening.

        It is told what it would have known from the start.
        """
        process_setup.pin_native_threads()
        self.tell_torch()

    def tell_torch(self) -> None:
        """Which worker this is, and what it works for, if torch is loaded."""
        stream = self._latest
        process_setup.tell_torch(
            self._place,
            self._num_workers,
            stream.plan.seed if stream else 0,
            stream.source.dataset if stream else None,
        )


def _open(
    plan: StreamConfig,
) -> tuple[Source | MixtureSource, SamplePipeline | MixturePipeline]:
    if not plan.sources:
        return _open_one(plan)
    from loaderd.data.pipeline.mixture import MixturePipeline
    from loaderd.data.sources.mixture import MixtureSource

    opened: list[tuple[Source, SamplePipeline]] = []
    try:
        opened.extend(map(_open_one, plan.sources))
    except BaseException:
        for source, _ in opened:
            source.close()
        raise
    mixed = MixtureSource(plan, [source for source, _ in opened])
    return mixed, MixturePipeline(mixed, [pipeline for _, pipeline in opened])


def _open_one(plan: StreamConfig) -> tuple[Source, SamplePipeline]:
    # Only here: a worker that has no such stream need not load what these need.
    from loaderd.data.pipeline.pipeline import SamplePipeline
    from loaderd.data.sources.source import Source

    if plan.dataset is not None:
        seed_build()
    source = Source(plan)
    try:
        return source, SamplePipeline(plan, source)
    except BaseException:
        source.close()
        raise


def _order(
    plan: StreamConfig, source: Source | MixtureSource, use: UseStream | None, tick: Tick
) -> StreamOrder:
    """The stream's order, from tables that are made again where somebody has removed them.

    Raises:
        DataChanged: They would be others now.
    """
    _select(plan, source, use, tick)
    try:
        return stream_order(plan, source)
    except TableError as error:
        if use is None:
            raise
        told = _tables(source)
        _select(plan, source, None, tick)
        if _tables(source) != told:
            raise DataChanged(f"{error}; its keys or weights are not what they were") from None
        return stream_order(plan, source)


def _tables(source: Source | MixtureSource) -> list[tuple[str, ...]]:
    """The files of the tables of a source, or of each of a mixture."""
    from loaderd.data.sources.source import Source

    each = [source] if isinstance(source, Source) else source.sources
    return [part.selection.tables for part in each]


def _select(
    plan: StreamConfig, source: Source | MixtureSource, use: UseStream | None, tick: Tick
) -> None:
    """Give a source, or each of a mixture, what its plan selects of it."""
    from loaderd.data.selection.select import select
    from loaderd.data.sources.source import Source

    if isinstance(source, Source):
        source.selection = use.selection if use is not None else select(plan, source, tick)
        return
    for number, (each, part) in enumerate(zip(plan.sources, source.sources, strict=True)):
        part.selection = (
            use.source_selections[number] if use is not None else select(each, part, tick)
        )


def _changed_since(plan: StreamConfig, use: UseStream | None) -> str:
    from loaderd.data.lmdb.watch import changed_since
    from loaderd.data.sources.mixture import states_of
    from loaderd.data.sources.part_paths import changed_parts

    def changed(one: StreamConfig, state: str) -> str:
        if one.parts and state:
            return changed_parts(one, state)
        return changed_since(one.stored_at, state) if one.stored_at and state else ""

    state = use.state if use is not None else ""
    if not plan.sources:
        return changed(plan, state)
    told = (changed(*each) for each in zip(plan.sources, states_of(state), strict=False))
    return next((text for text in told if text), "")


def _difference(plan: StreamConfig, source: Source | MixtureSource, use: UseStream) -> str:
    name = plan.data_name
    text = source.expect(use.state)
    if text:
        return text
    if source.total != use.total:
        return (
            f"{name} had {use.total} samples when the stream was opened and has {source.total} now"
        )
    if tuple(source.classes) != use.classes:
        return (
            f"{name} had {len(use.classes):,} classes when the stream was opened, and has "
            f"{len(source.classes):,} now, or others"
        )
    if source.identity != use.identity:
        return (
            f"{name} is not what the stream was opened with: its identity was {use.identity}, "
            f"now {source.identity}"
        )
    return ""
