from __future__ import annotations

from types import SimpleNamespace

import pytest

from loaderd_client import handshake_wait
from loaderd_client.handshake_wait import HandshakeWait, Obstacle
from loaderd_client.wait import WaitLimits
from loaderd_wire.errors import StallError


def test_who_waits_for_a_daemon_that_starts_sleeps_about_a_second_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, looks = 0.0, 0
    monkeypatch.setattr(handshake_wait, "time", SimpleNamespace(monotonic=lambda: now_s))
    wait = HandshakeWait(WaitLimits(timeout_s=300, reconnect_s=60, stall_warning_s=10))
    while now_s < 100:
        now_s += wait.pause_s()
        wait.check(Obstacle("the daemon is starting", StallError))
        looks += 1
    assert looks <= 105
