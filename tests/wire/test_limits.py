"""The limits have not changed, and what is allowed can be sent."""

from __future__ import annotations

import pytest

from loaderd_wire import messages as m
from loaderd_wire.codec import WIRE
from loaderd_wire.errors import ProtocolError
from loaderd_wire.limits import CLIENT_FIELDS, MAX_INT, MAX_PREFETCH, MAX_RANKS, MAX_ROWS


def hello(**values: int) -> m.Hello:
    usual = {
        "batch_size": MAX_ROWS,
        "seed": MAX_INT,
        "rank": MAX_RANKS - 1,
        "world_size": MAX_RANKS,
        "prefetch": MAX_PREFETCH,
    }
    return m.Hello(
        m.PROTOCOL,
        "train",
        drop_last=None,
        fields=CLIENT_FIELDS,
        held_bytes=0,
        order={},
        content={},
        config="",
        shared="",
        **usual | values,
    )


def test_the_largest_of_all_that_may_be_asked_for_can_be_sent() -> None:
    assert WIRE.decode(WIRE.encode(hello())) == hello()


def test_a_number_above_the_largest_is_refused() -> None:
    with pytest.raises(ProtocolError, match="whole number"):
        WIRE.decode(WIRE.encode(hello(seed=MAX_INT + 1)))


def test_the_limits_have_not_changed_since_they_were_frozen() -> None:
    assert (MAX_INT, MAX_ROWS, MAX_PREFETCH, MAX_RANKS) == (2**62, 2**20, 1024, 2**31)
    assert CLIENT_FIELDS == ("__index__", "__key__", "__repeated__", "__source__", "__part__")
