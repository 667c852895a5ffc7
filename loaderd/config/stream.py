"""How a stream is to be read.

Plain values that the config makes and that travel to the workers as JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from loaderd.config import batching, database_keys, mixture_keys, order_keys
from loaderd.config.decode_modes import MAX_PIXELS, DecodeModes
from loaderd.config.parts import Databases, PartConfig, PartTables
from loaderd.config.staging import StageConfig
from loaderd.config.table import key
from loaderd.config.transform_tables import Transform, TransformConfig
from loaderd.config.transforms import BATCH, GEOMETRY, MODES
from loaderd.config.types import (
    Args,
    Choice,
    Either,
    Flag,
    Fraction,
    Many,
    Path,
    Text,
    Whole,
    entry,
)
from loaderd_wire.limits import MAX_PREFETCH, MAX_ROWS


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """The table [streams.NAME]: what `key` makes is a key of the config.

    Exactly one of lmdb (absolute path), parts, dataset ("pkg.module:Class") and of is set.

    Attributes:
        name: The NAME of the table.
        shuffle: 0 no, 1 yes, 2 or more in blocks of that many.
        max_errors: 0 is no limit.
        pad: By field {"value", "multiple", "mask"}.
        survey: Set by a scan: samples are not delivered, but what a Surveyor made with it says of
            each.
        sources: Those of a mixture, as `mixed` makes them, in the order of `of`.
        stage: Where a daemon copies its databases, None if it does not.
        copies: Path of each database that has been copied -> path of the copy.
    """

    name: str
    lmdb: str | None = key(
        Databases(),
        "The database; or an array of databases, which are one dataset in this order, and of "
        "patterns such as b/*.lmdb, whose files come sorted.",
        None,
    )
    parts: tuple[PartConfig, ...] = key(
        PartTables(),
        "Databases instead of lmdb, each with a layout of its own: lmdb, layout, layout_args, "
        "and the keys that describe a database of another project.",
        (),
    )
    dataset: str | None = key(
        entry("a class or function"),
        "A map-style dataset instead of a database: __len__ and __getitem__; or a function "
        "that makes one.",
        None,
    )
    of: dict[str, float] = key(
        mixture_keys.Weights(),
        "A mixture instead: other streams of this config, each with its weight.",
        {},
    )
    stop: str = key(
        Choice(("first", "all")),
        "When an epoch of a mixture ends: when the first source has been used up once, or when "
        "each has. See epoch_steps, too.",
        "first",
    )
    dataset_args: dict[str, Any] = key(Args(), "Keyword arguments of the dataset's class.", {})
    layout: str = key(database_keys.LAYOUT, "How samples lie in the database.", "auto")
    layout_args: dict[str, Any] = key(Args(), "Keyword arguments of the layout's class.", {})
    key_format: str | dict[str, str] | None = key(
        database_keys.KEY_FORMAT,
        'Keys of samples in a layout that does not say them: "{i}", "{i:08d}", "u32be".',
        None,
    )
    count: int = key(Whole(0, 1 << 48), "Number of samples to use, the first ones; 0: all.", 0)
    dtype: str | dict[str, str] | None = key(
        database_keys.DTYPES, "Of values that are numbers without a header.", None
    )
    shape: tuple[int, ...] | dict[str, tuple[int, ...]] | None = key(
        database_keys.SHAPES, "Of such values; -1 is what is left.", None
    )
    fields: tuple[str, ...] = key(
        Many(database_keys.FIELD),
        "Fields that are wanted, or names for the parts of a value. Default: all.",
        (),
    )
    index_file: str | None = key(
        Path(), "A file that lists the keys, with a label each or without.", None
    )
    allow_pickle: bool = key(
        Flag(),
        "Runs pickles, which run whatever the file asks for: only for files that you trust.",
        False,
    )
    decode: bool = key(Flag(), "false delivers images as they are stored.", True)
    mode: str = key(
        Choice(MODES),
        "Decoded images: rgb has 3 channels, gray 1, rgba 4; index keeps the numbers of "
        "palette, gray, 1-bit and 16-bit gray images, 1 channel; unchanged has the channels "
        "that are stored, and 16 bits where they are (palettes become colours). "
        "For one field: a decode op with field and mode.",
        "rgb",
    )
    exif: bool = key(Flag(), "Turns stored images as their EXIF orientation says.", False)
    max_pixels: int = key(
        Whole(1, 1 << 30),
        "A stored image with more pixels is bad, and one that an op would make so large.",
        MAX_PIXELS,
    )
    views: int = key(
        Whole(1, 16),
        "Views of each image: the transforms run so often, with draws of their own, and "
        "image becomes image.0, image.1 and so on.",
        1,
    )
    split: str = key(order_keys.SPLIT, "The part of the samples that this stream uses.", "0%:100%")
    split_by: str = key(
        Choice(("random", "stored", "key")),
        "What is split: a fixed random order of all samples, the stored order, or groups of keys "
        "(see group).",
        "random",
    )
    group: str | None = key(
        order_keys.GROUP,
        'A regular expression with one group, for split_by = "key": samples in whose keys it '
        "finds the same text are on the same side of every split.",
        None,
    )
    keys: str | None = key(
        Path(),
        "A file of keys, one a line: the samples of this stream, in that order. hex: and digits "
        "stand for bytes.",
        None,
    )
    weights: str | None = key(
        order_keys.WEIGHTS,
        "Samples are drawn with replacement, whatever shuffle is: a .npy file with a number for "
        "each sample, or balanced, by which each class comes equally often.",
        None,
    )
    repeat: int = key(Whole(1, 1 << 20), "How often each sample comes in an epoch.", 1)
    batch_size: int = key(
        Whole(1, MAX_ROWS), "Rows per batch and rank; a trainer may ask for another.", 1
    )
    shuffle: int = key(
        order_keys.SHUFFLE,
        "A new order each epoch: of all samples, or of blocks and inside them.",
        False,
        kept=0,
    )
    classes: str | None = key(
        Path(),
        "A database or a text file with the names of classes, one a line: labels of this stream "
        "become their numbers there, by name.",
        None,
    )
    seed: int = key(Whole(), "Seed of the order and of all randomness.", 0)
    drop_last: bool = key(Flag(), "Leaves out the last batch if it is not whole.", False)
    tail: str = key(
        Choice(("repeat", "short", "drop")),
        "What happens to samples behind the last whole batch of all ranks. The ranks share "
        "them. If they are fewer than the ranks, repeat gives the other ranks samples from "
        "the start of the epoch again, and short gives them none: see empty. drop is "
        "drop_last = true.",
        "repeat",
    )
    epoch_steps: int = key(
        Whole(0, 1 << 30),
        "Steps of an epoch; 0: as many as the samples make. The samples come one pass behind the "
        "other, each in an order of its own, and an epoch goes on where the last one ended.",
        0,
    )
    on_error: str = key(
        Choice(("raise", "skip", "replace")), "What happens when a sample is bad.", "raise"
    )
    empty: str = key(
        Choice(("skip", "deliver")),
        'What happens to a batch that on_error = "skip" or tail = "short" has left without '
        "rows: it is skipped, or delivered.",
        "skip",
    )
    max_errors: float = key(
        Either((Whole(1), Fraction()), "a count of 1 or more, nor a fraction between 0 and 1"),
        "Number of bad samples, or their fraction of the samples, that ends the run. Default: "
        "no limit.",
        None,
        kept=0.0,
    )
    nonfinite: str = key(
        Choice(("allow", "error")), "Whether NaN and infinity make a sample bad.", "allow"
    )
    collate: str = key(
        batching.COLLATE,
        "How samples become a batch: a function is called as function(samples) or "
        "function(samples, rng).",
        "stack",
    )
    pad: dict[str, dict[str, Any]] = key(
        batching.PadRules(),
        "Fields that are filled up to the longest of the batch, each with its number; "
        "`__length__` has their lengths.",
        {},
    )
    ragged: tuple[str, ...] = key(
        Many(Text(r"(?s:.+)", "the name of a field")),
        "Fields that are not stacked: a list of arrays a batch.",
        (),
    )
    ragged_as: str = key(
        Choice(("list", "flat")),
        "What a ragged field is: a list of arrays, or all values in one array, with "
        '"NAME.offsets" beside it.',
        "list",
    )
    bucket_by: str | None = key(
        Text(r"(?s:.+)", "the name of a field"),
        "Batches of samples of similar length: the length of this field as it is stored, or the "
        "whole number that it is.",
        None,
    )
    max_tokens: int = key(
        Whole(0),
        "Most rows times length of a batch of bucket_by, with what is filled up; 0: no limit.",
        0,
    )
    share: bool = key(
        Flag(),
        "Trainers that ask for the same batches share them: each batch is made once, and every "
        "trainer copies it. Loader(shared=...) decides for one trainer.",
        False,
    )
    share_window: int = key(
        Whole(0, 2 * MAX_PREFETCH),
        "A shared batch is kept for trainers that will want it as one of their next so many; for "
        "one that is further behind it is made again. 0: twice the first trainer's prefetch.",
        0,
    )
    transforms: tuple[TransformConfig, ...] = key(
        Many(Transform()), "What is done to each sample, in order.", ()
    )
    survey: dict[str, Any] | None = None
    sources: tuple[StreamConfig, ...] = ()
    stage: StageConfig | None = None
    copies: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def stored_at(self) -> str | None:
        """Where the database is read: `lmdb`, or its copy."""
        return self.copies.get(self.lmdb, self.lmdb) if self.lmdb is not None else None

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

    def mixed(self, sources: Mapping[str, StreamConfig]) -> StreamConfig:
        """This mixture with its sources. What concerns a batch each of them has from the mixture.

        Args:
            sources: All streams, by name.
        """
        if not self.of:
            return self
        shared = ("batch_size", "collate", "pad", "ragged", "ragged_as")
        own = {name: getattr(self, name) for name in shared}
        made = tuple(
            replace(
                sources[name],
                transforms=(
                    *(step for step in sources[name].transforms if step.op not in BATCH),
                    *self.transforms,
                ),
                epoch_steps=0,
                bucket_by=None,
                max_tokens=0,
                **own,
            )
            for name in self.of
        )
        return replace(self, sources=made, on_error=made[0].on_error)

    def staged(self, stage: StageConfig | None) -> StreamConfig:
        """The same with its databases copied there first, or read in place."""
        return replace(self, stage=stage, sources=tuple(s.staged(stage) for s in self.sources))

    def tail_for(self, drop_last: bool | None) -> str:
        """What becomes of the rows behind the last whole step: "repeat", "short" or "drop".

        Args:
            drop_last: What a trainer asks for. None: the stream decides.
        """
        if self.drop_last if drop_last is None else drop_last:
            return "drop"
        return "short" if self.tail == "short" else "repeat"

    def positions(self, samples: int, batch_size: int, world_size: int) -> int:
        """Positions of an epoch, over all ranks.

        Args:
            samples: Samples of the stream.
            batch_size: Rows of a batch.
            world_size: Number of ranks.
        """
        return self.epoch_steps * batch_size * world_size or samples

    def said_of_database(self) -> list[str]:
        """The keys that describe a database of another project, those that are set."""
        return [name for name in database_keys.NAMES if getattr(self, name)]

    @property
    def data_name(self) -> str:
        """What holds the samples, as errors name it: the LMDB's path, or the dataset's class."""
        first = self.parts[0].lmdb if self.parts else ""
        more = f" and {len(self.parts) - 1} more" if len(self.parts) > 1 else ""
        mixed = " + ".join(source.name for source in self.sources)
        return self.lmdb or self.dataset or f"{first}{more}" or mixed or self.name

    @property
    def collated(self) -> bool:
        """Whether a batch is made as a whole.

        That is by a collate function, from samples of different lengths, or by ops on batches.
        """
        return self.collate != "stack" or bool(
            self.pad or self.ragged or self.mixes or self.bucket_by
        )

    @property
    def multiple(self) -> int:
        """Of what the lengths of padded fields are multiples."""
        own = [rule for name, rule in self.pad.items() if name == self.bucket_by]
        return math.lcm(*(rule["multiple"] for rule in own or self.pad.values()))

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
        """Whether samples stay as their dataset returned them.

        They are for a collate function then, or for a survey of such ones.
        """
        return self.collate != "stack" or bool(self.survey and self.survey["collated"])

    def has_user_code(self) -> bool:
        """Whether samples run the user's code; pickles and those of a mixture's sources count."""
        called = any(step.call is not None for step in self.transforms)
        own = self.dataset is not None or self.allow_pickle
        said = [part.said for part in self.parts]
        own = own or any(":" in one.get("layout", "") or one.get("allow_pickle") for one in said)
        mixed = any(source.has_user_code() for source in self.sources)
        return called or own or mixed or ":" in self.layout or ":" in self.collate

    def to_json(self) -> str:
        """All settings, for `from_json` in another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> StreamConfig:
        """The stream that `to_json` wrote. Nothing is checked: no other text may be given."""
        values = json.loads(text)
        values["ragged"] = tuple(values["ragged"])
        values["parts"] = tuple(PartConfig(**part) for part in values["parts"])
        values["transforms"] = tuple(TransformConfig(**step) for step in values["transforms"])
        values["fields"] = tuple(values["fields"])
        values["stage"] = StageConfig(**values["stage"]) if values["stage"] else None
        values["sources"] = tuple(cls.from_json(json.dumps(each)) for each in values["sources"])
        return cls(**values)
