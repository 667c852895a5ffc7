"""How a stored value is coded, found out from one value and then expected of all of them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loaderd.data.sample import is_image_file
from loaderd.data.values.arrays import UnreadableValue
from loaderd.data.values.msgpacks import unpack
from loaderd.data.values.numpy_files import (
    NPY,
    NPZ,
    is_safetensors,
    read_npy,
    read_npz,
    read_safetensors,
)
from loaderd.data.values.packed import GZIP, LZ4, ZLIB, ungzip, unlz4, unzlib
from loaderd.data.values.pickle_names import RefusedClass
from loaderd.data.values.pickles import unpickle

Data = bytes | memoryview


def read_json(data: Data) -> Any:
    """A JSON value. Raises UnreadableValue."""
    try:
        return json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise UnreadableValue(f"it is JSON that is damaged: {error}") from None


def read_text(data: Data) -> str:
    """UTF-8 text. Raises UnreadableValue."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableValue(f"it is text that is not UTF-8: {error}") from None


def run_pickle(data: Data) -> Any:
    """What a pickle makes, whatever it runs: only where the stream has allow_pickle = true."""
    try:
        return pickle.loads(data)
    except UnicodeDecodeError:  # Python 2 wrote it
        return pickle.loads(data, encoding="latin1")


STEPS: dict[str, Callable[[Data], Any]] = {
    "file": bytes,
    "text": read_text,
    "json": read_json,
    "pickle": unpickle,
    "msgpack": unpack,
    "npy": read_npy,
    "npz": read_npz,
    "safetensors": read_safetensors,
    "gzip": ungzip,
    "zlib": unzlib,
    "lz4": unlz4,
}


@dataclass(frozen=True, slots=True)
class ValueCodec:
    """How values are coded.

    Attributes:
        steps: Names of `STEPS`, in the order in which they are undone.
        trusted: Pickles are run, since the stream allows it.
        wants: The class that a pickle needs, "module.name", where it cannot be read otherwise.
    """

    steps: tuple[str, ...]
    trusted: bool = False
    wants: str = ""

    @property
    def name(self) -> str:
        """Such as "gzip+pickle"."""
        return "+".join(self.steps)

    def decode(self, data: Data) -> Any:
        """The value. Raises UnreadableValue; with `trusted` whatever the pickle raises."""
        value: Any = data
        for step in self.steps:
            value = run_pickle(value) if step == "pickle" and self.trusted else STEPS[step](value)
        return value


def sniff(data: Data, trusted: bool = False) -> ValueCodec | None:
    """How this value is coded; None if nothing known reads it."""
    head = bytes(data[:16])
    found = {"gzip": head[:2] == GZIP, "zlib": head[:2] in ZLIB, "lz4": head[:4] == LZ4}
    packed = next((name for name, yes in found.items() if yes), "")
    if packed:
        try:
            inner = sniff(STEPS[packed](data), trusted)
        except UnreadableValue:
            inner = None
        if inner is not None:
            return ValueCodec((packed, *inner.steps), trusted, inner.wants)
    for name, looks in _LOOKS:
        if not looks(head, data):
            continue
        try:
            STEPS[name](data)
        except RefusedClass as refused:
            return ValueCodec((name,), trusted, refused.wanted)
        except UnreadableValue:
            continue
        return ValueCodec((name,), trusted)
    return None


def _looks_pickled(head: bytes, data: Data) -> bool:
    """A pickle says its protocol, or is one of the old ones, which begin with what they make."""
    new = head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
    return bytes(data[-1:]) == b"." and (new or head[:1] in b"(]})cINFSVGKJML")


def _looks_textual(head: bytes, data: Data) -> bool:
    try:
        text = str(data[:4096], "utf-8", "strict" if len(data) <= 4096 else "ignore")
    except UnicodeDecodeError:
        return False
    return all(char.isprintable() or char in "\t\r\n" for char in text)


def _looks_msgpack(head: bytes, data: Data) -> bool:
    """A table or a list."""
    return bool(head) and (0x80 <= head[0] <= 0x9F or 0xDC <= head[0] <= 0xDF)


_LOOKS: tuple[tuple[str, Callable[[bytes, Data], bool]], ...] = (
    ("file", lambda head, data: is_image_file(data)),
    ("npy", lambda head, data: head.startswith(NPY)),
    ("npz", lambda head, data: head.startswith(NPZ)),
    ("pickle", _looks_pickled),
    ("safetensors", lambda head, data: is_safetensors(data)),
    ("json", lambda head, data: head.lstrip()[:1] in (b"{", b"[")),
    ("msgpack", _looks_msgpack),
    ("text", _looks_textual),
)
