from __future__ import annotations

import pytest

from loaderd_client import ConfigError, DaemonGone, StallError
from loaderd_client.reconnect import Losses
from loaderd_client.wait import Limits

LIMITS = Limits(timeout_s=300, reconnect_s=60, stall_warning_s=10)
WHERE = "step 2 of epoch 0"


def test_one_loss_costs_nothing_of_the_patience_and_is_not_spoken_of() -> None:
    losses = Losses(100.0, LIMITS, WHERE)
    assert losses.left(100.0) == LIMITS
    losses.add("it drained")
    assert losses.last == "it drained"
    assert losses.left(399.0) == losses.left(500.0) == LIMITS
    assert losses.pause_s(500.0) == 0
    error = StallError("waiting")
    assert losses.told(error) is error


def test_further_ones_have_together_what_is_left_since_the_wait_began() -> None:
    losses = Losses(100.0, LIMITS, WHERE)
    losses.add("it drained")
    losses.add("it went without a word")
    assert losses.left(150.0) == Limits(timeout_s=250, reconnect_s=60, stall_warning_s=10)
    assert losses.left(390.0) == Limits(timeout_s=10, reconnect_s=10, stall_warning_s=10)
    with pytest.raises(DaemonGone, match=r"waited 300 s for step 2 of epoch 0") as caught:
        losses.left(400.0)
    told = losses.told(caught.value)
    assert type(told) is DaemonGone
    assert str(told).startswith("2 daemons have gone while step 2 of epoch 0 was waited for, the last one: it went without a word; waited")


def test_each_pause_before_the_next_one_is_longer_up_to_a_limit_and_to_the_end() -> None:
    losses = Losses(0.0, LIMITS, WHERE)
    pauses: list[float] = []
    for _ in range(40):
        losses.add("it went")
        pauses.append(losses.pause_s(1.0))
    assert pauses[:4] == [0, 0.1, 0.2, 0.4]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 5
    assert losses.pause_s(299.5) == 0.5


def test_what_a_successor_refuses_with_is_told_as_it_is() -> None:
    losses = Losses(0.0, LIMITS, WHERE)
    losses.add("it went")
    losses.add("it went")
    error = ConfigError("batch_size")
    assert losses.told(error) is error
