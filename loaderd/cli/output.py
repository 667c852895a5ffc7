"""What commands write. Text of others cannot reach beyond its place on a terminal."""

from __future__ import annotations

import json
import sys
from typing import Any

from loaderd_wire.plain_text import plain, plain_json


def show(text: str, *, flush: bool = False) -> None:
    """Write lines to stdout.

    Args:
        text: Without the last newline.
        flush: Do not wait for more.
    """
    print(plain(text), flush=flush)


def show_json(value: Any) -> None:
    """Write JSON to stdout, over several lines; letters of all languages stay as they are.

    Args:
        value: Of plain dicts, lists and values.
    """
    print(plain_json(json.dumps(value, indent=2, ensure_ascii=False)))


def tell(text: str) -> None:
    """Write a line to stderr, or several, as one of ours.

    Args:
        text: Without the last newline.
    """
    sys.stderr.write(f"loaderd: {plain(text)}\n")
