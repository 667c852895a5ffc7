"""Lists and numbers in messages to users."""

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


def counted(count: int, noun: str) -> str:
    """The number and the noun, as "1 worker" and "1,024 workers".

    Args:
        count: How many.
        noun: One of them; its plural ends in s, or in es as that of "class".
    """
    return f"{count:,} {noun}{'' if count == 1 else 'es' if noun.endswith('s') else 's'}"


def nearest(word: str, known: Collection[str]) -> str | None:
    """The known word that a mistyped one is most like, to be suggested in an error.

    Args:
        word: The mistyped word.
        known: All words that would be right.

    Returns:
        The word, or None if it is like none.
    """
    import difflib  # only an error needs it

    found = difflib.get_close_matches(word, known, 1)
    return found[0] if found else None
