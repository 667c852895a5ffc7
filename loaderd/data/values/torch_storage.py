"""The bytes of a torch storage inside a pickled tensor, read without torch.

`pickle.dumps(tensor)` holds its storage as what `torch.save` wrote in its older form: five pickles
(a magic number, a version, facts of the machine, the storage's description, its key), then the
number of elements as int64, then the elements.
"""

from __future__ import annotations

import struct
from typing import Any

from loaderd.data.values.arrays import UnreadableValue, plain_dtype
from loaderd.data.values.pickle_machine import PickleMachine
from loaderd.data.values.pickle_names import STORAGES, GlobalName, RefusedClass, SharedBytes
from loaderd.data.values.pickles import settled

MAGIC = 0x1950A86A20F9469CFC6C
VERSION = 1001
COUNT = struct.Struct("<q")


def read_storage(data: bytes) -> SharedBytes:
    """The storage that `torch.save` wrote.

    Raises UnreadableValue: it is something else, cut short, big-endian, or of a dtype that numpy
    does not have.
    """
    view, found = memoryview(data), list[GlobalName]()
    magic, at = _next(view, 0)
    version, at = _next(view, at)
    facts, at = _next(view, at)
    if (magic, version) != (MAGIC, VERSION) or not isinstance(facts, dict):
        raise UnreadableValue("it has a tensor whose storage is not as torch.save writes it")
    if facts.get("little_endian") is not True:
        raise UnreadableValue("it has a tensor that a big-endian machine wrote")

    def described(key: Any) -> None:
        if type(key) is not tuple or len(key) < 5 or not isinstance(key[1], GlobalName):
            raise UnreadableValue("it has a tensor whose storage is not described")
        found.append(key[1])

    machine = PickleMachine(view, at, described)
    machine.run()
    _, at = _next(view, machine.at)
    if len(found) != 1:
        raise UnreadableValue("it has a tensor with other than one storage")
    (kind,) = found
    if kind.name != "UntypedStorage" and kind.name not in STORAGES:
        raise RefusedClass(kind.said())
    dtype = None if kind.name == "UntypedStorage" else plain_dtype(STORAGES[kind.name])
    if len(view) - at < COUNT.size:
        raise UnreadableValue("it has a tensor that is cut short")
    (count,) = COUNT.unpack_from(view, at)
    body = view[at + COUNT.size :]
    if count < 0 or count * (dtype.itemsize if dtype is not None else 1) != len(body):
        raise UnreadableValue(
            f"it has a tensor of {count:,} numbers and {len(body):,} bytes of them"
        )
    return SharedBytes(body, dtype)


def _next(data: memoryview, at: int) -> tuple[Any, int]:
    machine = PickleMachine(data, at)
    return settled(machine.run(), len(data)), machine.at
