"""Messages to bytes and back.

A message is a msgpack array [code, field, field, ...], in the order of its dataclass. Fields that
were added later stand at the end, and are left out while they have their defaults. What arrives
is checked against the annotations of the dataclass (types, ranges, sizes) before anybody sees it.
Anything that does not fit is a ProtocolError, and no other error is raised.
"""

from __future__ import annotations

import operator
import struct
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from msgpack import Packer, UnpackException, unpackb

from loaderd_wire import messages as m
from loaderd_wire.errors import BadSample, ProtocolError, by_handler
from loaderd_wire.limits import MAX_INT
from loaderd_wire.records import quick
from loaderd_wire.slots import Chunk, FieldSpec

MAX_MESSAGE = 4 << 20  # bytes of one message
MAX_TEXT = 1 << 20  # bytes of one string
MAX_ITEMS = 1 << 17  # entries of one array or map
ONLY_INT = {int}
LENGTH = struct.Struct("<I")
# Values of these types are checked together; any other declared type has a check of its own.
PLAIN: dict[Any, type[Any]] = {int: int, float: float, str: str, bytes: bytes, bool: bool}

Check = Callable[[Any], Any]


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_INT:
        raise ProtocolError(f"expected a whole number in [0, 2**62], not {_show(value)}")
    return value


def _real(value: Any) -> float:
    if type(value) not in (int, float):
        raise ProtocolError(f"expected a number, not {_show(value)}")
    return float(value)


def _of(kind: type[Any]) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise ProtocolError(f"expected {kind.__name__}, not {_show(value)}")
        return value

    return check


def _array(value: Any) -> list[Any]:
    if type(value) is not list:
        raise ProtocolError(f"expected an array, not {_show(value)}")
    return value  # pyright: ignore[reportUnknownVariableType] - of whatever it holds


def _many(item: Check) -> Check:
    return lambda value: () if value == [] else tuple(map(item, _array(value)))


def _wholes(value: Any) -> tuple[int, ...]:
    items = _array(value)
    if {*map(type, items)} == ONLY_INT and min(items) >= 0 and max(items) <= MAX_INT:
        return tuple(items)
    return tuple(map(_whole, items))  # the first one that is none says so


def _table(value: Any) -> dict[str, str]:
    whole = type(value) is dict
    table = typing.cast("dict[Any, Any]", value)
    if not whole or not all(type(k) is str and type(v) is str for k, v in table.items()):
        raise ProtocolError(f"expected a map of strings, not {_show(value)}")
    return table


def _maybe(item: Check) -> Check:
    return lambda value: None if value is None else item(value)


class _Lazily(dict[type[Any], Callable[[Any], Any]]):
    """A function for each class, made when it is first looked up."""

    def __init__(self, make: Callable[[type[Any]], Callable[[Any], Any]]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, cls: type[Any]) -> Callable[[Any], Any]:
        def later(value: Any) -> Any:
            """For a class whose records hold others of it.

            It stays where a signal handler has ended the making: then the next use makes it.
            """
            if self[cls] is later:
                self[cls] = self._make(cls)
            return self[cls](value)

        self[cls] = later
        made = self[cls] = self._make(cls)
        return made


