"""Pickles, read without running any of them.

`pickle.loads` runs whatever a value asks for. This machine knows Python's plain types, and what
numpy and torch write for arrays (`pickle_names.py`): those it makes itself, from checked parts.
Everything else is refused by its name. All protocols are read, also what Python 2 wrote, whose
`str` may be text or bytes; `pickletools.genops` cannot, since it takes them for ASCII.
"""

from __future__ import annotations

import codecs
import pickle
import struct
from collections.abc import Callable
from typing import Any

from loaderd.data.values import pickle_names
from loaderd.data.values.arrays import MAX_DEPTH, MAX_ITEMS, UnreadableValue
from loaderd.data.values.pickle_names import (
    GlobalName,
    PendingArray,
    PendingDtype,
    Python2Text,
    SharedBytes,
)

MAX_DIGITS = 400  # of a number written as text
PLAIN_KEYS = (str, int, float, bool, bytes, type(None))
LENGTHS = {
    width: struct.Struct(code) for width, code in ((1, "<B"), (2, "<H"), (4, "<I"), (8, "<Q"))
}
DOUBLE = struct.Struct(">d")
SIGNED = struct.Struct("<i")


def unpickle(data: bytes | memoryview) -> Any:
    """What a pickle of plain values holds.

    Args:
        data: The pickle. Arrays are read-only views of it.

    Returns:
        None, bool, int, float, complex, str, bytes, numpy arrays and scalars, and
        lists, tuples, sets and dicts of them. Of a torch tensor the array.

    Raises:
        UnreadableValue: It is no pickle, it is cut short, it asks for a class or function, or it is
            larger or deeper than a value may be.
    """
    machine = PickleMachine(memoryview(data).cast("B"))
    return settled(machine.run(), len(machine.data))


def settled(value: Any, size: int) -> Any:
    """The value with everything that was pending in its place, as a tree of its own.

    Args:
        value: As the machine leaves it.
        size: Bytes of the pickle.

    Raises:
        UnreadableValue: That tree is too large or too deep, or it holds itself.
    """
    return _Settling(size).settle(value, 0)


