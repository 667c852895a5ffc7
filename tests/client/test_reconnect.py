from __future__ import annotations

import pytest

from loaderd_client import ConfigError, DaemonGoneError, StallError
from loaderd_client.reconnect import ReconnectBudget
from loaderd_client.wait import WaitLimits

LIMITS = WaitLimits(timeout_s=300, reconnect_s=60, stall_warning_s=10)
WHERE = "step 2 of epoch 0"


def test_one_loss_costs_nothing_of_the_patience_and_is_not_spoken_of() -> None:
    reconnects = ReconnectBudget(100.0, LIMITS, WHERE)
    assert reconnects.left(100.0) == LIMITS
    reconnects.add("it drained")
    assert reconnects.last == "it drained"
    assert reconnects.left(399.0) == reconnects.left(500.0) == LIMITS
    assert reconnects.pause_s(500.0) == 0
    error = StallError("waiting")
    assert reconnects.told(error) is error


def test_further_ones_have_together_what_is_left_since_the_wait_began() -> None:
    reconnects = ReconnectBudget(100.0, LIMITS, WHERE)
    reconnects.add("it drained")
    reconnects.add("it closed the connection")
    assert reconnects.left(150.0) == WaitLimits(timeout_s=250, reconnect_s=60, stall_warning_s=10)
    assert reconnects.left(390.0) == WaitLimits(timeout_s=10, reconnect_s=10, stall_warning_s=10)
    with pytest.raises(DaemonGoneError, match=r"waited 300 s for step 2 of epoch 0") as caught:
        reconnects.left(400.0)
    told = reconnects.told(caught.value)
    assert type(told) is DaemonGoneError
    assert str(told).startswith(
        "2 daemons have gone while step 2 of epoch 0 was waited for, the last one: it closed the "
        "connection; waited"
    )


def test_each_pause_before_the_next_one_is_longer_up_to_a_limit_and_to_the_end() -> None:
    reconnects = ReconnectBudget(0.0, LIMITS, WHERE)
    pauses: list[float] = []
    for _ in range(40):
        reconnects.add("it went")
        pauses.append(reconnects.pause_s(1.0))
    assert pauses[:4] == [0, 0.1, 0.2, 0.4]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 5
    assert reconnects.pause_s(299.5) == 0.5


def test_what_a_successor_refuses_with_is_told_as_it_is() -> None:
    reconnects = ReconnectBudget(0.0, LIMITS, WHERE)
    reconnects.add("it went")
    reconnects.add("it went")
    error = ConfigError("batch_size")
    assert reconnects.told(error) is error