class Codec:
    """Bytes for a closed set of dataclasses."""

    def __init__(self, kinds: Mapping[int, type[Any]], parts: tuple[type[Any], ...]) -> None:
        """Name the classes.

        Args:
            kinds: Messages, by code.
            parts: Classes that occur only inside messages.
        """
        self._code_of = {cls: code for code, cls in kinds.items()}
        self._classes = {*kinds.values(), *parts}
        # Made when first needed: to make all of them would be most of a process's start.
        self._values = _Lazily(self._spread)
        self._checks = _Lazily(self._record)
        # One packer for all messages, because to make one costs as much as to pack a message.
        # No Python code runs while it packs, so no other thread uses it meanwhile.
        self._pack = Packer(default=_unsendable, unicode_errors="backslashreplace").pack
        self._class_of = dict(kinds)

    def prepare(self, received: tuple[type[Any], ...], sent: tuple[type[Any], ...]) -> None:
        """Make now what these messages need, so that a process that is forked from this one has it.

        Args:
            received: Classes that will be decoded.
            sent: Classes that will be encoded.
        """
        for cls in received:
            self._checks[cls]
        for cls in sent:
            self._values[cls]

    def encode(self, message: Any) -> bytes:
        """The bytes of a message.

        Raises:
            ProtocolError: There would be more than MAX_MESSAGE of them.
        """
        cls = typing.cast("type[Any]", type(message))
        # A path or a user's text may hold lone surrogates (surrogateescape). They are escaped.
        data = self._pack((self._code_of[cls], *self._plain(message)))
        if len(data) > MAX_MESSAGE:
            raise ProtocolError(
                f"{type(message).__name__} of {len(data)} bytes is over the limit of {MAX_MESSAGE}"
            )
        return data

    def decode(self, data: bytes | memoryview) -> Any:
        """The message in `data`.

        Raises:
            ProtocolError: `data` is anything but one well-formed message.
        """
        if len(data) > MAX_MESSAGE:
            raise ProtocolError(
                f"a message of {len(data)} bytes is over the limit of {MAX_MESSAGE}"
            )
        try:
            body = unpackb(
                data,
                max_str_len=MAX_TEXT,
                max_bin_len=MAX_TEXT,
                max_array_len=MAX_ITEMS,
                max_map_len=MAX_ITEMS,
                max_ext_len=0,
            )
        except (
            ValueError,
            TypeError,
            OverflowError,
            RecursionError,
            UnpackException,
        ) as error:
            if by_handler(error, "msgpack"):
                raise
            raise ProtocolError(f"not a message: {type(error).__name__}: {error}") from None
        body = _array(body) or [None]
        code = body.pop(0)
        cls = self._class_of.get(code) if type(code) is int else None
        if cls is None:
            raise ProtocolError(f"unknown message code {_show(code)}")
        return self._checks[cls](body)

    def _spread(self, cls: type[Any]) -> Callable[[Any], Sequence[Any]]:
        """A function that takes a record of this class apart.

        It returns the values in order; values that are records are taken apart as well.
        """
        hints = typing.get_type_hints(cls)
        names = tuple(f.name for f in fields(cls))
        values = _getter(names)
        inner = [
            i
            for i, name in enumerate(names)
            if not self._classes.isdisjoint((hints[name], *typing.get_args(hints[name])))
        ]
        added = _added(cls)
        if not inner and not added:
            return values

        def spread(record: Any) -> list[Any]:
            found = list(values(record))
            for default in reversed(added):
                if found[-1] != default:
                    break
                found.pop()
            for i in inner:
                found[i] = self._plain(found[i])
            return found

        return spread

    def _plain(self, value: Any) -> Any:
        """A record, a tuple of records, or None, as msgpack can pack it."""
        if type(value) is tuple:
            return [self._plain(one) for one in typing.cast("tuple[Any, ...]", value)]
        return None if value is None else self._values[type(value)](value)

    def _record(self, cls: type[Any]) -> Check:
        """A function that checks and makes a record of this class.

        Nearly all messages have values of exactly the declared types: that is found out for all
        fields at once. Else each field is checked by itself, which finds the fault, or accepts a
        value that is allowed though its type differs (None, or a whole number for a float).
        """
        hints = typing.get_type_hints(cls)
        checks = [self._check_for(hints[f.name]) for f in fields(cls)]
        plain = tuple(PLAIN.get(hints[f.name], list) for f in fields(cls))
        wholes = _picker([i for i, kind in enumerate(plain) if kind is int])
        others = [(i, checks[i]) for i, kind in enumerate(plain) if kind is list]
        make = quick(cls)

        def check(value: Any) -> Any:
            values = _array(value)
            if tuple(map(type, values)) == plain:
                numbers = wholes(values)
                if not numbers or (min(numbers) >= 0 and max(numbers) <= MAX_INT):
                    for i, one in others:
                        values[i] = one(values[i])
                    return make(*values)
            if len(values) != len(checks):
                raise ProtocolError(
                    f"expected the {len(checks)} fields of {cls.__name__}, not {len(values)}"
                )
            return cls(*[c(v) for c, v in zip(checks, values, strict=True)])

        # as the wire has them
        added: list[Any] = [[] if value == () else value for value in _added(cls)]
        if not added:
            return check

        def check_with_added(value: Any) -> Any:
            values = _array(value)
            absent = len(checks) - len(values)
            return check([*values, *added[-absent:]] if 0 < absent <= len(added) else values)

        return check_with_added

    def _check_for(self, hint: Any) -> Check:
        if hint is int:
            return _whole
        if hint is float:
            return _real
        if hint in (str, bytes, bool):
            return _of(hint)
        if hint in self._classes:
            return self._checks[hint]
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin is tuple:
            if args[0] is int:
                return _wholes
            return _many(self._check_for(args[0]))
        if origin is dict:
            return _table
        if origin is types.UnionType and args[1] is type(None):
            return _maybe(self._check_for(args[0]))
        raise TypeError(f"no check for {hint!r}")


