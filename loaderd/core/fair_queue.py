"""Who gets the next job: the session or group with the fewest batches ahead of its trainer."""

from __future__ import annotations

import heapq

from loaderd.core.batch_window import PlannedBatch
from loaderd.core.slot_owner import SlotOwner


class FairQueue:
    """A heap of the sessions with work. Each step costs O(log n) in their number.

    An entry is out of date when its session has changed since; such an entry is passed over.
    """

    def __init__(self) -> None:
        # (batches ahead, turn, session, version, first batch with work). A version occurs once a
        # session.
        self._heap: list[tuple[int, int, int, int, PlannedBatch]] = []
        self._sessions: dict[int, SlotOwner] = {}
        self._turns: dict[int, int] = {}
        self._count = 0

    def __len__(self) -> int:
        """Number of entries, those that are out of date included."""
        return len(self._heap)

    def put(self, session: SlotOwner) -> None:
        """Bring a session's entry up to date.

        To be called whenever its work, or what is ahead of its trainer, may have changed.
        """
        session.version += 1
        if session.gone:
            self._sessions.pop(session.session, None)
            self._turns.pop(session.session, None)
        else:
            self._sessions[session.session] = session
        item = session.window.first_work()
        if item is not None:
            entry = (
                item.k - session.window.taken,
                self._turns.get(session.session, 0),
                session.session,
                session.version,
                item,
            )
            heapq.heappush(self._heap, entry)
        if len(self._heap) > 4 * len(self._sessions) + 64:
            self._heap = [entry for entry in self._heap if self._fresh(entry)]
            heapq.heapify(self._heap)

    def peek(self) -> tuple[SlotOwner, PlannedBatch] | None:
        """The session to serve next and the batch it has work for; None if there is no work."""
        while self._heap:
            entry = self._heap[0]
            session = self._sessions.get(entry[2])
            if session is not None and session.version == entry[3]:
                return session, entry[4]
            heapq.heappop(self._heap)
        return None

    def pass_over(self, session: SlotOwner) -> None:
        """A session is not served now, whatever its work, until it is put again."""
        session.version += 1

    def served(self, session: SlotOwner) -> None:
        """A session has got a job: among equals it is the last one now."""
        self._count += 1
        self._turns[session.session] = self._count
        self.put(session)

    def _fresh(self, entry: tuple[int, int, int, int, PlannedBatch]) -> bool:
        session = self._sessions.get(entry[2])
        return session is not None and session.version == entry[3]
