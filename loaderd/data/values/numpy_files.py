"""Values that are .npy or .npz files, and safetensors: arrays by name, without pickle."""

from __future__ import annotations

import importlib
import io
import zipfile
import zlib
from tokenize import TokenError
from typing import Any

import numpy as np

from loaderd.data.values.arrays import UnreadableValue, array_of, plain_dtype
from loaderd.data.values.packed import MAX_BYTES

NPY, NPZ = b"\x93NUMPY", b"PK\x03\x04"
# What a writer of old meant as an argument, and numpy stored as an array.
NO_MEMBER = "allow_pickle"
# what numpy's parser of headers raises
NOT_NPY = (
    ValueError, TypeError, SyntaxError, KeyError, EOFError, RecursionError, MemoryError, TokenError,
)  # fmt: skip


def read_npy(data: bytes | memoryview) -> np.ndarray[Any, Any]:
    """The array of a .npy file, a read-only view of it.

    Raises UnreadableValue: damaged, cut short, or of objects or records.
    """
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            read = np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except NOT_NPY as error:
        raise UnreadableValue(f"it is a .npy file that is damaged: {error}") from None
    rest = memoryview(data).cast("B")[file.tell() :]
    return array_of(plain_dtype(dtype.str), shape, rest, "F" if fortran else "C")


def read_npz(data: bytes | memoryview) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an .npz file by name.

    Raises UnreadableValue: damaged, of objects or records, or more than MAX_BYTES uncompressed.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            members = file.infolist()
            if sum(member.file_size for member in members) > MAX_BYTES:
                raise UnreadableValue(f"it is an .npz file of more than {MAX_BYTES:,} bytes")
            return {
                member.filename.removesuffix(".npy"): read_npy(file.read(member))
                for member in members
                if member.filename.removesuffix(".npy") != NO_MEMBER
            }
    except UnreadableValue:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, OSError) as error:
        raise UnreadableValue(f"it is an .npz file that is damaged: {error}") from None
    except (NotImplementedError, RuntimeError) as error:
        raise UnreadableValue(f"it is an .npz file that cannot be read: {error}") from None


def read_safetensors(data: bytes | memoryview) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a safetensors value by name.

    Raises UnreadableValue: damaged, of a dtype that numpy does not have, or the package is missing.
    """
    try:
        library: Any = importlib.import_module("safetensors.numpy")
        fault: Any = importlib.import_module("safetensors").SafetensorError
    except ImportError:
        raise UnreadableValue(
            "it is safetensors, whose package is not installed: pip install safetensors"
        ) from None
    try:
        return library.load(bytes(data))
    except (fault, ValueError, TypeError, KeyError) as error:
        raise UnreadableValue(f"it is safetensors that cannot be read: {error}") from None


def is_safetensors(data: bytes | memoryview) -> bool:
    """Whether these bytes begin like safetensors: a size, and JSON of that size."""
    head = bytes(data[:10])
    size = int.from_bytes(head[:8], "little")
    return len(head) == 10 and head[8:9] == b"{" and 2 <= size <= len(data) - 8
