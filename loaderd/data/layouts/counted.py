"""Numbered values with a key that counts them: ATOM3D, TAPE and PEER, OCP, SaProt, TableMaster."""

from __future__ import annotations

from typing import Any, ClassVar

from loaderd.data.errors import SourceError
from loaderd.data.layouts.base import Database, KeyedLayout
from loaderd.data.layouts.image_folder import count_of_any
from loaderd.data.layouts.keys import Keys
from loaderd.data.values.arrays import UnreadableValue
from loaderd.data.values.codecs import ValueCodec, sniff
from loaderd.data.values.fields import fields_of

# Keys that are no samples in one of these layouts.
OTHERS = (
    b"length", b"num_examples", b"num_samples", b"serialization_format", b"id_to_idx", b"info",
    b"metadata", b"__len__",
)  # fmt: skip


class CountedLayout(KeyedLayout):
    """Keys "0", "1", ... and one that says how many there are."""

    counter: ClassVar[bytes]

    def find_keys(self) -> Keys:
        others = sum(map(self.db.has, OTHERS))
        return self.numbered("{i}", count_of_any(self.db, self.counter), others)


class Atom3dLayout(CountedLayout):
    """Tables, gzip of JSON, msgpack or pickle."""

    name = "atom3d"
    marks = "`num_examples` and `serialization_format`"
    counter = b"num_examples"

    @classmethod
    def seen(cls, db: Database) -> str:
        there = db.has(b"num_examples") and db.has(b"serialization_format")
        return "it has num_examples and serialization_format" if there else ""

    def find_codec(self) -> ValueCodec:
        form = bytes(self.db.get(b"serialization_format") or b"")
        steps = {b"json": "json", b"msgpack": "msgpack", b"pkl": "pickle"}
        if form not in steps:
            raise SourceError(f"{self.db.path}: its serialization_format is {form!r}: unknown")
        return ValueCodec(("gzip", steps[form]), self.options.allow_pickle)


class TapeLayout(CountedLayout):
    """Tables of a protein each."""

    name = "tape"
    marks = "`num_examples`"
    counter = b"num_examples"

    @classmethod
    def seen(cls, db: Database) -> str:
        return "it has num_examples" if db.has(b"num_examples") else ""


class OcpLayout(CountedLayout):
    """Objects of torch_geometric, which need `allow_pickle`."""

    name = "ocp"
    marks = "`length`, pickled; needs `allow_pickle = true`"
    counter = b"length"

    @classmethod
    def seen(cls, db: Database) -> str:
        value = db.get(b"length")
        pickled = value is not None and bytes(value[:1]) == b"\x80"
        return "it has a pickled length" if pickled else ""


class SaprotLayout(CountedLayout):
    """JSON tables, or anything else with a `length` in digits."""

    name = "saprot"
    marks = "`length`, as digits, and keys `0`, `1`, ..."
    counter = b"length"

    @classmethod
    def seen(cls, db: Database) -> str:
        there = db.has(b"0") and (db.get(b"length") or b"x")[:1] != b"\x80"
        return "it has length, and the key 0" if there and db.has(b"length") else ""


class TableMasterLayout(CountedLayout):
    """(name, image file, text) of a table each."""

    name = "tablemaster"
    marks = "`__len__`, and no `__keys__`"
    counter = b"__len__"

    @classmethod
    def seen(cls, db: Database) -> str:
        return "it has __len__, and no __keys__" if db.has(b"__len__") else ""


class ChineseClipPairs(CountedLayout):
    """(image id, text id, text)."""

    name = "chinese_clip_pairs"
    marks = "`num_samples`"
    counter = b"num_samples"

    @classmethod
    def seen(cls, db: Database) -> str:
        return "it has num_samples" if db.has(b"num_samples") else ""


class ValuesLayout(KeyedLayout):
    """Any values that are all coded alike.

    Pickles, msgpack, JSON, npz, npy, safetensors, text, compressed or not.
    """

    name = "values"
    marks = "values that are pickles, msgpack, JSON, .npy, .npz, safetensors, compressed or not"
    may_be_said = True

    @classmethod
    def seen(cls, db: Database) -> str:
        codecs = [sniff(value) for _, value in db.first()]
        found = codecs[0] if codecs else None
        alike = all(codec is not None and found and codec.steps == found.steps for codec in codecs)
        if found is None or not alike or found.steps == ("text",):
            return ""
        return f"its first {len(codecs)} values are all {found.name}"

    def find_keys(self) -> Keys:
        if self.options.index_file:
            return self.indexed()
        pattern = str(self.options.key_format or "")
        first = self.db.first()
        if not pattern and first and all(key.isdigit() for key, _ in first):
            key = first[0][0]
            pattern = "{i}" if len(key) == 1 or key[:1] != b"0" else f"{{i:0{len(key)}d}}"
        elif not pattern and first and all(len(key) == 4 and not key.isalnum() for key, _ in first):
            pattern = "u32be"
        if not pattern:
            return self.listed()
        keys = self.numbered(pattern, None, 0)
        if len(keys) < self.db.entries:
            self.notes.append(f"{self.db.entries - len(keys):,} of its keys are not {pattern!r}")
        return keys


class UnimolLayout(ValuesLayout):
    """Tables of a molecule each."""

    name = "unimol"
    marks = "keys `0`, `1`, ..., or numbers of 4 bytes, and pickled tables with `atoms`"

    @classmethod
    def seen(cls, db: Database) -> str:
        first = db.first()[:1]
        codec = sniff(first[0][1]) if first else None
        if codec is None or codec.steps[-1] != "pickle" or codec.wants:
            return ""
        try:
            value = codec.decode(first[0][1])
        except UnreadableValue:
            return ""
        there = isinstance(value, dict) and "atoms" in value
        return f"its values are {codec.name}, tables with atoms" if there else ""


class SorelLayout(ValuesLayout):
    """The numbers of a file as `features`."""

    name = "sorel"
    marks = "keys of 64 hexadecimal digits, and values that are zlib+msgpack"

    @classmethod
    def seen(cls, db: Database) -> str:
        first = db.first()
        codec = sniff(first[0][1]) if first else None
        hashed = all(len(key) == 64 and not key.strip(b"0123456789abcdef") for key, _ in first)
        alike = codec is not None and codec.steps == ("zlib", "msgpack")
        return (
            "its keys are 64 hexadecimal digits, its values zlib+msgpack"
            if hashed and alike
            else ""
        )

    def parse(self, index: int, values: list[memoryview]) -> dict[str, Any]:
        sample = super().parse(index, values) if self.options.fields else None
        if sample is None:
            assert self.codec is not None
            sample = fields_of(self.codec.decode(values[0]), ())
            if list(sample) == ["0"]:
                sample = {"features": sample["0"]}
        return sample


class SafetensorsLayout(ValuesLayout):
    """Arrays by name."""

    name = "safetensors"
    marks = "values that are safetensors"

    @classmethod
    def seen(cls, db: Database) -> str:
        first = db.first()
        codec = sniff(first[0][1]) if first else None
        return "its values are safetensors" if codec and codec.name == "safetensors" else ""
