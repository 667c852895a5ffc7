"""Lists in messages for people. Pure."""

from __future__ import annotations

from collections.abc import Collection

MOST = 8


def few(words: Collection[str], most: int = MOST) -> str:
    """ "a, b, c", or of a long list the first ones and how many more there are."""
    shown = list(words)[:most]
    more = len(words) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")
