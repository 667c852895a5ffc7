"""Pickles, read without running any of them.

`pickle.loads` runs whatever a value asks for. This machine knows Python's plain types, and what
numpy and torch write for arrays (`pickle_names.py`): those it makes itself, from checked parts.
Everything else is refused by its name. All protocols are read, also what Python 2 wrote, whose
`str` may be text or bytes; `pickletools.genops` cannot, since it takes them for ASCII.
"""

from __future__ import annotations

from typing import Any

from loaderd.data.values.arrays import MAX_DEPTH, MAX_ITEMS, UnreadableValue
from loaderd.data.values.pickle_machine import PickleMachine
from loaderd.data.values.pickle_names import (
    GlobalName,
    PendingArray,
    PendingDtype,
    Python2Text,
    SharedBytes,
)


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
    """What may still come.

    Attributes:
        left: Entries.
        left_bytes: Bytes.
    """

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