class _Settling:
    """left: entries that may still come. left_bytes: what bytes may still take."""

    def __init__(self, size: int) -> None:
        self.left = MAX_ITEMS
        self.left_bytes = 4 * size + (1 << 16)

    def settle(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is list or kind is tuple or kind is dict:
            self.left -= len(value)
            if self.left < 0:
                raise UnreadableValue(f"it has more than {MAX_ITEMS:,} entries")
            if depth >= MAX_DEPTH:
                raise UnreadableValue(
                    f"its lists and tables are more than {MAX_DEPTH} deep, or hold themselves"
                )
            if kind is dict:
                return {key: self.settle(item, depth + 1) for key, item in value.items()}
            items = [self.settle(item, depth + 1) for item in value]
            return items if kind is list else tuple(items)
        if kind is memoryview:
            self.left_bytes -= len(value)
            if self.left_bytes < 0:
                raise UnreadableValue("it names the same bytes over and over")
            return bytes(value)
        if kind is PendingArray:
            return value.array()
        if kind is Python2Text:
            return value.plain()
        if kind is PendingDtype or kind is GlobalName or kind is SharedBytes:
            raise UnreadableValue(f"it holds {value.said()}, which is no value")
        return value


class PickleMachine:
    """One pickle on its way through.

    Args:
        data: Bytes, read from `at` on.
        at: Where the pickle begins.
        persistent: Makes what a persistent id stands for; without it one is refused.

    Attributes:
        at: Where the next byte is read; after `run` the end of the pickle.
        array_bytes: What arrays may still take. A value may name the same bytes many times over.
    """

    def __init__(
        self,
        data: memoryview,
        at: int = 0,
        persistent: Callable[[Any], Any] | None = None,
    ) -> None:
        self.data = data
        self.at = at
        self.persistent = persistent
        self.array_bytes = 4 * len(data) + (1 << 16)
        self.stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._flat: bytes | None = None

    def run(self) -> Any:
        """The value, with pending parts in it. Raises UnreadableValue, and nothing else."""
        try:
            return self._run()
        except UnreadableValue:
            raise
        except (IndexError, KeyError, struct.error):
            raise UnreadableValue(
                f"it is a pickle that is damaged or cut short (at byte {self.at:,})"
            ) from None
        except (ValueError, TypeError, OverflowError, RecursionError, AttributeError) as error:
            raise UnreadableValue(f"it is a pickle that is damaged: {error}") from None

    def _run(self) -> Any:
        data, size = self.data, len(self.data)
        for _ in range(MAX_ITEMS * 2):
            if self.at >= size:
                raise UnreadableValue("it is a pickle that is cut short: it has no end")
            opcode = data[self.at]
            self.at += 1
            if opcode == 0x2E:  # STOP
                return self.stack.pop()
            handler = HANDLERS.get(opcode)
            if handler is None:
                raise UnreadableValue(
                    f"it is no pickle: byte {self.at - 1:,} is {opcode:#04x}"
                    if opcode not in REFUSED
                    else f"it is a pickle with {REFUSED[opcode]}, which only its writer can read"
                )
            handler(self)
        raise UnreadableValue(f"it is a pickle of more than {MAX_ITEMS * 2:,} steps")

    # -- parts that handlers use

    def take(self, size: int) -> memoryview:
        """The next bytes. Raises UnreadableValue if there are not so many."""
        if size > len(self.data) - self.at:
            raise UnreadableValue(
                f"it is a pickle that is cut short: {size:,} bytes should follow, there are "
                f"{len(self.data) - self.at:,}"
            )
        begin, self.at = self.at, self.at + size
        return self.data[begin : self.at]

    def number(self, width: int) -> int:
        """The next unsigned number of so many bytes."""
        return LENGTHS[width].unpack(self.take(width))[0]

    def line(self) -> bytes:
        """The next bytes up to the end of the line, without it."""
        if self._flat is None:
            self._flat = bytes(self.data)
        end = self._flat.find(b"\n", self.at)
        if end < 0:
            raise UnreadableValue("it is a pickle that is cut short, in the middle of a line")
        begin, self.at = self.at, end + 1
        return self._flat[begin:end]

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def mark(self) -> None:
        self._marks.append(len(self.stack))

    def since_mark(self) -> list[Any]:
        """What lies above the last mark, taken off the stack."""
        begin = self._marks.pop()
        items = self.stack[begin:]
        del self.stack[begin:]
        return items

    def tuple_of(self, count: int) -> None:
        """Make a tuple of the last `count` values."""
        if count > len(self.stack):
            raise IndexError
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def append(self, items: list[Any]) -> None:
        """Put the items into the list on the stack."""
        target = self.stack[-1]
        if type(target) is not list:
            raise UnreadableValue(f"it is a pickle that appends to a {type(target).__name__}")
        target.extend(items)

    def add(self, items: list[Any]) -> None:
        """Put the items into the set on the stack."""
        target = self.stack[-1]
        if type(target) is not set:
            raise UnreadableValue(f"it is a pickle that adds to a {type(target).__name__}")
        target.update(map(plain_key, items))

    def set_items(self, items: list[Any]) -> None:
        """Put keys and values, in turn, into the dict on the stack."""
        target = self.stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise UnreadableValue(f"it is a pickle that sets items of a {type(target).__name__}")
        for at in range(0, len(items), 2):
            target[plain_key(items[at])] = items[at + 1]

    def remember(self, number: int | None = None) -> None:
        """Keep the last value under this number, or under the next one."""
        self._memo[len(self._memo) if number is None else number] = self.stack[-1]

    def recall(self, number: int) -> None:
        self.stack.append(self._memo[number])

    def name(self, module: str, name: str) -> None:
        """A class or function by its name. Raises UnreadableValue unless it is interpreted."""
        self.stack.append(pickle_names.known(module, name))

    def reduce(self) -> None:
        """What the function under its arguments makes of them."""
        args = self.stack.pop()
        function = self.stack.pop()
        if type(function) is not GlobalName or type(args) is not tuple:
            raise UnreadableValue(f"it is a pickle that calls a {type(function).__name__}")
        self.stack.append(function.make(self, args))

    def build(self) -> None:
        """Give the value below it a state."""
        state = self.stack.pop()
        target = self.stack[-1]
        if not isinstance(target, (PendingArray, PendingDtype)):
            raise UnreadableValue(f"it is a pickle that gives a {type(target).__name__} a state")
        target.set_state(self, state)

    def spend(self, size: int) -> None:
        """Count the bytes of an array. Raises UnreadableValue if the value is a bomb."""
        self.array_bytes -= size
        if self.array_bytes < 0:
            raise UnreadableValue(
                f"its arrays are together much larger than its {len(self.data):,} bytes"
            )

    def persist(self, key: Any) -> None:
        if self.persistent is None:
            raise UnreadableValue(
                f"it is a pickle with {REFUSED[0x51]}, which only its writer can read"
            )
        self.stack.append(self.persistent(key))


def plain_key(key: Any) -> Any:
    """A key of a dict or an entry of a set: plain, or a tuple of plain ones."""
    if type(key) is Python2Text:
        return key.key()
    if type(key) is memoryview:
        return bytes(key)
    if type(key) is tuple and not any(type(part) is tuple for part in key):
        return tuple(map(plain_key, key))
    if type(key) not in PLAIN_KEYS:
        raise UnreadableValue(f"it has a table with a {type(key).__name__} as a key")
    return key


def _decimal(line: bytes) -> int:
    if len(line) > MAX_DIGITS:
        raise UnreadableValue(f"it has a number of {len(line):,} digits")
    return int(line)


def _int(machine: PickleMachine) -> None:
    line = machine.line()
    machine.push({b"00": False, b"01": True}[line] if line in (b"00", b"01") else _decimal(line))


def _long_line(machine: PickleMachine) -> None:
    machine.push(_decimal(machine.line().rstrip(b"L")))


def _long(machine: PickleMachine, width: int) -> None:
    size = machine.number(width)
    if size > MAX_DIGITS:
        raise UnreadableValue(f"it has a number of {size:,} bytes")
    machine.push(int.from_bytes(machine.take(size), "little", signed=True))


def _string_line(machine: PickleMachine) -> None:
    line = machine.line().strip()
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
        raise UnreadableValue("it is a pickle with a text that has no quotes")
    machine.push(Python2Text(codecs.escape_decode(line[1:-1])[0]))  # pyright: ignore[reportAttributeAccessIssue]


def _unicode(machine: PickleMachine, width: int) -> None:
    machine.push(str(machine.take(machine.number(width)), "utf-8", "surrogatepass"))


def _global_line(machine: PickleMachine) -> None:
    module = machine.line().decode()
    machine.name(module, machine.line().decode())


def _stack_global(machine: PickleMachine) -> None:
    name = machine.stack.pop()
    module = machine.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise UnreadableValue("it is a pickle that names a class by no text")
    machine.name(module, name)


def _inst(machine: PickleMachine) -> None:
    _global_line(machine)
    raise UnreadableValue(f"it is a pickle with an instance of {machine.stack[-1].said()}")


def _new_object(machine: PickleMachine) -> None:
    args = machine.stack.pop()
    what = machine.stack.pop()
    said = what.said() if isinstance(what, GlobalName) else f"a {type(what).__name__}"
    raise UnreadableValue(f"it is a pickle with an instance of {said}, made of {args!r:.60}")


def _protocol(machine: PickleMachine) -> None:
    version = machine.number(1)
    if version > pickle.HIGHEST_PROTOCOL:
        raise UnreadableValue(f"it is a pickle of protocol {version}, which there is not")


def _mapped(machine: PickleMachine) -> None:
    items = machine.since_mark()
    machine.push({})
    machine.set_items(items)


def _put_set(machine: PickleMachine) -> None:
    machine.push(frozenset(map(plain_key, machine.since_mark())))


def _pop(machine: PickleMachine) -> None:
    machine.stack.pop()


# What each opcode does, by its byte; the letters are the names that the standard library has.
HANDLERS: dict[int, Callable[[PickleMachine], None]] = {
    0x80: _protocol,
    0x95: lambda m: m.take(8) and None,  # FRAME: the whole value is here already
    ord("("): lambda m: m.mark(),
    ord("0"): _pop,
    ord("1"): lambda m: m.since_mark() and None,
    ord("2"): lambda m: m.push(m.stack[-1]),
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("I"): _int,
    ord("J"): lambda m: m.push(SIGNED.unpack(m.take(4))[0]),
    ord("K"): lambda m: m.push(m.number(1)),
    ord("M"): lambda m: m.push(m.number(2)),
    ord("L"): _long_line,
    0x8A: lambda m: _long(m, 1),
    0x8B: lambda m: _long(m, 4),
    ord("F"): lambda m: m.push(float(m.line())),
    ord("G"): lambda m: m.push(DOUBLE.unpack(m.take(8))[0]),
    ord("S"): _string_line,
    ord("T"): lambda m: m.push(Python2Text(bytes(m.take(m.number(4))))),
    ord("U"): lambda m: m.push(Python2Text(bytes(m.take(m.number(1))))),
    ord("V"): lambda m: m.push(str(m.line(), "raw-unicode-escape")),
    ord("X"): lambda m: _unicode(m, 4),
    0x8C: lambda m: _unicode(m, 1),
    0x8D: lambda m: _unicode(m, 8),
    ord("B"): lambda m: m.push(m.take(m.number(4))),
    ord("C"): lambda m: m.push(m.take(m.number(1))),
    0x8E: lambda m: m.push(m.take(m.number(8))),
    0x96: lambda m: m.push(m.take(m.number(8))),
    ord("]"): lambda m: m.push([]),
    ord("l"): lambda m: m.push(m.since_mark()),
    ord("a"): lambda m: m.append([m.stack.pop()]),
    ord("e"): lambda m: m.append(m.since_mark()),
    ord(")"): lambda m: m.push(()),
    ord("t"): lambda m: m.push(tuple(m.since_mark())),
    0x85: lambda m: m.tuple_of(1),
    0x86: lambda m: m.tuple_of(2),
    0x87: lambda m: m.tuple_of(3),
    ord("}"): lambda m: m.push({}),
    ord("d"): _mapped,
    ord("s"): lambda m: m.set_items([m.stack.pop(-2), m.stack.pop()]),
    ord("u"): lambda m: m.set_items(m.since_mark()),
    0x8F: lambda m: m.push(set()),
    0x90: lambda m: m.add(m.since_mark()),
    0x91: _put_set,
    ord("p"): lambda m: m.remember(_decimal(m.line())),
    ord("q"): lambda m: m.remember(m.number(1)),
    ord("r"): lambda m: m.remember(m.number(4)),
    0x94: lambda m: m.remember(),
    ord("g"): lambda m: m.recall(_decimal(m.line())),
    ord("h"): lambda m: m.recall(m.number(1)),
    ord("j"): lambda m: m.recall(m.number(4)),
    ord("c"): _global_line,
    0x93: _stack_global,
    ord("R"): lambda m: m.reduce(),
    ord("b"): lambda m: m.build(),
    ord("i"): _inst,
    ord("o"): lambda m: _new_object_from_mark(m),
    0x81: _new_object,
    0x92: _new_object,
    ord("P"): lambda m: m.persist(m.line().decode("latin-1")),
    ord("Q"): lambda m: m.persist(m.stack.pop()),
}
REFUSED = {
    0x51: "a persistent id",
    0x82: "a code of copyreg's extension registry",
    0x83: "a code of copyreg's extension registry",
    0x84: "a code of copyreg's extension registry",
    0x97: "a buffer that lies elsewhere",
    0x98: "a buffer that lies elsewhere",
}


def _new_object_from_mark(machine: PickleMachine) -> None:
    items = machine.since_mark()
    what = items[0]
    said = what.said() if isinstance(what, GlobalName) else f"a {type(what).__name__}"
    raise UnreadableValue(f"it is a pickle with an instance of {said}")
