"""Lists in messages to users."""

from __future__ import annotations

from collections.abc import Collection

MOST = 8


def few(words: Collection[str], most: int = MOST) -> str:
    """The words with commas between them.

    Args:
        words: The words.
        most: Of a longer list only so many are shown, with the number of those that are not.
    """
    shown = list(words)[:most]
    more = len(words) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")
