"""What commands write for people. Text of others cannot reach beyond its place on a terminal."""

from __future__ import annotations

import sys

from loaderd_wire.plain_text import plain


def show(text: str, *, flush: bool = False) -> None:
    """Write lines to stdout.

    Args:
        text: Without the last newline.
        flush: Do not wait for more.
    """
    print(plain(text), flush=flush)


def tell(text: str) -> None:
    """Write a line to stderr, or several, as one of ours.

    Args:
        text: Without the last newline.
    """
    sys.stderr.write(f"loaderd: {plain(text)}\n")
