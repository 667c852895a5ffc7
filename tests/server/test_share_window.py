"""Who shares: the trainer says so, or leaves it to the stream."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderd.server.share_window import share_window
from loaderd_wire.errors import ConfigError
from server.test_admission import PLAN


@pytest.mark.parametrize(
    ("shared", "share", "window", "expected"),
    [
        ("", True, 0, 8),
        ("", True, 5, 5),
        ("", False, 5, 0),
        ("yes", False, 0, 8),
        ("yes", False, 5, 5),
        ("no", True, 5, 0),
    ],
)
def test_a_trainer_decides_or_leaves_it_to_the_stream(
    shared: str, share: bool, window: int, expected: int
) -> None:
    plan = replace(PLAN, share=share, share_window=window)
    assert share_window(shared, 4, plan) == expected


def test_a_word_that_is_none_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="shared = 'maybe': use '', 'yes', 'no'"):
        share_window("maybe", 4, PLAN)
