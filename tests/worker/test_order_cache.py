from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from loaderd.core.interleaving import Interleaving
from loaderd.core.mixture import MixedOrder, MixedSource
from loaderd.core.order import Order
from loaderd.worker.order_cache import KEPT, SPAN, OrderCache


@pytest.mark.parametrize(
    "order",
    [
        Order(3, shuffle=1),
        Order(10_000_000, shuffle=1),
        Order(70_000, "10%:90%", shuffle=64),
        Order(5),
    ],
)
@pytest.mark.parametrize(
    ("first", "last"),
    [
        (0, 1),
        (0, SPAN),
        (SPAN - 1, SPAN + 1),
        (SPAN - 40, 2 * SPAN - 41),
        (7, 7 + 3 * SPAN),
        (6 * SPAN, 6 * SPAN + 64),
    ],
)
def test_a_span_asked_for_in_any_piece_is_the_order(order: Order, first: int, last: int) -> None:
    spans = OrderCache(order)
    expected = order.indices(5, 2, np.arange(first, last, dtype=np.int64))
    for _ in range(2):
        found = spans.indices(5, 2, first, last)
        assert found.dtype == np.int64
        assert found.tolist() == expected.tolist()


def test_rows_of_a_mixture_come_with_their_own_epochs_in_any_piece() -> None:
    order = MixedOrder(
        [MixedSource(Order(7, shuffle=1), 7)], Interleaving([Fraction(1)]), 99_999, endless=True
    )
    spans = OrderCache(order)
    for first, last in ((0, 3), (SPAN - 40, SPAN + 40), (7, 7 + 3 * SPAN)):
        indices, epochs = order.rows(5, 2, np.arange(first, last, dtype=np.int64))
        for _ in range(2):
            found = spans.rows(5, 2, first, last)
            assert found[0].tolist() == indices.tolist()
            assert found[1].tolist() == epochs.tolist()
        assert spans.indices(5, 2, first, last).tolist() == indices.tolist()


def test_indices_that_the_caller_overwrites_are_whole_the_next_time() -> None:
    spans = OrderCache(Order(1000, shuffle=1))
    before = spans.indices(0, 0, 10, 20)
    spans.indices(0, 0, 10, 20)[:] = -1
    assert spans.indices(0, 0, 10, 20).tolist() == before.tolist()


def test_many_epochs_leave_no_more_than_a_few_spans_behind() -> None:
    order = Order(1000, shuffle=1)
    spans = OrderCache(order)
    for epoch in range(5 * KEPT):
        assert (
            spans.indices(0, epoch, 0, 3).tolist()
            == order.indices(0, epoch, np.arange(3, dtype=np.int64)).tolist()
        )
    assert len(spans._kept) == KEPT
