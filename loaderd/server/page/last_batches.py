"""What a model sees: some rows of the last batch of each stream, as they lie in its slot."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgpack

from loaderd.core.actions import Action, SendMessage
from loaderd.core.events import Event
from loaderd.server.page.pictures import ROWS, Placed, described, number, picture, texts
from loaderd.server.registered_session import RegisteredSession
from loaderd_wire.messages import Descriptor, Segment
from loaderd_wire.slots import slot_layout

MAX_CHUNK = 1 << 20  # bytes of a tail that are looked at
# What may come of memory that a trainer has written to: it says where arrays lie, and what their
# dtypes are. Nothing is told of it; the page shows the batch before.
WRITTEN_OVER = (
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    OverflowError,
    OSError,
    RecursionError,
    struct.error,
)

_unpackb: Callable[..., Any] = msgpack.unpackb
# (segment, offset, bytes) -> the bytes; too few of them where there is no such segment
ReadSegment = Callable[[int, int, int], bytes]


@dataclass(slots=True)
class ShownBatch:
    """What is shown of a stream.

    Attributes:
        session: Number of the session whose batch it is.
        which: Its segment, slot and generation.
        rows: Some rows of it, for the page.
        told: All readers have it.
    """

    session: int
    which: tuple[int, int, int]
    rows: dict[str, Any]
    told: bool = False


class LastBatches:
    """Reads the slots in which the last batches lie. Nobody writes there in the same turn."""

    def __init__(
        self,
        sessions: Mapping[int, RegisteredSession],
        latest: Callable[[], Mapping[int, tuple[Descriptor, Segment]]],
        read: ReadSegment,
        watch: Callable[[Callable[[Event, list[Action]], object] | None], object],
    ) -> None:
        """Read nothing yet.

        Args:
            sessions: By number.
            latest: The last batch that each session was told of and still has, by session.
            read: Reads a segment.
            watch: Has the scheduler's answers shown to a function from now on; None: to nobody.
        """
        self._sessions = sessions
        self._latest = latest
        self._read = read
        self._watch = watch
        self._known: dict[str, ShownBatch] = {}
        self._without: set[str] = set()  # streams with trainers, none of which has a batch

    def news(self) -> list[dict[str, Any]]:
        """Some rows of the last batch of each stream that has another one than at the last call.

        Where a stream has several trainers, it is one of them, as long as that is there. A trainer
        that waits has given back what it got: then the next batch that it is told of is looked at.
        """
        if self._look():
            self._watch(self._told)
        news = [known for known in self._known.values() if not known.told]
        for known in news:
            known.told = True
        return [known.rows for known in news]

    def all(self) -> list[dict[str, Any]]:
        """The same of every stream, as far as it was ever seen, and without a change of `news`."""
        self._look()
        return [known.rows for known in self._known.values()]

    def _told(self, event: Event, made: list[Action]) -> None:
        """Look at a batch in the turn in which a trainer is told of it that has no other."""
        if any(
            isinstance(a, SendMessage)
            and isinstance(a.message, Descriptor)
            and a.session in self._sessions
            and self._sessions[a.session].hello.stream in self._without
            for a in made
        ):
            self._watch(None)
            self._look()

    def _look(self) -> set[str]:
        """Look at the batches that there are.

        Returns:
            The streams that have a trainer and no batch.
        """
        latest = self._latest()
        chosen: dict[str, int] = {}
        for number_ in latest:
            session = self._sessions.get(number_)
            if session is not None:
                known = self._known.get(session.hello.stream)
                if known is None or known.session not in latest or known.session == number_:
                    chosen.setdefault(session.hello.stream, number_)
        for name, number_ in chosen.items():
            told, segment = latest[number_]
            which, known = (told.segment, told.slot, told.generation), self._known.get(name)
            if not told.filled or (known is not None and known.which == which):
                continue
            try:
                rows = self._rows(self._sessions[number_], told, segment)
            except WRITTEN_OVER:
                continue
            self._known[name] = ShownBatch(number_, which, rows)
        self._without = {each.hello.stream for each in self._sessions.values()} - chosen.keys()
        return self._without

    def _rows(
        self, session: RegisteredSession, told: Descriptor, segment: Segment
    ) -> dict[str, Any]:
        fields, facts = session.admitted.fields, session.stream.facts
        begin = told.slot * segment.slot_bytes

        def read(offset: int, size: int) -> bytes:
            data = self._read(told.segment, begin + offset, size)
            if len(data) != size:
                raise ValueError(f"segment {told.segment} has gone")
            return data

        chunks = [
            _unpackb(read(chunk.offset, chunk.size), unicode_errors="replace")
            for chunk in told.chunks
            if chunk.first < ROWS and chunk.size <= MAX_CHUNK
        ]
        if facts.collated:
            found = [described(spec, chunks) for spec in fields]
            placed = [each for each in found if each is not None]
        else:
            layout = slot_layout(
                fields,
                session.admitted.shape.batch_size,
                tail_row_bytes=segment.tail_row_bytes,
                body_bytes=segment.body_bytes,
            )
            placed = [
                Placed(spec, offset)
                for spec, offset in zip(fields, layout.offsets, strict=True)
                if spec.kind == "array"
            ]
        rows = min(told.filled, ROWS)
        indices = struct.unpack(f"<{rows}q", read(0, 8 * rows))
        keys = texts(chunks, "keys")
        words = {
            spec.name: texts(chunks, "text", spec.name) for spec in fields if spec.kind != "array"
        }
        return {
            "stream": session.hello.stream,
            "epoch": told.epoch,
            "position": told.start,
            "rows": told.filled,
            "samples": [
                {
                    "index": indices[row],
                    "key": keys[row] if row < len(keys) else str(indices[row]),
                    **_sample(placed, words, row, read, facts.classes),
                }
                for row in range(rows)
            ],
        }


def _sample(
    placed: list[Placed],
    words: Mapping[str, list[str]],
    row: int,
    read: Callable[[int, int], bytes],
    classes: tuple[str, ...],
) -> dict[str, Any]:
    """The pictures of a row, and what else there is to say of it."""
    pictures: dict[str, Any] = {}
    values: dict[str, str] = {}
    for each in placed:
        name = each.spec.name
        if (shown := picture(each, row, read)) is not None:
            pictures[name] = shown
        elif (value := number(each, row, read)) is not None:
            values[name] = f"{value:.6g}" if isinstance(value, float) else str(value)
            if name == "label" and isinstance(value, int) and 0 <= value < len(classes):
                values[name] += f" ({classes[value]})"
        else:
            values[name] = f"{each.spec.dtype[1:]} {list(each.spec.shape)}"
    for name, each_row in words.items():
        if row < len(each_row):
            values[name] = each_row[row]
    return {"pictures": pictures, "values": values}
