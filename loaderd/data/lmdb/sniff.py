"""What a database looks like to somebody who doesn't know it."""

from __future__ import annotations

from loaderd.data.lmdb.store import Store, show_key

EXAMPLE = """
    class MyLayout:  # in mylayout.py beside the config; then: layout = "mylayout:MyLayout"
        def __init__(self, get, **layout_args):
            self.get = get                 # get(key: bytes) -> memoryview | None

        def __len__(self):
            return {entries}  # how many samples there are; fewer if one has several keys

        def keys(self, index):
            return [{key}]  # the key, or keys, of one sample

        def parse(self, index, values):    # one memoryview a key
            return {{"image": values[0]}}  # JPEG, PNG, ... bytes are decoded later"""

AGAIN = (
    "Pack what it was made of with `loaderd pack`, or describe its layout with a class of your own "
    """(`loaderd pack lmdb` takes it as --args '{"layout": "mylayout:MyLayout"}'):"""
)
MAGIC = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG", "PNG"),
    (b"RIFF", "RIFF (WebP or WAV)"),
    (b"\x1f\x8b", "gzip"),
    (b"x\x01", "zlib"),
    (b"x\x9c", "zlib"),
    (b"x\xda", "zlib"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"PK\x03\x04", "zip or npz"),
    (b"\x93NUMPY", "npy"),
    (b"GIF8", "GIF"),
    (b"{", "JSON?"),
    (b"[", "JSON?"),
)


def guess(value: bytes | memoryview) -> str:
    """What a value looks like from its first bytes: "JPEG", "pickle", "text", ...

    "" if nothing is known.
    """
    head = bytes(value[:32])
    if head[:1] == b"\x80" and len(head) > 2 and 2 <= head[1] <= 5 and bytes(value[-1:]) == b".":
        return "pickle"
    for magic, name in MAGIC:
        if head.startswith(magic):
            return name
    if not head or head.isdigit():
        return "digits" if head else "nothing"
    if head[0] & 0xF0 == 0x80 or head[0] in (0xDE, 0xDF):
        return "msgpack map?"
    if head[0] & 0xF0 == 0x90 or head[0] in (0xDC, 0xDD):
        return "msgpack array?"
    if head[0] == 8:
        return "protobuf?"
    return "text" if all(32 <= byte < 127 or byte in (9, 10, 13) for byte in head) else ""


def describe_entry(store: Store, key: bytes, value: memoryview) -> str:
    """One key for people: name, size, looks."""
    if store.is_database(key, value):
        return f"{show_key(key)} (a named database)"
    looks = guess(value)
    return (
        f"{show_key(key)} ({len(value)} bytes{', ' + looks if looks else ''}: "
        f"{bytes(value[:8]).hex(' ')})"
    )


def _numbered(key: bytes) -> str:
    """How to write any sample's key, if the first one is `key`: b"image-%09d" % (index + 1)."""
    digits = len(key) - len(key.rstrip(b"0123456789"))
    if not digits:
        return repr(key)
    first = int(key[-digits:])
    form = repr(key[:-digits].replace(b"%", b"%%") + b"%%0%dd" % digits)
    return f"{form} % {f'(index + {first})' if first else 'index'}".replace("b'", 'b"', 1).replace(
        "d' %", 'd" %', 1
    )


def _advice(first: list[tuple[bytes, memoryview]]) -> str:
    """What its values may be, where their looks tell so much."""
    if any(guess(value) for _, value in first):
        return ""
    if all(bytes(value[:16]).count(0) > 8 for _, value in first if len(value) >= 16):
        return (
            "If pyarrow.serialize wrote its values, only pyarrow before 15 reads them: convert the "
            "database there. "
        )
    sizes = [len(value) for _, value in first]
    if all(size % 4 == 0 for size in sizes):
        return (
            f"If its values are raw numbers, such as {max(sizes) // 4:,} of 4 bytes, say layout = "
            '"raw" and dtype = "float32". '
        )
    return ""


def unknown(store: Store) -> str:
    """What an LMDB that no layout knows looks like, and how to read it all the same."""
    first = [item for item, _ in zip(store.items(), range(3), strict=False)]
    last = [item for item, _ in zip(store.items(backward=True), range(2), strict=False)]
    if not first:
        return f"{store.path}: the database is empty (0 entries)"
    key = first[0][0]
    shown = "str(index).encode()" if key in (b"0", b"1") else _numbered(key)
    return (
        f"{store.path}: not in loaderd's own layout, and no other is recognised. "
        f"It has {store.entries} entries; "
        f"first keys: {'; '.join(describe_entry(store, *item) for item in first)}; "
        f"last keys: {'; '.join(describe_entry(store, *item) for item in reversed(last))}.\n"
        f"{_advice(first)}{AGAIN}" + EXAMPLE.format(entries=store.entries, key=shown)
    )
