"""Workers on other hosts: which of their seats are tried, and when.

The stream does without them. A seat that cannot be filled is tried again, later each time. While
nothing shows that the other hosts can be reached, one seat is tried for all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from loaderd.core.pool_worker import PoolWorker, WorkerState

FIRST_S, MOST_S = 1.0, 60.0  # before a seat is tried again; after each failure in a row twice that
SETTLED_S = 10.0  # for which the number at work is the same before the log is told of it


class RemoteSeats:
    """Places of the pool that are on other hosts, numbered from 0.

    Attributes:
        size: How many there are.
        up: Numbers of the workers that are at work there.
        trouble: What became of the last one that died; "" if one has done a job since.
    """

    def __init__(self, size: int) -> None:
        """Begin without workers.

        Args:
            size: How many seats there are; 0 for none.
        """
        self.size = size
        self.up: set[int] = set()
        self.trouble = ""
        self._doing: dict[int, str] = {}  # before they are ready, by worker
        self._most = ""  # what most of them do, with their number
        self._told = self._seen = 0, "", ""  # `_now` as the log was told, and as it was seen last
        self._seen_s = 0.0  # since when
        self._begun = False
        self._reached = False  # by the latest worker of which that is known
        self._misses = 0  # workers in a row that did not
        self._vacant = dict.fromkeys(range(size))  # the one that is tried next first
        self._failures: dict[int, int] = {}  # of workers since one did a job, by seat

    @property
    def starting(self) -> int:
        """Seats whose workers are not ready, or are to end."""
        return self.size - len(self._vacant) - len(self.up)

    def begin(self) -> None:
        """From now on seats are tried."""
        self._begun = True

    def next(self) -> int | None:
        """A vacant seat that is to be tried now; None if there is none."""
        if not (self._begun and self._vacant and (self._reached or self.starting == 0)):
            return None
        return next(iter(self._vacant))

    def take(self, seat: int) -> float:
        """A worker is started in a vacant seat.

        Returns:
            Seconds for which its start has to wait.
        """
        del self._vacant[seat]
        failures = max(self._misses, self._failures.get(seat, 0))
        return min(MOST_S, FIRST_S * 2 ** (min(failures, 10) - 1)) if failures else 0.0

    def reached(self) -> None:
        """A worker that is starting has reached the other hosts."""
        self._reached, self._misses = True, 0

    def does(self, worker: int, doing: str) -> None:
        """A worker that is not ready does this, such as "waiting for Ray to find room"."""
        self._doing[worker] = doing
        self._count()

    def sort(self, w: PoolWorker) -> None:
        """Note what has become of a worker."""
        self._forget(w.worker)
        if w.life is WorkerState.UP:
            self.reached()
            self.up.add(w.worker)
        else:
            self.up.discard(w.worker)

    def proven(self, seat: int) -> None:
        """A worker has done a job."""
        self._failures.pop(seat, None)
        self.trouble = ""

    def left(self, w: PoolWorker, cause: str) -> None:
        """The worker of a seat is dead, or given up: the seat is vacant.

        Args:
            w: The worker.
            cause: What became of it; "" if it was to end.
        """
        self.up.discard(w.worker)
        self._forget(w.worker)
        if w.life is WorkerState.STARTING and not w.reached and not self.up:
            self._reached, self._misses = False, self._misses + 1
        if cause:
            self.trouble = cause
            self._failures[w.pool_slot] = self._failures.get(w.pool_slot, 0) + 1
        self._vacant[w.pool_slot] = None

    def news(self, local: int, now_s: float) -> tuple[str, str] | None:
        """What the log is to be told of them; None if there is nothing new.

        A trouble is told at once. How many are at work is told when that does not change any more.

        Args:
            local: Workers on this host.
            now_s: Time of the event.

        Returns:
            (level, text)
        """
        now = up, trouble, doing = self._now
        if now != self._seen:
            self._seen, self._seen_s = now, now_s
        if now == self._told:
            return None
        complete = up == self.size and not self.trouble
        settled = complete or now_s - self._seen_s >= SETTLED_S
        if not settled and (not trouble or trouble == self._told[1]):
            return None
        self._told = now
        ones = f"{local} local {'ones' if local > 1 else 'one'}"
        rest = f", beside {ones}" if up and not (trouble or doing) else f"; it goes on with {ones}"
        return "warning" if trouble else "info", self.described() + rest

    def described(self) -> str:
        """How many are at work, and what keeps the others from it, in one line."""
        up, trouble, doing = self._now
        why = trouble or doing
        workers = f"{self.size} remote worker{'s' if self.size > 1 else ''}"
        return f"{workers}, {up} at work" + (f": {why}" if why else "")

    @property
    def _now(self) -> tuple[int, str, str]:
        """How many are at work, the trouble of the others, and what most of them do meanwhile.

        Where none are missing the last two are "".
        """
        if len(self.up) == self.size:
            return self.size, "", ""
        return len(self.up), self.trouble, self._most

    def _forget(self, worker: int) -> None:
        if self._doing.pop(worker, None) is not None:
            self._count()

    def _count(self) -> None:
        """Here and not in `_now`, which each event asks for."""
        most = Counter(self._doing.values()).most_common(1)
        self._most = f"{most[0][1]} {most[0][0]}" if most else ""

    def invariants(self, workers: Iterable[PoolWorker]) -> None:
        """Check the tables.

        Args:
            workers: Those on other hosts.

        Raises:
            AssertionError: They contradict each other, or a seat is left to itself.
        """
        seated = [w for w in workers if w.pool_slot >= 0]
        seats = sorted((*(w.pool_slot for w in seated), *self._vacant))
        assert seats == list(range(self.size)), f"seats {seats} of {self.size}"
        up = {w.worker for w in seated if w.life is WorkerState.UP}
        assert up == self.up, f"remote workers {up} are at work, not {self.up}"
        assert self.next() is None, f"seat {self.next()} is vacant, and nobody tries it"
