"""msgpack values, with arrays as msgpack_numpy writes them.

`msgpack_numpy.decode` unpickles arrays of objects, and makes arrays over any dtype that a value
names, so a forged value runs code or reads memory that is not its own. Here only plain dtypes are
arrays, and everything else is refused.
"""

from __future__ import annotations

from typing import Any

import msgpack

from loaderd.data.values.arrays import MAX_ITEMS, UnreadableValue, array_of, plain_dtype

try:  # msgpack.unpackb itself may be another one: `msgpack_numpy.patch()` puts its own there
    from msgpack._cmsgpack import unpackb as _unpackb
except ImportError:
    from msgpack.fallback import unpackb as _unpackb


def unpack(data: bytes | memoryview) -> Any:
    """What a msgpack value holds.

    Args:
        data: The value. Keys may be text, bytes or numbers; texts that are not UTF-8, as old
            writers stored bytes, are bytes.

    Returns:
        None, bool, int, float, complex, str, bytes, lists and dicts of them, and numpy arrays and
        scalars, read-only. A timestamp is a float, seconds since 1970.

    Raises:
        UnreadableValue: It is no msgpack, it is cut short, it is larger or deeper than a value may
            be, or it has an array that is not plain numbers.
    """
    try:
        return _unpacked(data, raw=False)
    except UnicodeDecodeError:
        try:
            return _as_text(_unpacked(data, raw=True))
        except (ValueError, TypeError, RecursionError) as error:
            raise _fault(error) from None
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise _fault(error) from None


def _fault(error: Exception) -> UnreadableValue:
    if isinstance(error, UnreadableValue):
        return error
    return UnreadableValue(f"it is msgpack that is damaged or cut short: {error or 'bad bytes'}")


def _unpacked(data: bytes | memoryview, raw: bool) -> Any:
    return _unpackb(
        data,
        raw=raw,
        strict_map_key=False,
        object_hook=_revived,
        ext_hook=_no_extension,
        timestamp=1,
        max_array_len=min(len(data), MAX_ITEMS),
        max_map_len=min(len(data), MAX_ITEMS),
    )


def _no_extension(code: int, data: bytes) -> Any:
    raise UnreadableValue(f"it is msgpack with an extension of type {code}, which is not known")


def _revived(table: dict[Any, Any]) -> Any:
    """The array, number or table that a table of msgpack stands for."""
    part = table.get(b"nd", table.get("nd"))
    if part is not None:
        return _array(table, part)
    if len(table) == 2 and (b"complex" in table or "complex" in table):
        text = table.get(b"data", table.get("data"))
        text = text.decode("latin-1") if isinstance(text, bytes) else text
        try:
            return complex(text if isinstance(text, str) else "")
        except ValueError:
            raise UnreadableValue(f"it has a complex number {text!r:.60}") from None
    return table


def _array(table: dict[Any, Any], part: Any) -> Any:
    def field(name: str) -> Any:
        return table.get(name.encode(), table.get(name))

    if part is not True and part is not False:
        return table  # somebody's own table, which has a key of that name
    kind = field("kind")
    if kind not in (b"", "", None):
        raise UnreadableValue(f"it has an array of kind {kind!r:.20}, which is not plain numbers")
    data = field("data")
    data = data.encode("latin-1") if isinstance(data, str) else data
    found = array_of(plain_dtype(field("type")), field("shape") if part else (), data)
    return found if part else found[()]


def _as_text(value: Any) -> Any:
    """Bytes that an old writer stored as text are text where they are ASCII or a key."""
    if isinstance(value, bytes):
        return value.decode() if value.isascii() else value
    if isinstance(value, dict):
        return {_as_text(key): _as_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_text(item) for item in value]
    return value
