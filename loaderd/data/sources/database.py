"""One database of a stream, opened: its file, its layout, and what it must stay."""

from __future__ import annotations

from loaderd.config.stream import StreamConfig
from loaderd.data.lmdb.bulk_rows import BulkReader, bulk_of
from loaderd.data.lmdb.open_stores import open_store
from loaderd.data.lmdb.watch import Watch
from loaderd.data.sources.layouts import SAMPLED, KeyedReader, OwnLayout, choose
from loaderd_wire.slots import FieldSpec


class OpenDatabase:
    """Close it when it is read no more.

    Attributes:
        path: As the config has it.
        reader: Makes its samples.
        watch: Says whether it has changed.
    """

    def __init__(self, plan: StreamConfig, *, kept: bool = True, sampled: int = SAMPLED) -> None:
        """Open it.

        Args:
            plan: The stream's settings, of which `lmdb` is the path.
            kept: It stays open.
            sampled: How many samples its identity looks at.

        Raises:
            SourceError: It cannot be opened; the text names path and reason.
        """
        assert plan.lmdb is not None
        assert plan.stored_at is not None
        self.path = plan.lmdb
        self.store = open_store(plan.stored_at, kept=kept)
        try:
            self.reader = choose(self.store, plan, sampled)
            copied = plan.stored_at != plan.lmdb
            self.watch = Watch(self.store, self.reader.drawn, private=copied)
        except BaseException:
            self.store.close()
            raise

    @property
    def values(self) -> str:
        """A hash over some of its values; "" where the layout's identity has all of them."""
        return self.watch.drawn if isinstance(self.reader, KeyedReader) else ""

    @property
    def codec(self) -> str:
        """How its values are coded, "" if that is not known."""
        return self.reader.codec if isinstance(self.reader, KeyedReader) else ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Lines to show."""
        notes = self.reader.notes if isinstance(self.reader, KeyedReader) else ()
        if self.store.network:
            notes += (
                f"{self.path} is on a network filesystem: loaderd reads ahead, and cannot "
                "interrupt a read that hangs; [daemon] stage copies it to a local disk",
            )
        return notes

    @property
    def state(self) -> str:
        """What of the file must stay as it is, as text for `expect` in another process."""
        return self.watch.state

    def expect(self, state: str) -> str:
        """How the file differs from the `state` of another process; "" if it does not."""
        return self.watch.expect(state)

    def changed(self) -> str:
        """How the file differs from what was opened, with its path; "" if it does not."""
        return self.watch.changed()

    def told(self) -> list[str]:
        """Lines to be told, each once: what has changed and does no harm."""
        told, self.watch.notes = self.watch.notes, []
        return told

    def bulk(self, specs: tuple[FieldSpec, ...], finite: bool) -> BulkReader | None:
        """What copies rows of some fields in bulk.

        None where samples are not stored as such rows, or have names.
        """
        if not isinstance(self.reader, OwnLayout) or self.reader.stored_names:
            return None
        return bulk_of(self.reader, specs, finite)

    def close(self) -> None:
        """Let it go; nothing that was read of it may be touched after that."""
        self.store.close()
