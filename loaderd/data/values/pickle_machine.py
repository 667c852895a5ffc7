"""The stack machine that a pickle is a program of."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from loaderd.data.values import pickle_names
from loaderd.data.values.arrays import MAX_ITEMS, UnreadableValue
from loaderd.data.values.pickle_names import GlobalName, PendingArray, PendingDtype, plain_key
from loaderd.data.values.pickle_opcodes import HANDLERS, REFUSED

LENGTHS = {
    width: struct.Struct(code) for width, code in ((1, "<B"), (2, "<H"), (4, "<I"), (8, "<Q"))
}


class PickleMachine:
    """One pickle on its way through.

    Args:
        data: Bytes, read from `at` on.
        at: Where the pickle begins.
        persistent: Makes what a persistent id stands for; without it one is refused.

    Attributes:
        at: Where the next byte is read; after `run` the end of the pickle.
        new_bytes: What may still be made of parts. A value may name the same part many times over.
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
        self.new_bytes = 8 * len(data) + (1 << 16)
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
        """Put a value on the stack."""
        self.stack.append(value)

    def mark(self) -> None:
        """Mark the top of the stack, for `since_mark`."""
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
        """Put on the stack what `remember` kept. Raises KeyError."""
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
        """Count the bytes of what is made of parts. Raises UnreadableValue if they are too many."""
        self.new_bytes -= size
        if self.new_bytes < 0:
            raise UnreadableValue(f"what it makes is much larger than its {len(self.data):,} bytes")

    def persist(self, key: Any) -> None:
        """What lies outside the pickle under this key. Raises UnreadableValue if nobody knows."""
        if self.persistent is None:
            raise UnreadableValue(
                f"it is a pickle with {REFUSED[0x51]}, which only its writer can read"
            )
        self.stack.append(self.persistent(key))
