"""Classes and functions that a pickle may name, and what each of them makes here.

None of them is imported or called: arrays are made of checked parts, and every other name is
refused. The names of numpy 1 and 2 differ, and both are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loaderd.data.values.arrays import (
    UnreadableValue,
    array_of,
    plain_dtype,
    plain_shape,
)

if TYPE_CHECKING:
    from loaderd.data.values.pickle_machine import PickleMachine

PLAIN_KEYS = (str, int, float, bool, bytes, type(None))
CODECS = ("latin1", "latin-1", "utf-8", "ascii")


@dataclass(frozen=True, slots=True)
class GlobalName:
    """A class or function by name.

    Attributes:
        make: What a call of it gives.
    """

    module: str
    name: str
    make: Callable[[PickleMachine, tuple[Any, ...]], Any]

    def said(self) -> str:
        """As errors call it: "module.name"."""
        return f"{self.module}.{self.name}"


class RefusedClass(UnreadableValue):
    """A pickle asks for a class or function that only running it could give.

    Attributes:
        wanted: Its name, "module.name".
    """

    def __init__(self, wanted: str) -> None:
        super().__init__(
            f"it is a pickle that needs {wanted}, code that loaderd does not run. If you trust "
            "the file, set allow_pickle = true on the stream; it then runs whatever the file asks "
            "for"
        )
        self.wanted = wanted


@dataclass(frozen=True, slots=True)
class Python2Text:
    """A `str` of Python 2: text or bytes, which only its use tells."""

    data: bytes

    def key(self) -> str | bytes:
        """As a key of a dict: text if it is ASCII, else bytes."""
        return self.plain() if self.data.isascii() else self.data

    def plain(self) -> str | bytes:
        """Text if it is printable ASCII, else bytes."""
        text = self.data.decode("latin-1")
        spaced = text.replace("\n", " ").replace("\t", " ").replace("\r", " ")
        return text if text.isascii() and spaced.isprintable() else self.data


class SharedBytes:
    """The bytes of a storage of torch's, and its dtype where it has one."""

    def __init__(self, data: memoryview, dtype: np.dtype[Any] | None) -> None:
        self.data = data
        self.dtype = dtype

    def said(self) -> str:
        """As errors call it."""
        return "a storage of torch's"


class PendingDtype:
    """What stands for a numpy.dtype until its byte order is known."""

    def __init__(self, code: Any) -> None:
        code = _text(code)
        self.code = code
        self.dtype = plain_dtype(code)

    def set_state(self, machine: PickleMachine, state: Any) -> None:
        """Settle the byte order. Raises UnreadableValue for what is no plain number."""
        if type(state) is not tuple or len(state) < 5 or any(x is not None for x in state[2:5]):
            raise UnreadableValue("it has an array of records, which are not plain numbers")
        order = _text(state[1])
        if order not in ("<", ">", "|", "="):
            raise UnreadableValue(f"it has an array of byte order {order!r:.20}")
        self.dtype = plain_dtype(self.code)
        if order in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(order)

    def said(self) -> str:
        """As errors call it."""
        return "a numpy.dtype"


class PendingArray:
    """What stands for an array until its state has come."""

    def __init__(self) -> None:
        self._value: np.ndarray[Any, Any] | None = None

    def set_state(self, machine: PickleMachine, state: Any) -> None:
        """Make the array. Raises UnreadableValue for a state that is none of numpy's."""
        if type(state) is not tuple or len(state) != 5 or type(state[2]) is not PendingDtype:
            raise UnreadableValue("it has an array whose state is not one of numpy's")
        _, shape, kind, fortran, data = state
        self._value = made_array(machine, kind, shape, data, "F" if fortran is True else "C")

    def array(self) -> np.ndarray[Any, Any]:
        """The array. Raises UnreadableValue if no state has come."""
        if self._value is None:
            raise UnreadableValue("it has an array without data")
        return self._value

    def said(self) -> str:
        """As errors call it."""
        return "an array"


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


def _text(value: Any) -> Any:
    return value.data.decode("latin-1") if type(value) is Python2Text else value


def made_array(
    machine: PickleMachine, kind: PendingDtype, shape: Any, data: Any, order: str
) -> np.ndarray[Any, Any]:
    """The array that these parts of a pickle are."""
    if type(data) is Python2Text:
        data = data.data
    if isinstance(data, list):
        raise UnreadableValue("it has an array of objects, which are not plain numbers")
    found = array_of(kind.dtype, shape, data, order)
    machine.spend(found.nbytes)
    return found


def _dtype(machine: PickleMachine, args: tuple[Any, ...]) -> PendingDtype:
    code, *_ = args
    if isinstance(code, GlobalName):
        raise RefusedClass(code.said())
    return PendingDtype(code)


def _reconstruct(machine: PickleMachine, args: tuple[Any, ...]) -> PendingArray:
    kind, *_ = args
    if not isinstance(kind, GlobalName) or kind.name != "ndarray":
        raise UnreadableValue("it has an array that is not one of numpy's own")
    return PendingArray()


def _scalar(machine: PickleMachine, args: tuple[Any, ...]) -> Any:
    kind, *data = args
    if type(kind) is not PendingDtype or len(data) > 1:
        raise UnreadableValue("it has a number that is not one of numpy's")
    return made_array(machine, kind, (), data[0] if data else bytes(kind.dtype.itemsize), "C")[()]


def _from_buffer(machine: PickleMachine, args: tuple[Any, ...]) -> Any:
    data, kind, shape, *order = args
    if type(kind) is not PendingDtype:
        raise UnreadableValue("it has an array that is not one of numpy's own")
    return made_array(machine, kind, shape, data, "F" if order[:1] == ["F"] else "C")


