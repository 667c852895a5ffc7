"""The order of a stream, made from what the config says and what was found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from loaderd.config.stream import StreamConfig
from loaderd.core.order import Order
from loaderd.data.selection.selection import ALL
from loaderd.data.stream_order import once, stream_order

PLAN = StreamConfig("train", lmdb="/x", split="10%:90%", shuffle=1)
FACTS: Any = SimpleNamespace(total=50, selection=ALL)


def test_order_of_a_stream_is_that_of_its_split_and_shuffle() -> None:
    order = stream_order(PLAN, FACTS)
    expected = Order(50, "10%:90%", "random", 1)
    positions = np.arange(order.samples)
    assert order.indices(3, 1, positions).tolist() == expected.indices(3, 1, positions).tolist()


def test_once_is_every_sample_of_the_split_as_stored() -> None:
    order = stream_order(once(PLAN), FACTS)
    expected = Order(50, "10%:90%", "random", 0)
    assert (
        order.indices(0, 0, np.arange(40)).tolist()
        == expected.indices(7, 7, np.arange(40)).tolist()
    )
