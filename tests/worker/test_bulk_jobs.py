"""Jobs over stored numbers: the workers' short way gives the bytes and the faults of the long one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from loaderd.config.stream import StreamConfig
from loaderd.core.jobs import Excluded
from loaderd.core.order import Order
from loaderd.data.sample import Sample
from loaderd_testing.engine_harness import Workshop
from loaderd_testing.sample_builders import write_own

BAD = 21


def number(index: int) -> Sample:
    x = np.random.default_rng(index).random(40, np.float32)
    if index == BAD:
        x[3] = np.nan
    return Sample({"x": x, "y": np.array(index, np.int64)})


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    folder = tmp_path_factory.mktemp("numbers")
    lmdb = str(write_own(folder / "db", [number(i) for i in range(60)]))
    plans = (
        StreamConfig("plain", lmdb=lmdb, shuffle=1),
        StreamConfig("strict", lmdb=lmdb, nonfinite="error", on_error="skip"),
        StreamConfig("replace", lmdb=lmdb, on_error="replace"),
    )
    shop = Workshop(folder, plans)
    shop.start(1, 2)
    yield shop
    shop.close()


@pytest.fixture
def shop(opened: Workshop) -> Iterator[Workshop]:
    yield opened
    opened.drain()


def test_however_a_batch_of_stored_numbers_is_cut_its_bytes_are_the_same(shop: Workshop) -> None:
    pond = shop.pond(shop.facts("plain"), 30, slots=2)
    done = shop.run(1, shop.job("plain", 30, start=50, epoch=2))
    assert (done.bad, done.replaced, done.size) == ((), (), 0)
    for worker, first, last in [(2, 5, 30), (1, 1, 5), (2, 0, 1)]:
        shop.run(worker, shop.job("plain", 30, slot=1, start=50, epoch=2, first=first, last=last))
    body = pond.layout.tail_offset
    assert pond.read(0)[:body] == pond.read(1)[:body]
    expected = Order(60, shuffle=1).indices(7, 2, np.arange(50, 80))
    assert pond.indices(0, 30) == expected.tolist()
    assert pond.field(0, "y", 30).tolist() == expected.tolist()
    assert all(
        np.array_equal(x, number(i)["x"], equal_nan=True)
        for i, x in zip(expected.tolist(), pond.field(0, "x", 30), strict=True)
    )


def test_rows_that_a_neighbour_job_owns_are_left_alone(shop: Workshop) -> None:
    pond = shop.pond(shop.facts("plain"), 12)
    shop.run(1, shop.job("plain", 12, first=4, last=8))
    assert pond.indices(0, 12)[:4] == [0] * 4
    assert not pond.field(0, "x", 12)[8:].any()


def test_a_bad_row_among_stored_numbers_is_named_and_the_others_are_there(shop: Workshop) -> None:
    pond = shop.pond(shop.facts("strict"), 10)
    done = shop.run(1, shop.job("strict", 10, start=BAD - 4))
    assert [(bad.row, bad.lost, bad.sample.index, bad.sample.stage) for bad in done.bad] == [
        (4, True, BAD, "check")
    ]
    there = [row for row in range(10) if row != 4]
    assert pond.field(0, "y", 10)[there].tolist() == [BAD - 4 + row for row in there]


def test_a_condemned_row_among_stored_numbers_is_not_read_again(shop: Workshop) -> None:
    pond = shop.pond(shop.facts("replace"), 10)
    done = shop.run(1, shop.job("replace", 10, excluded=(Excluded(3, 0),)))
    substitute = Order(60).substitute(7, 0, 3, 1)
    assert [(put.row, put.index) for put in done.replaced] == [(3, substitute)]
    assert pond.indices(0, 10) == [0, 1, 2, substitute, 4, 5, 6, 7, 8, 9]
    assert pond.field(0, "y", 10).tolist() == pond.indices(0, 10)


def test_rows_that_are_lost_already_are_not_written(shop: Workshop) -> None:
    pond = shop.pond(shop.facts("strict"), 6)
    shop.run(1, shop.job("strict", 6, lost=(2,)))
    assert pond.field(0, "y", 6).tolist() == [0, 1, 0, 3, 4, 5]
