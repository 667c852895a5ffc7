"""Was it the kernel's OOM killer?

Told by a count of the cgroup that rises a moment before its victim is dead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

WINDOW_S = 2.0  # a rise so long before a SIGKILL may be its cause


class OomWatch:
    """Remembers the count of the last few seconds."""

    def __init__(self, count: Callable[[], int]) -> None:
        """Read the count.

        Args:
            count: Returns the cgroup's count of processes that were killed for memory.
        """
        self._count = count
        self._past: deque[tuple[float, int]] = deque([(float("-inf"), count())])

    def look(self, now_s: float) -> None:
        """Read the count, once in a window at most; to be called while jobs run."""
        if now_s - self._past[-1][0] >= WINDOW_S:
            # It only rises: 0 is also what is read when there is no descriptor to read it with.
            self._past.append((now_s, max(self._count(), self._past[-1][1])))
            while len(self._past) > 1 and now_s - self._past[1][0] >= WINDOW_S:
                self._past.popleft()

    def rose(self, now_s: float) -> bool:
        """Whether it rose within the last window or two, less what earlier calls were told of.

        Called once for each process killed.
        """
        now = self._count()
        at_s, before = self._past[0]
        if now <= before:
            return False
        # One rise is one victim: the next process that is killed needs a rise of its own.
        self._past = deque(
            [
                (at_s, before + 1),
                *((then_s, max(count, before + 1)) for then_s, count in list(self._past)[1:]),
            ]
        )
        return True
