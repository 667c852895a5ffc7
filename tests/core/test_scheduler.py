"""The happy path, and the rules of fairness, size and order."""

from __future__ import annotations

from core.house import House
from loaderd_wire.slices import Cursor, steps


def test_batches_come_in_order_over_the_end_of_an_epoch() -> None:
    house = House()
    house.attach()
    plan = steps(house.clients[1].shape, Cursor(0, 0, 0))
    for _ in range(20):
        batch = house.take()
        _, cut = next(plan)
        assert (batch.epoch, batch.start, batch.rows) == (cut.epoch, cut.start, cut.rows)
        assert batch.filled == 8
        assert not batch.failed
