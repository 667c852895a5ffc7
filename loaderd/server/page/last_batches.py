"""What a model sees: some rows of the last batch of each stream, as they lie in its slot."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from loaderd.core.actions import Action, SendMessage
from loaderd.core.events import Event
from loaderd.server.page.batch_rows import some_rows
from loaderd.server.registered_session import RegisteredSession
from loaderd_wire.messages import Descriptor, Segment

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
    """Reads the slots in which the last batches lie. Nobody writes there in the same turn.

    In one turn it reads one batch. The streams come one after the other.
    """

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
        self._round: list[str] = []  # streams that `news` has yet to come to
        self._without: set[str] = set()  # streams with trainers, none of which has a batch
        self._fault: Exception | None = None  # met in `_told`, where nobody expects one

    @property
    def behind(self) -> bool:
        """Whether there are streams that `news` has yet to come to."""
        return bool(self._round)

    def news(self) -> list[dict[str, Any]]:
        """Some rows of the last batch of one stream, or nothing.

        It is the next stream that has another batch than at the last call for it. Where a stream
        has several trainers, it is one of them, as long as that is there. A trainer that waits has
        given back what it got: then the next batch that it is told of is looked at.

        Raises:
            Exception: What such a look has met, too.
        """
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault
        chosen = self._chosen()
        self._without = {each.hello.stream for each in self._sessions.values()} - chosen.keys()
        if self._without:
            self._watch(self._told)
        self._round = self._round or sorted(chosen.keys() | self._known.keys())
        while self._round:
            name = self._round.pop()
            looked = name in chosen and self._look(name, *chosen[name])
            known = self._known.get(name)
            if known is not None and not known.told:
                known.told = True
                return [known.rows]
            if looked:
                break
        return []

    def all(self) -> list[dict[str, Any]]:
        """What a new reader gets at once: of the first stream. The others are news once more."""
        chosen = self._chosen()
        first, *others = sorted(chosen.keys() | self._known.keys()) or [""]
        if first in chosen:
            self._look(first, *chosen[first])
        for name in self._known.keys() & set(others):
            self._known[name].told = False
        self._round = self._round or others
        return [self._known[first].rows] if first in self._known else []

    def _told(self, event: Event, made: list[Action]) -> None:
        """Look at a batch in the turn in which a trainer is told of it that has no other."""
        for action in made:
            if isinstance(action, SendMessage) and isinstance(action.message, Descriptor):
                session = self._sessions.get(action.session)
                name = session.hello.stream if session is not None else ""
                if name in self._without:
                    self._watch(None)
                    try:
                        chosen = self._chosen()
                        if name in chosen:
                            self._look(name, *chosen[name])
                    except Exception as error:  # noqa: BLE001 - it is the scheduler's turn
                        self._fault = error
                    return

    def _chosen(self) -> dict[str, tuple[int, Descriptor, Segment]]:
        """Of each stream that has one the session and the batch to look at."""
        latest = self._latest()
        chosen: dict[str, tuple[int, Descriptor, Segment]] = {}
        for number, (told, segment) in latest.items():
            session = self._sessions.get(number)
            if session is not None:
                known = self._known.get(session.hello.stream)
                if known is None or known.session not in latest or known.session == number:
                    chosen.setdefault(session.hello.stream, (number, told, segment))
        return chosen

    def _look(self, name: str, number: int, told: Descriptor, segment: Segment) -> bool:
        """Read a batch of a stream. False: there was nothing to read, or it is known already."""
        which, known = (told.segment, told.slot, told.generation), self._known.get(name)
        if not told.filled or (known is not None and known.which == which):
            return False
        begin = told.slot * segment.slot_bytes

        def read(offset: int, size: int) -> bytes:
            data = self._read(told.segment, begin + offset, size)
            if len(data) != size:
                raise ValueError(f"segment {told.segment} has gone")
            return data

        with contextlib.suppress(*WRITTEN_OVER):
            rows = some_rows(self._sessions[number], told, segment, read)
            self._known[name] = ShownBatch(number, which, rows)
        return True
