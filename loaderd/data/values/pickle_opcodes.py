"""What each opcode of a pickle does to the machine, by its byte.

The standard library's `pickletools` describes them.
"""

from __future__ import annotations

import codecs
import pickle
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from loaderd.data.values.arrays import UnreadableValue
from loaderd.data.values.pickle_names import GlobalName, Python2Text, plain_key

if TYPE_CHECKING:
    from loaderd.data.values.pickle_machine import PickleMachine

MAX_DIGITS = 400  # of a number written as text
DOUBLE = struct.Struct(">d")
SIGNED = struct.Struct("<i")


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
    machine.push(Python2Text(codecs.escape_decode(line[1:-1])[0]))


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


HANDLERS: dict[int, Callable[[PickleMachine], object]] = {
    0x80: _protocol,
    0x95: lambda m: m.take(8),  # FRAME: the whole value is here already
    ord("("): lambda m: m.mark(),
    ord("0"): _pop,
    ord("1"): lambda m: m.since_mark(),
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
