"""Lines for the trainer's user."""

from __future__ import annotations

import pytest

from loaderd_client.log import warn


def test_text_of_others_does_nothing_to_a_terminal(caplog: pytest.LogCaptureFixture) -> None:
    warn("%s has %d rows: %s", "stream\x1b[2J", 3, "two\nlines")
    assert caplog.messages == ["loaderd: stream\\x1b[2J has 3 rows: two\nlines"]
