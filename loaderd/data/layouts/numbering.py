"""The numbers in the keys of a database: without gaps, or found by a pass over all keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaderd.data.layouts.key_index import FEW
from loaderd.data.layouts.keys import GappedKeys, KeyFormat, Keys, NumberedKeys

if TYPE_CHECKING:
    from loaderd.data.layouts.base import Database

PROBED = 64  # keys that are looked for before it is believed that none is missing


def numbered(
    db: Database, form: KeyFormat, *, entries: int, stated: int | None = None
) -> tuple[Keys, list[str]]:
    """The keys that this pattern has in a database, and what is odd about them.

    Where the numbers have no gaps, which the number of entries and some keys tell, nothing is read
    through. Else they are found once, and kept in an index file.

    Args:
        db: The database.
        form: The pattern.
        entries: How many keys of this pattern there are, if all others are known; else -1.
        stated: The number of samples that the database says it has.
    """
    first = 0 if db.has(form.key(0)) else 1
    if stated is None:
        whole = entries > FEW and _alone(db, form) and _whole(db, form, first, entries)
    else:
        whole = stated == entries > 0 and _whole(db, form, first, stated)
    if whole:
        return NumberedKeys(form, first, entries), []
    found = db.indexes.runs(form)
    notes: list[str] = []
    if stated is not None and stated != found.count:
        notes.append(f"it says that it has {stated:,} samples, and has {found.count:,}")
    if not found.count:
        return NumberedKeys(form, 0, 0), notes
    low, high = int(found.firsts[0]), found.last
    if len(found.firsts) == 1:
        return NumberedKeys(form, low, found.count), notes
    gaps = len(found.firsts) - 1
    missing = high - low + 1 - found.count
    shown = ", ".join(str(found[int(before) - 1] + 1) for before in found.before[1:4])
    notes.append(
        f"{missing:,} of its numbers from {low:,} to {high:,} are missing: "
        f"{shown}{', ...' if gaps > 3 or missing > gaps else ''}"
    )
    return GappedKeys(form, found), notes


def _whole(db: Database, form: KeyFormat, first: int, count: int) -> bool:
    """Whether the keys of so many numbers seem to be there, and not the next one."""
    probed = {first + at * (count - 1) // (PROBED - 1) for at in range(PROBED)}
    there = all(db.has(form.key(number)) for number in probed)
    return there and not db.has(form.key(first + count))


def _alone(db: Database, form: KeyFormat) -> bool:
    """Whether the first and the last keys are all of this pattern."""
    return all(form.number(key) is not None for key, _ in (*db.first(), *db.last()))
