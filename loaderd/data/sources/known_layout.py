"""A database of another project as a source: its layout found, or named, and opened."""

from __future__ import annotations

from dataclasses import fields

from loaderd.config.stream import StreamConfig
from loaderd.config.types import near
from loaderd.data.errors import SourceError
from loaderd.data.layouts.base import Database, LayoutOptions, StoredLayout
from loaderd.data.layouts.table import NAMES, named, recognised
from loaderd.data.lmdb.sniff import unknown
from loaderd.data.lmdb.store import Store
from loaderd.data.sources.layouts import KeyedReader
from loaderd.data.values.arrays import UnreadableValue


class KnownLayout(KeyedReader):
    """A database of another project, in one of the layouts of `data/layouts/`.

    Attributes:
        inner: The layout.
    """

    def __init__(self, store: Store, plan: StreamConfig, sampled: int) -> None:
        db = Database(store, options_of(plan))
        self.inner = opened(db, plan.layout)
        self.pictures, self.named = self.inner.pictures, self.inner.named
        self.user_code = plan.allow_pickle
        count, there = db.options.count, len(self.inner)
        if not there or count > there:
            raise SourceError(
                f"{store.path}: count = {count:,}: it has {there:,} samples"
                if count
                else f"{store.path}: holds no samples"
            )
        self.said_beside = self.inner.said_beside
        self.codec = self.inner.codec.name if self.inner.codec is not None else ""
        notes = (*self.inner.notes, *db.indexes.notes)
        self.notes = tuple(f"{store.path}: {note}" for note in notes)
        super().__init__(store, plan, self.inner.name, self.inner, count or there, sampled)


def options_of(plan: StreamConfig) -> LayoutOptions:
    """What the stream says of its database."""
    return LayoutOptions(**{each.name: getattr(plan, each.name) for each in fields(LayoutOptions)})


def opened(db: Database, name: str) -> StoredLayout:
    """The layout of this name on this database, or with "auto" the one that is recognised.

    Raises SourceError, for an unknown database with what was seen and how to go on.
    """
    if name != "auto" and named(name) is None:
        raise SourceError(
            f'layout = "{name}": not in this version{near(name, NAMES)}; there are auto, loaderd, '
            f'{", ".join(NAMES)} and "package.module:Class"'
        )
    found = recognised(db) if name == "auto" else named(name)
    if found is None:
        raise SourceError(unknown(db.store))
    if name != "auto" and not found.may_be_said and not found.seen(db):
        other = recognised(db)
        looks = f'; it looks like layout = "{other.name}"' if other is not None else ""
        raise SourceError(
            f'{db.path}: layout = "{name}": is not of this layout, which is recognised by '
            f"{found.marks.replace('`', '')}{looks}"
        )
    try:
        return found(db)
    except UnreadableValue as error:
        raise SourceError(f'{db.path}: layout = "{found.name}": {error}') from None
