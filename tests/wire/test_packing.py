"""What is packed is read back; text that UTF-8 cannot hold is an error or escaped, as asked."""

from __future__ import annotations

import msgpack
import pytest

from loaderd_wire.packing import packed


def test_plain_values_come_back_as_they_were() -> None:
    value = {"a": [1, 2.5, None, True], "b": b"bytes", "c": "text"}
    assert msgpack.unpackb(packed(value)) == value


def test_a_lone_surrogate_is_an_error_unless_it_is_to_be_escaped() -> None:
    with pytest.raises(UnicodeEncodeError):
        packed("a\udc80")
    assert msgpack.unpackb(packed("a\udc80", "backslashreplace")) == "a\\udc80"
    kept = packed("a\udc80", "surrogatepass")
    assert msgpack.unpackb(kept, unicode_errors="surrogatepass") == "a\udc80"
