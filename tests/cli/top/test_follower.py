"""What follows a daemon gives back what it holds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli.test_status import STATUS
from loaderd.cli.top.follower import DaemonPicture, Follower


def test_its_pipe_is_closed_when_it_is_left(tmp_path: Path) -> None:
    picture = DaemonPicture(STATUS, 0.0)
    with Follower(str(tmp_path / "nobody.sock"), picture, 0.001) as follower:
        follower.wait(picture)
        assert "no daemon is running" in follower.picture.trouble
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(follower.fd)
