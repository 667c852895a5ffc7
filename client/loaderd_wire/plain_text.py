"""Text of others, such as names of files and what user code raises, as it may be shown."""

from __future__ import annotations

import re

# what moves the cursor, changes the terminal, begins a line, or turns the direction of writing
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def plain(text: str) -> str:
    """The text with escapes for control characters, but for newlines and tabs.

    Args:
        text: As it was found.
    """
    return text if text.isprintable() else _CONTROL.sub(_escape, text)


def one_line(text: str) -> str:
    """The same, with escapes for newlines, too: it cannot look like several lines of ours.

    Args:
        text: As it was found.
    """
    return plain(text).replace("\n", "\\n")


def plain_json(text: str) -> str:
    """JSON that says the same, with its own escapes for control characters, but for newlines.

    Args:
        text: JSON. Outside of its strings there are no other such characters.
    """
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