def _added(cls: type[Any]) -> list[Any]:
    """The defaults of the fields that were added to a class, which are its last ones."""
    return [f.default for f in fields(cls) if m.ADDED in f.metadata]


def _unsendable(value: Any) -> Any:
    raise TypeError(f"{value!r} cannot be sent")


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that returns all of these attributes."""
    if len(names) < 2:
        return lambda record: tuple(getattr(record, name) for name in names)
    return operator.attrgetter(*names)


def _picker(places: list[int]) -> Callable[[list[Any]], tuple[Any, ...]]:
    """A function that returns the items at these places."""
    if len(places) < 2:
        return lambda values: tuple(values[i] for i in places)
    return operator.itemgetter(*places)


def _show(value: Any) -> str:
    """What has arrived, in a few characters.

    It takes little time whatever the value is: the repr of a thousand nested arrays would overflow
    the stack.
    """
    kind = type(value).__name__
    if kind in ("str", "bytes"):
        return f"{kind} {value[:40]!r}"
    return f"{kind} {value!r}" if kind in ("int", "float", "bool", "NoneType") else kind


WIRE = Codec(
    {
        1: m.Hello,
        2: m.Starting,
        3: m.Rejected,
        4: m.Welcome,
        5: m.Segment,
        6: m.Bye,
        7: m.Ask,
        8: m.Report,
        16: m.Progress,
        17: m.Descriptor,
        18: m.Pulse,
        19: m.Failure,
    },
    (FieldSpec, Chunk, BadSample, m.Released),
)


def frame(message: m.Message) -> bytes:
    """A message for the control socket: its length as little-endian uint32, then its bytes.

    Raises:
        ProtocolError: It is larger than MAX_MESSAGE.
    """
    data = WIRE.encode(message)
    return LENGTH.pack(len(data)) + data


def unframe(buffer: bytearray) -> Any | None:
    """Take the first whole message off a control socket's buffer.

    Returns:
        The message; None while it is not complete.

    Raises:
        ProtocolError: The bytes are no message, or the message is larger than MAX_MESSAGE.
    """
    if len(buffer) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack_from(buffer)
    if size > MAX_MESSAGE:
        raise ProtocolError(f"a message of {size} bytes is over the limit of {MAX_MESSAGE}")
    if len(buffer) < LENGTH.size + size:
        return None
    data = bytes(buffer[LENGTH.size : LENGTH.size + size])
    del buffer[: LENGTH.size + size]
    return WIRE.decode(data)
