"""From an index to keys and from values to a sample.

That is loaderd's own layout, those of other projects, and a user's class for any other LMDB.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from loaderd.config.decode_modes import DecodeModes
from loaderd.config.stream import StreamConfig
from loaderd.data.errors import SourceError, user_traceback
from loaderd.data.lmdb import record_format
from loaderd.data.lmdb.page_reader import Pages
from loaderd.data.lmdb.sniff import unknown
from loaderd.data.lmdb.store import Store, show_key
from loaderd.data.sample import BadValue, Sample, is_image_file
from loaderd.data.user_code import build, count_of, failure
from loaderd.data.whole_sample import fields_maker

SAMPLED = 64  # samples that an identity looks at, and values whose bytes it does


class Layout(Protocol):
    """What a user's class for an LMDB of any make looks like.

    It is built once a worker as Class(get, **layout_args).

    get(key: bytes, db: str | None = None) -> memoryview | None reads a value (of a named database):
    a read-only view that is valid for as long as the database is open.
    """

    def __len__(self) -> int:
        """Number of samples; the same at every start."""
        ...

    def keys(self, index: int) -> list[bytes]:
        """The keys of sample `index` in [0, len); the first one is the sample's name."""
        ...

    def parse(self, index: int, values: list[memoryview]) -> dict[str, Any]:
        """The fields of a sample from the values of its keys.

        They are arrays, numbers, str or bytes; stored images are their bytes.
        """
        ...


class OwnLayout:
    """A database that `loaderd pack` wrote.

    Attributes:
        total: Number of samples.
        identity: Names the content.
        form: "dict" or "tuple".
        classes: Names of the labels, () if there are none.
        stored_names: Samples have names of their own.
        drawn: Keys of values that stand for all of them.
    """

    name = "loaderd"

    def __init__(self, store: Store, meta: record_format.DatabaseMeta, sampled: int) -> None:
        self._store = store
        self.total = meta.count
        self.identity = f"loaderd:{meta.count}:{meta.identity}"
        self.form = meta.form
        self.classes = meta.classes
        self.stored_names = meta.named
        self.user_code = False
        self.drawn = [
            record_format.META_KEY,
            *map(record_format.sample_key, _spread(sampled - 1, meta.count)),
        ]

    def _value(self, index: int) -> memoryview:
        value = self._store.get(record_format.sample_key(index))
        if value is None:
            raise BadValue(f"{self._store.path} has no sample {index}: the database is damaged")
        return value

    def values(self, indices: Sequence[int] | np.ndarray) -> list[memoryview | None]:
        """The stored values of some samples; None for one that is not there.

        Raises:
            SourceError: A page is damaged.
        """
        keys = np.asarray(indices, ">u8").tobytes()
        return self._store.get_many([keys[at : at + 8] for at in range(0, len(keys), 8)])

    def pages(self, row_bytes: int) -> Pages | None:
        """The same without an object for each, valid while the database is open.

        None where that is not to be had.
        """
        return self._store.pages(row_bytes)

    def read(self, index: int, mode: str | DecodeModes) -> Sample:
        """Views of the file, valid while it is open; stored images stay as they are."""
        return record_format.unpack_sample(self._value(index))

    def key(self, index: int) -> str:
        """The name that `pack` stored, else the index."""
        name = record_format.name_of(self._value(index)) if self.stored_names else b""
        return show_key(name) if name else str(index)


