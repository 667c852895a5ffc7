"""The order of a stream's samples: the one place that makes it from what the config says and what
was found.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from loaderd.config.stream import StreamConfig
from loaderd.core.order import Order


class OrderFacts(Protocol):
    """What an order must know of a stream's data: a `Source` has it, and a `StreamInfo`."""

    @property
    def total(self) -> int:
        """Samples of the dataset."""
        ...


def stream_order(plan: StreamConfig, facts: OrderFacts) -> Order:
    """The order of a stream.

    Args:
        plan: The stream's settings.
        facts: What was found.

    Raises:
        ValueError: The split is empty, or beyond the end.
    """
    return Order(facts.total, plan.split, plan.split_by, plan.shuffle)


def once(plan: StreamConfig) -> StreamConfig:
    """The same samples, each once and in the stored order, whatever an epoch is."""
    return replace(plan, shuffle=0)
