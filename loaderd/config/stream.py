"""How a stream is to be read: plain values that the config makes and that travel to the workers as
JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from loaderd.config.transforms import BATCH, GEOMETRY

MAX_PIXELS = 178_956_970  # what Pillow refuses too


@dataclass(frozen=True, slots=True)
class TransformConfig:
    """One transform: a built-in `op` with its parameters in `args`, or a user's `call`
    ("pkg.module:function") with its args.
    """

    op: str | None
    call: str | None
    args: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class DecodeModes:
    """How the image fields of a stream become pixels.

    stream: one of config.transforms.MODES, of the fields that `fields` doesn't name. paired: fields
    that share the geometry of others. exif: stored images are turned as their EXIF data says.
    max_pixels: as many as an image may have.
    """

    stream: str = "rgb"
    fields: Mapping[str, str] = field(default_factory=dict[str, str])
    paired: frozenset[str] = frozenset()
    exif: bool = False
    max_pixels: int = MAX_PIXELS

    def of(self, name: str) -> str:
        return self.fields.get(name, self.stream)

    def beside(self, name: str) -> bool:
        """Whether the field shares the geometry of others, as the mask of an image does, and a gray
        one would become "rgb".
        """
        return name in self.paired and self.of(name) == "rgb"

    def said(self, name: str) -> bool:
        """Whether the config names a mode for this very field."""
        return name in self.fields


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """Exactly one of lmdb (absolute path) and dataset ("pkg.module:Class") is set.

    shuffle: 0 no, 1 yes, >= 2 in blocks of that many. decode: False delivers images as they are
    stored. nonfinite: "allow" or "error".
    views: how often the transforms run on a sample.
    pad: field -> {"value", "multiple", "mask"}. ragged_as: "list" or "flat".
    empty: "skip" or "deliver", what becomes of a batch that has lost all its rows.
    survey: not None: samples are not delivered, but what a Surveyor made with it says of each.
    """

    name: str
    lmdb: str | None = None
    dataset: str | None = None
    dataset_args: dict[str, Any] = field(default_factory=dict[str, Any])
    layout: str = "auto"
    layout_args: dict[str, Any] = field(default_factory=dict[str, Any])
    key_format: str | dict[str, str] | None = None
    count: int = 0
    dtype: str | dict[str, str] | None = None
    shape: tuple[int, ...] | dict[str, tuple[int, ...]] | None = None
    fields: tuple[str, ...] = ()
    index_file: str | None = None
    allow_pickle: bool = False
    decode: bool = True
    mode: str = "rgb"
    exif: bool = False
    max_pixels: int = MAX_PIXELS
    views: int = 1
    split: str = "0%:100%"
    split_by: str = "random"
    batch_size: int = 1
    shuffle: int = 0
    seed: int = 0
    drop_last: bool = False
    tail: str = "repeat"
    on_error: str = "raise"
    empty: str = "skip"
    max_errors: float = 0.0
    nonfinite: str = "allow"
    collate: str = "stack"
    pad: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    ragged: tuple[str, ...] = ()
    ragged_as: str = "list"
    transforms: tuple[TransformConfig, ...] = ()
    survey: dict[str, Any] | None = None

    def modes(self) -> DecodeModes:
        """The mode of each field: that of its first decode op which has one, else the stream's."""
        stream, fields, paired = self.mode, dict[str, str](), set[str]()
        for step in reversed(self.transforms):
            fields_alike = (step.args.get("fields") or ()) if step.op in GEOMETRY else ()
            paired.update(fields_alike if len(fields_alike) > 1 else ())
            if step.op == "decode" and step.args.get("mode"):
                if step.args.get("field"):
                    fields[step.args["field"]] = step.args["mode"]
                else:
                    stream = step.args["mode"]
        return DecodeModes(stream, fields, frozenset(paired), self.exif, self.max_pixels)

    def tail_for(self, drop_last: bool | None) -> str:
        """What becomes of the rows behind the last whole step: "repeat", "short" or "drop".

        Args:
            drop_last: What a trainer asks for. None: the stream decides.
        """
        if self.drop_last if drop_last is None else drop_last:
            return "drop"
        return "short" if self.tail == "short" else "repeat"

    def said_of_database(self) -> list[str]:
        """Words that describe a database of another project, those that are set."""
        words = ("key_format", "count", "dtype", "shape", "fields", "index_file", "allow_pickle")
        return [word for word in words if getattr(self, word)]

    @property
    def data_name(self) -> str:
        """What holds the samples, as errors name it: the LMDB's path, or the dataset's class."""
        return self.lmdb or self.dataset or self.name

    @property
    def collated(self) -> bool:
        """Whether a batch is made as a whole: by a collate function, or from samples of different
        lengths.
        """
        return self.collate != "stack" or bool(self.pad or self.ragged or self.mixes)

    @property
    def mixes(self) -> tuple[TransformConfig, ...]:
        """The ops that work on the whole batch."""
        return tuple(step for step in self.transforms if step.op in BATCH)

    @property
    def free_fields(self) -> frozenset[str]:
        """Fields whose length may differ from sample to sample; lists are arrays there."""
        return frozenset((*self.pad, *self.ragged, *(self.survey or {}).get("free", ())))

    @property
    def whole_samples(self) -> bool:
        """Whether samples stay as their dataset returned them: they are for a collate function, or
        a survey of such ones.
        """
        return self.collate != "stack" or bool(self.survey and self.survey["collated"])

    def has_user_code(self) -> bool:
        called = any(step.call is not None for step in self.transforms)
        own = self.dataset is not None or self.allow_pickle
        return called or own or ":" in self.layout or ":" in self.collate

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> StreamConfig:
        values = json.loads(text)
        values["ragged"] = tuple(values["ragged"])
        values["transforms"] = tuple(TransformConfig(**step) for step in values["transforms"])
        values["fields"] = tuple(values["fields"])
        return cls(**values)