class KeyedReader:
    """A database whose samples are named by keys: what a user's class and loaderd's have in common.

    Attributes:
        name: Of the layout.
        total: Number of samples.
        drawn: Keys of values that stand for all of them.
        pictures: Fields that are images as height x width x channels.
        named: The named database that has the samples, None for the root.
        notes: What is odd about the database, as lines that name it.
        codec: How its values are coded, "" if that is not known.
        said_beside: A hash of what other files say of the samples.
    """

    form = "dict"
    stored_names = True
    pictures: frozenset[str] = frozenset()
    named: bytes | None = None
    notes: tuple[str, ...] = ()
    codec = ""
    said_beside = ""
    user_code = False

    def __init__(
        self,
        store: Store,
        plan: StreamConfig,
        name: str,
        inner: Layout,
        total: int,
        sampled: int,
    ) -> None:
        self._store = store
        self.name = name
        self._fields_of = fields_maker(plan)
        # a sample's name is asked for just before it is read
        self._last: tuple[int, list[bytes]] = (-1, [])
        self._inner = inner
        self.total = total
        classes = getattr(self._inner, "classes", ())
        self.classes = (
            tuple(classes)
            if isinstance(classes, (list, tuple)) and all(isinstance(c, str) for c in classes)
            else ()
        )
        self._sampled = sampled
        samples: list[list[bytes]] = []
        digest = self._fingerprint(samples)
        beside = f":{self.said_beside}" if self.said_beside else ""
        self.identity = f"{name}:{self.total}:{digest}{beside}"
        step = -(-sum(map(len, samples)) // sampled)
        self.drawn = (
            [key for keys in samples[::step] for key in keys][:sampled]
            if self.named is None
            else [self.named]
        )

    def _fingerprint(self, samples: list[list[bytes]]) -> str:
        """A hash over keys and value sizes of samples that are spread over the database.

        The number of entries is in it, never path or time.

        Args:
            samples: Gets the keys of each of these samples.
        """
        digest = hashlib.sha256(f"{self._store.entries} {self.total}".encode())
        for index in _spread(self._sampled, self.total):
            try:
                keys = self._keys(index)
                samples.append(keys)
                for key in keys:
                    size = self._store.sized(key, self.named)[0]
                    digest.update(b"%d %b %d;" % (len(key), key, size))
            except SourceError:
                raise
            except BadValue as error:
                raise SourceError(f"{self.name}: {error}") from None
            except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
                raise SourceError(
                    f"{self.name}.keys({index}) failed: {failure(error)}", user_traceback(error)
                ) from None
        return digest.hexdigest()[:32]

    def _keys(self, index: int) -> list[bytes]:
        last, keys = self._last
        if last == index:
            return keys
        found = self._inner.keys(index)
        keys = list(found) if isinstance(found, (list, tuple)) else []
        for key in keys or [None]:
            if not isinstance(key, bytes):
                raise BadValue(
                    f"{self.name}.keys({index}) returned {found!r:.80}: expected a list of bytes, "
                    "at least one"
                )
        self._last = (index, keys)
        return keys

    def value(self, index: int) -> Any:
        """What the layout makes of this sample, not yet looked at."""
        values: list[Any] = []
        for key in self._keys(index):
            value = self._store.get(key, self.named)
            if value is None:
                raise BadValue(f"{self._store.path} has no key {show_key(key)!r}")
            values.append(value)
        return self._inner.parse(index, values)

    def read(self, index: int, mode: str | DecodeModes) -> Sample:
        """Raises BadValue for a sample that is not there, or is no dict of fields."""
        return self.take(self.value(index), mode)

    def take(self, value: Any, mode: str | DecodeModes) -> Sample:
        """Such a value as a sample."""
        if not isinstance(value, Mapping):
            raise BadValue(
                f"{self.name}.parse() returned {type(value).__name__}: expected a dict of fields"
            )
        sample, _ = self._fields_of(value, mode)
        for name, value in sample.items():
            if isinstance(value, (bytes, memoryview)) and is_image_file(value):
                sample.encoded.add(name)
            elif name in self.pictures and isinstance(value, np.ndarray):
                sample.images.add(name)
        return sample

    def key(self, index: int) -> str:
        """The first of its keys, as text or hex."""
        return show_key(self._keys(index)[0])


class UserLayout(KeyedReader):
    """A database read through a user's `Layout` class."""

    user_code = True

    def __init__(self, store: Store, plan: StreamConfig, sampled: int) -> None:
        inner: Layout = build(plan.layout, "layout", store.get, **plan.layout_args)
        total = count_of(inner, plan.layout, "layout")
        super().__init__(store, plan, plan.layout, inner, total, sampled)


def _spread(most: int, total: int) -> list[int]:
    """At most so many indices, spread evenly over [0, total), the first and the last among them."""
    count = min(most, total)
    return [at * (total - 1) // max(1, count - 1) for at in range(count)]


def choose(store: Store, plan: StreamConfig, sampled: int = SAMPLED) -> OwnLayout | KeyedReader:
    """The layout to read this database with.

    Args:
        store: The database.
        plan: What the config says of it.
        sampled: How many samples stand for all of them.

    Raises SourceError; for an unknown one it tells what was seen and how to go on.
    """
    if ":" in plan.layout:
        return UserLayout(store, plan, sampled)
    record = store.get(record_format.META_KEY)
    own = record is not None and record_format.is_meta(record)
    if not own and store.get(record_format.PART_KEY) is not None:
        raise SourceError(
            f"{store.path}: is an unfinished `loaderd pack`: run the same command again; it "
            "continues"
        )
    if plan.layout not in ("auto", "loaderd") or (plan.layout == "auto" and not own):
        # imported here, since a database of loaderd's own needs none of it
        from loaderd.data.sources.known_layout import KnownLayout

        return KnownLayout(store, plan, sampled)
    if record is None or not own:
        raise SourceError(unknown(store))
    return _own_layout(store, plan, record, sampled)


def _own_layout(store: Store, plan: StreamConfig, record: memoryview, sampled: int) -> OwnLayout:
    said = plan.said_of_database()
    if said:
        raise SourceError(
            f"{store.path}: {said[0]} is set, and goes with databases of other projects: this one "
            f"`loaderd pack` wrote; leave {said[0]} out"
            + "; Loader(fields=[...]) chooses among the fields of a batch"
            * (said[0] == "fields")
        )
    try:
        meta = record_format.unpack_meta(record)
    except record_format.DamagedRecord as error:
        raise SourceError(f"{store.path}: {error}") from None
    if meta.count < 1:
        raise SourceError(f"{store.path}: holds no samples")
    if (
        store.get(record_format.sample_key(meta.count - 1)) is None
        or store.get(record_format.sample_key(meta.count)) is not None
    ):
        raise SourceError(
            f"{store.path}: its metadata says {meta.count} samples, which do not match its "
            "entries: it is damaged, pack it again"
        )
    return OwnLayout(store, meta, sampled)
