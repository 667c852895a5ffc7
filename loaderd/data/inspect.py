"""What is in a database: for `loaderd inspect`, without a config."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from loaderd.data import own
from loaderd.data.faults import SourceError
from loaderd.data.lmdb_store import Store, open_store
from loaderd.data.looks import describe_entry, guess, unknown

LOOKED_AT = 1_000  # values whose size is measured


@dataclass(frozen=True, slots=True)
class Inspection:
    """size_bytes: of the file; entries: keys of the root. layout: "loaderd", or "" if it is not recognised; count: samples, None then.

    key_pattern: in words. value_p50, value_max: bytes, of `looked_at` values spread over the database. fields: (name, what it is) of the
    first sample. first, last: keys with size and looks. advice: several lines on how to read an unknown one, else "".
    """

    path: str
    file: str
    size_bytes: int
    entries: int
    layout: str
    count: int | None
    identity: str
    kind: str
    key_pattern: str
    value_p50: int
    value_max: int
    looked_at: int
    fields: tuple[tuple[str, str], ...]
    classes: tuple[str, ...]
    first: tuple[str, ...]
    last: tuple[str, ...]
    advice: str


def pattern(keys: list[bytes]) -> str:
    """What these keys have in common, in words: "decimal, 8 digits", "image-%09d", "8 bytes, big-endian numbers", ..."""
    if not keys:
        return "none"
    if all(re.fullmatch(rb"[0-9]+", key) for key in keys):
        widths = {len(key) for key in keys}
        padded = len(widths) == 1 and len(keys[0]) > 1
        return f"decimal, {len(keys[0])} digits" if padded else "decimal, not padded"
    texts = [_text(key) for key in keys]
    if all(text is not None for text in texts):
        shapes = {re.sub(r"[0-9]+", lambda found: f"%0{len(found[0])}d" if len(found[0]) > 1 else "%d", text or "") for text in texts}
        return shapes.pop() if len(shapes) == 1 else f"text, such as {texts[0]!r}"
    sizes = {len(key) for key in keys}
    if sizes == {8} and all(int.from_bytes(key, "big") < 1 << 40 for key in keys):
        return "8 bytes, big-endian numbers"
    return f"{sizes.pop()} raw bytes" if len(sizes) == 1 else "raw bytes"


def _text(key: bytes) -> str | None:
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None


def _field_words(part: own.Part) -> str:
    if part.kind in (own.Kind.TEXT, own.Kind.BYTES):
        return f"{'text' if part.kind == own.Kind.TEXT else 'bytes'}, {part.size} bytes"
    if part.kind == own.Kind.ENCODED:
        return f"image, stored as {part.dtype if part.dtype != 'other' else 'a file of another format'}, {part.size} bytes"
    picture = "picture, " if part.kind == own.Kind.PICTURE else ""
    return f"{picture}{np.dtype(part.dtype)} {part.shape}"


def inspect_db(path: str) -> Inspection:
    """Look into the database at `path`. Raises SourceError, naming path and reason, where there is none that can be opened."""
    store = open_store(path)
    try:
        record = store.get(own.META_KEY)
        known: dict[str, Any] = _own(store, own.unpack_meta(record)) if record is not None and own.is_meta(record) else _unknown(store)
        ends = [item for item, _ in zip(store.items(), range(3), strict=False)]
        tail = [item for item, _ in zip(store.items(backward=True), range(2), strict=False)]
        return Inspection(
            path=path,
            file=store.file,
            size_bytes=store.facts.size,
            entries=store.entries,
            first=tuple(describe_entry(store, *item) for item in ends),
            last=tuple(describe_entry(store, *item) for item in reversed(tail)),
            **known,
        )
    except own.Damaged as error:
        raise SourceError(f"{path}: {error}") from None
    finally:
        store.close()


def _own(store: Store, meta: own.Meta) -> dict[str, Any]:
    step = max(1, meta.count // LOOKED_AT)
    sizes = sorted(len(store.get(own.sample_key(index)) or b"") for index in range(0, meta.count, step))
    first = store.get(own.sample_key(0))
    parts = own.read_head(first)[1] if first is not None else ()
    return {
        "layout": "loaderd",
        "count": meta.count,
        "identity": meta.identity,
        "kind": meta.kind,
        "key_pattern": "8 bytes, big-endian numbers",
        "value_p50": sizes[len(sizes) // 2] if sizes else 0,
        "value_max": sizes[-1] if sizes else 0,
        "looked_at": len(sizes),
        "fields": tuple((part.name, _field_words(part)) for part in parts),
        "classes": meta.classes,
        "advice": "",
    }


def _unknown(store: Store) -> dict[str, Any]:
    half = LOOKED_AT // 2
    seen = dict(item for item, _ in zip(store.items(), range(half), strict=False))
    seen |= dict(item for item, _ in zip(store.items(backward=True), range(half), strict=False))
    sizes = sorted(map(len, seen.values()))
    first = next(iter(seen.values()), None)
    looks = guess(first) if first is not None else ""
    return {
        "layout": "",
        "count": None,
        "identity": "",
        "kind": "",
        "key_pattern": pattern(list(seen)),
        "value_p50": sizes[len(sizes) // 2] if sizes else 0,
        "value_max": sizes[-1] if sizes else 0,
        "looked_at": len(sizes),
        "fields": (("(first value)", f"{len(first)} bytes{', ' + looks if looks else ''}"),) if first is not None else (),
        "classes": (),
        "advice": unknown(store).partition("\n")[2],
    }
