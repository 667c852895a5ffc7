"""Whether an open database still is what its stream was opened with, in whatever process."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, fields

from loaderd.data.errors import SourceError
from loaderd.data.lmdb.file_facts import FileFacts, open_file, read_facts
from loaderd.data.lmdb.store import Store

TOLD = ("size", "last_txnid", "entries")  # what of the facts says something to people
TIMES = ("mtime_ns", "ctime_ns")
# a file's times are this coarse at worst, so that a younger one may be written to and keep them
SETTLED_NS = 2_000_000_000


class Watch:
    """One open database, and what it must stay.

    Attributes:
        notes: Lines to be told, about what has changed and does no harm.
    """

    def __init__(self, store: Store, keys: Sequence[bytes], *, private: bool = False) -> None:
        """Remember the file as it is.

        Args:
            store: The open database.
            keys: Of the values that stand for all of them. They are looked at again when nothing
                but the file's times has changed.
            private: Only loaderd has a use for the file, and does not write to it: who has written
                to it has damaged it, whatever these values are.
        """
        self._store = store
        self._private = private
        self._keys = tuple(keys)
        self._drawn = store.draw(keys)
        self._know(store.facts)
        self.notes: list[str] = []

    def _know(self, facts: FileFacts) -> None:
        self._known = facts
        self._settled = time.time_ns() - facts.ctime_ns > SETTLED_NS

    @property
    def drawn(self) -> str:
        """A hash over the values that stand for all of them, as they were when it was opened."""
        return self._drawn

    @property
    def state(self) -> str:
        """What must stay as it is, as text for `expect` in another process."""
        return json.dumps({"facts": asdict(self._known), "drawn": self._drawn})

    def expect(self, state: str) -> str:
        """Compare the file from now on with what it was in another process.

        Args:
            state: `state` of the Watch there.

        Returns:
            What is not as it was there; "" if nothing.
        """
        other = json.loads(state)
        self._known, self._drawn, self._settled = FileFacts(**other["facts"]), other["drawn"], False
        # What this process has mapped comes first: it may have been opened for another stream,
        # before the file was what it is.
        return _differing(self._known, self._store.facts, self._store.file) or self.changed()

    def changed(self) -> str:
        """Look whether the file is what it was. That takes a few microseconds.

        Returns:
            What changed, with path, old and new; "" if nothing.
        """
        try:
            now = self._store.look()
            if now == self._known and self._settled:
                return ""
            text = _differing(self._known, now, self._store.file)
            if not text and self._private and now.mtime_ns != self._known.mtime_ns:
                text = f"{self._store.file}: was written to: its modification time has changed"
            if not text and self._store.draw(self._keys) != self._drawn:
                text = self._overwritten()
        except SourceError as error:
            return f"{error} (it had {self._known.size} bytes when it was opened)"
        if text:
            return text
        if any(getattr(now, name) != getattr(self._known, name) for name in TIMES):
            self.notes.append(
                f"{self._store.file}: its modification times have changed (touch, chmod?); "
                f"{len(self._keys)} of its values were compared and are the same, so the "
                "stream continues. "
                "If the file was written to, drain the daemon and start it again"
            )
        self._know(now)
        return ""

    def _overwritten(self) -> str:
        return (
            f"{self._store.file}: was overwritten by another database of the same size: its "
            "values differ from those when it was opened"
        )


def changed_since(path: str, state: str) -> str:
    """What of a file, its times included, is not as it was. The database is not opened.

    Args:
        path: Path of the database.
        state: `state` of a Watch, or "".

    Returns:
        What changed; "" if nothing, or if there is no state.
    """
    if not state:
        return ""
    was = FileFacts(**json.loads(state)["facts"])
    try:
        fd, file = open_file(path)
        try:
            now = read_facts(fd, file)
        finally:
            os.close(fd)
    except SourceError as error:
        return str(error)
    return _differing(was, now, file) or (
        f"{file}: was written to: its times have changed" if now != was else ""
    )


def _differing(was: FileFacts, now: FileFacts, file: str) -> str:
    names = [
        f.name
        for f in fields(FileFacts)
        if f.name not in TIMES and getattr(was, f.name) != getattr(now, f.name)
    ]
    if not names:
        return ""
    if "inode" in names or "device" in names:
        return f"{file}: was replaced by another file (inode {was.inode} -> {now.inode})"
    words = [
        f"{name} {getattr(was, name)} -> {getattr(now, name)}" for name in names if name in TOLD
    ]
    return f"{file}: was written to: {', '.join(words) or 'its meta pages have changed'}"
