"""The order of a stream's samples: the one place that makes it from what the config says and what
was found.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Protocol

from loaderd.config.stream import StreamConfig
from loaderd.core.interleaving import Interleaving
from loaderd.core.mixture import MixedOrder, MixedSource
from loaderd.core.order import Order, StreamOrder


class OrderFacts(Protocol):
    """What an order must know of a stream's data: a `Source` has it, and a `StreamInfo`."""

    @property
    def total(self) -> int:
        """Samples of the dataset."""
        ...


def stream_order(plan: StreamConfig, facts: OrderFacts, epoch_samples: int = 0) -> StreamOrder:
    """The order of a stream.

    Args:
        plan: The stream's settings.
        facts: What was found.
        epoch_samples: Positions of an epoch where its steps are counted (`epoch_steps`), for all
            ranks together; 0: as for one rank with the stream's own batch size.

    Raises:
        ValueError: The split is empty, or beyond the end.
    """
    order = Order(facts.total, plan.split, plan.split_by, plan.shuffle)
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
    return replace(plan, shuffle=0, epoch_steps=0)