def _encode(machine: PickleMachine, args: tuple[Any, ...]) -> bytes:
    text, *rest = args
    codec = rest[0] if rest else "utf-8"
    if type(text) is not str or codec not in CODECS:
        raise UnreadableValue("it is a pickle that encodes what is no text")
    machine.spend(len(text))
    return text.encode(codec)


def _bytes(machine: PickleMachine, args: tuple[Any, ...]) -> Any:
    if not args:
        return b""
    if len(args) == 2:
        return _encode(machine, args)
    if len(args) == 1 and isinstance(args[0], (bytes, memoryview)):
        return args[0]
    if len(args) == 1 and type(args[0]) is list:
        machine.spend(len(args[0]))
        return bytes(args[0])
    raise UnreadableValue("it has bytes that are made of no bytes")


def _pairs(machine: PickleMachine, args: tuple[Any, ...]) -> dict[Any, Any]:
    """An OrderedDict, as a dict; what Python 2 wrote has its pairs as an argument."""
    machine.push({})
    machine.spend(8 * len(args[0]) if args else 0)
    for pair in args[0] if args else []:
        key, value = pair
        machine.set_items([key, value])
    return machine.stack.pop()


def _default_dict(machine: PickleMachine, args: tuple[Any, ...]) -> dict[Any, Any]:
    return {}


def _set(machine: PickleMachine, args: tuple[Any, ...]) -> Any:
    machine.push(set())
    machine.spend(8 * len(args[0]) if args else 0)
    machine.add(list(args[0]) if args else [])
    return machine.stack.pop()


def _complex(machine: PickleMachine, args: tuple[Any, ...]) -> complex:
    if len(args) != 2 or any(type(part) not in (float, int) for part in args):
        raise UnreadableValue("it has a complex number that is not made of two numbers")
    return complex(*args)


def _size(machine: PickleMachine, args: tuple[Any, ...]) -> tuple[int, ...]:
    return plain_shape(args[0])


def _tensor(machine: PickleMachine, args: tuple[Any, ...]) -> np.ndarray[Any, Any]:
    """A tensor as the array of the same numbers: a view of its storage by offset and strides."""
    storage, offset, size, stride, *_ = args
    if not isinstance(storage, SharedBytes):
        raise UnreadableValue("it has a tensor without a storage")
    if storage.dtype is None:
        raise UnreadableValue("it has a tensor whose storage has no dtype of plain numbers")
    shape, strides = plain_shape(size), plain_shape(stride)
    whole = np.frombuffer(storage.data, storage.dtype)
    last = sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    empty = 0 in shape
    if type(offset) is not int or offset < 0 or (not empty and offset + last >= len(whole)):
        raise UnreadableValue(
            f"it has a tensor of shape {shape}, which is beyond its {len(whole):,} numbers"
        )
    machine.spend(math.prod(shape) * whole.itemsize)
    if empty:
        return np.zeros(shape, storage.dtype)
    steps = [step * whole.itemsize for step in strides]
    return np.ndarray(shape, whole.dtype, storage.data, offset * whole.itemsize, steps)


def _parameter(machine: PickleMachine, args: tuple[Any, ...]) -> Any:
    if not args or not isinstance(args[0], np.ndarray):
        raise UnreadableValue("it has a parameter without a tensor")
    return args[0]


def _load_from_bytes(machine: PickleMachine, args: tuple[Any, ...]) -> SharedBytes:
    from loaderd.data.values.torch_storage import read_storage

    (data,) = args
    machine.spend(len(data))
    return read_storage(bytes(data) if isinstance(data, (memoryview, bytes)) else b"")


def _never(machine: PickleMachine, args: tuple[Any, ...]) -> Any:
    raise UnreadableValue("it is a pickle that calls what is no function")


NUMPY = (
    "numpy",
    "numpy.core.multiarray",
    "numpy._core.multiarray",
    "numpy.core.numeric",
    "numpy._core.numeric",
)
BUILTINS = ("builtins", "__builtin__")
MAKES: dict[tuple[str, str], Callable[[PickleMachine, tuple[Any, ...]], Any]] = {
    **{(module, "dtype"): _dtype for module in NUMPY},
    **{(module, "ndarray"): _never for module in NUMPY},
    **{(module, "_reconstruct"): _reconstruct for module in NUMPY},
    **{(module, "scalar"): _scalar for module in NUMPY},
    **{(module, "_frombuffer"): _from_buffer for module in NUMPY},
    ("_codecs", "encode"): _encode,
    **{(module, "bytes"): _bytes for module in BUILTINS},
    **{(module, "bytearray"): _bytes for module in BUILTINS},
    **{(module, "set"): _set for module in BUILTINS},
    **{(module, "frozenset"): _set for module in BUILTINS},
    **{(module, "complex"): _complex for module in BUILTINS},
    **{(module, kind): _never for module in BUILTINS for kind in ("int", "float", "list", "dict")},
    ("collections", "OrderedDict"): _pairs,
    ("collections", "defaultdict"): _default_dict,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch.storage", "_load_from_bytes"): _load_from_bytes,
    ("torch", "Size"): _size,
}
STORAGES = {
    "FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "LongStorage": "<i8",
    "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "i1", "ByteStorage": "u1",
    "BoolStorage": "?", "ComplexFloatStorage": "<c8", "ComplexDoubleStorage": "<c16",
}  # fmt: skip


def known(module: str, name: str) -> GlobalName:
    """What stands for this name. Raises RefusedClass if nothing does."""
    make = MAKES.get((module, name))
    if make is None and module == "torch" and name.endswith("Storage"):
        make = _never
    if make is None:
        raise RefusedClass(f"{module}.{name}"[:200])
    return GlobalName(module, name, make)
