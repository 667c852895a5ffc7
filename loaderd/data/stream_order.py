"""The order of a stream's samples.

This is the one place that makes it from what the config says and what was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Protocol

from loaderd.config.mixture_keys import exact
from loaderd.config.stream import StreamConfig
from loaderd.core.buckets import BucketOrder
from loaderd.core.interleaving import Interleaving
from loaderd.core.mixture import JoinedOrder, MixedOrder, MixedSource, epoch_of_mixture
from loaderd.core.order import Order, StreamOrder
from loaderd.core.weighted_draw import WeightedDraw
from loaderd.data.selection.selection import SampleSelection, buckets_of_stream
from loaderd.data.selection.tables import open_table

ONCE = "once"  # the `stop` of a mixture that is only gone through


class OrderFacts(Protocol):
    """What an order must know of a stream's data: a `Source` has it, and a `StreamInfo`."""

    @property
    def total(self) -> int:
        """Samples of the dataset."""
        ...

    @property
    def selection(self) -> SampleSelection:
        """Which of them the stream has."""
        ...

    @property
    def sources(self) -> Sequence[OrderFacts]:
        """The same of each source of a mixture."""
        ...


def stream_order(
    plan: StreamConfig, facts: OrderFacts, epoch_samples: int = 0, batch_size: int = 0
) -> StreamOrder:
    """The order of a stream.

    Args:
        plan: The stream's settings.
        facts: What was found.
        epoch_samples: Positions of an epoch where its steps are counted (`epoch_steps`), for all
            ranks together; 0: as for one rank with the stream's own batch size.
        batch_size: Positions of a batch, where batches have their own rows (`bucket_by`); 0: the
            stream's own.

    Raises:
        ValueError: The split is empty, or beyond the end.
        SourceError: A file of the selection is gone or damaged.
    """
    if plan.sources:
        return _mixture_order(plan, facts, epoch_samples)
    selection = facts.selection
    if plan.bucket_by:
        buckets = buckets_of_stream(plan, selection, batch_size)
        ranked = open_table(selection.ranked)
        return BucketOrder(ranked, buckets, batch_size or plan.batch_size, shuffle=plan.shuffle > 0)
    listed = open_table(selection.listed) if selection.listed else None
    # a list that a split by key made is split already
    by_key = plan.split_by == "key"
    order = Order(
        facts.total if listed is None else len(listed),
        "0%:100%" if by_key else plan.split,
        "stored" if by_key else plan.split_by,
        plan.shuffle,
        listed=listed,
        draw=WeightedDraw(open_table(selection.ends)) if plan.weights else None,
        repeat=plan.repeat,
    )
    if not plan.epoch_steps:
        return order
    return MixedOrder(
        [MixedSource(order, facts.total)],
        Interleaving([Fraction(1)]),
        epoch_samples or plan.epoch_steps * plan.batch_size,
        endless=True,
    )


def once(plan: StreamConfig) -> StreamConfig:
    """The same samples, each once and in the stored order, whatever an epoch is."""
    return replace(
        plan,
        shuffle=0,
        weights=None,
        repeat=1,
        epoch_steps=0,
        bucket_by=None,
        max_tokens=0,
        sources=tuple(map(once, plan.sources)),
        stop=ONCE,
    )


def _mixture_order(plan: StreamConfig, facts: OrderFacts, epoch_samples: int) -> StreamOrder:
    sources = [
        MixedSource(stream_order(each, found), found.total, each.seed)
        for each, found in zip(plan.sources, facts.sources, strict=True)
    ]
    if plan.stop == ONCE:
        return JoinedOrder(sources, plan.shuffle)
    word = Interleaving(exact(plan.of))
    if plan.epoch_steps:
        positions = epoch_samples or plan.epoch_steps * plan.batch_size
        return MixedOrder(sources, word, positions, endless=True)
    samples = epoch_of_mixture(word, [source.order.samples for source in sources], plan.stop)
    return MixedOrder(sources, word, samples, endless=False)
