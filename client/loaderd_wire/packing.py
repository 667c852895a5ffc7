"""The msgpack bytes of a value."""

from __future__ import annotations

from typing import Any, Literal

from msgpack import packb

Errors = Literal["strict", "backslashreplace", "surrogatepass"]


def packed(value: Any, unicode_errors: Errors = "strict") -> bytes:
    """The msgpack bytes of a value made of None, numbers, text, bytes, lists, tuples and dicts.

    Args:
        value: The value.
        unicode_errors: For text that UTF-8 cannot hold (lone surrogates). "strict" raises
            UnicodeEncodeError, "backslashreplace" escapes it, "surrogatepass" keeps it for a reader
            that says the same.
    """
    return packb(value, unicode_errors=unicode_errors)
