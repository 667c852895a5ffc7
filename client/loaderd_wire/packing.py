"""msgpack with a type: the library says that packing may return None, which it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgpack  # pyright: ignore[reportMissingTypeStubs] - it has none

Errors = Literal["strict", "backslashreplace", "surrogatepass"]
_packb: Callable[..., Any] = msgpack.packb  # pyright: ignore - untyped


def packed(value: Any, unicode_errors: Errors = "strict") -> bytes:
    """The msgpack bytes of a value made of None, numbers, text, bytes, lists, tuples and dicts.

    Args:
        value: The value.
        unicode_errors: For text that UTF-8 cannot hold (lone surrogates). "strict" raises
            UnicodeEncodeError, "backslashreplace" escapes it, "surrogatepass" keeps it for a reader
            that says the same.
    """
    data: bytes = _packb(value, unicode_errors=unicode_errors)
    return data
