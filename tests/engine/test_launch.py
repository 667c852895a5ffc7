"""A template that is started before anybody needs it."""

from __future__ import annotations

import os
import signal

from loaderd.engine.launch import launch
from loaderd_testing.deadlines import DEADLINE_S


def test_a_template_that_nobody_takes_ends_with_its_starter() -> None:
    with launch([], "", "", preload="user", spawn=False) as ahead:
        assert ahead.process.poll() is None
        fds = (ahead.socket.fileno(), ahead.output, ahead.dump)
    assert ahead.process.returncode == -signal.SIGKILL
    assert not any(os.path.exists(f"/proc/self/fd/{fd}") for fd in fds)


def test_a_template_that_was_taken_lives_on() -> None:
    with launch([], "", "", preload="none", spawn=True) as ahead:
        taken = ahead.take()
    assert taken.process.poll() is None
    with taken.socket:  # at the end of which it leaves by itself
        os.close(taken.dump)
    taken.process.wait(DEADLINE_S)
    os.close(taken.output)
