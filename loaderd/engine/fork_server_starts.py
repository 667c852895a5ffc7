"""What came of the starts of fork servers, and so how the next one is tried."""

from __future__ import annotations

LEVELS = ("user", "base", "none")  # what is imported ahead; each failure takes the next
# before the n-th start in a row that came to nothing
BACKOFF_S = (0.0, 0.0, 0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
HOPELESS = 4  # such starts after which whoever waits for a worker is told


class ForkServerStarts:
    """Counts starts in a row that came to nothing; each imports less ahead than the one before.

    What is imported ahead never becomes more again.

    Attributes:
        fault: Why the present start comes to nothing, as far as it is known; "".
        last_words: What the last one printed at its end.
    """

    def __init__(self, *, spawn: bool) -> None:
        """Begin without a start.

        Args:
            spawn: Nothing is to be imported ahead, since no worker would have it.
        """
        self._level = LEVELS.index("none" if spawn else "user")
        self._fails = 0
        self._slow = False
        self.fault = ""
        self.last_words = ""

    @property
    def preload(self) -> str:
        """What the next one imports ahead, as Setup.preload."""
        return LEVELS[self._level]

    @property
    def pause_s(self) -> float:
        """Seconds to wait before the next start."""
        return BACKOFF_S[min(self._fails, len(BACKOFF_S) - 1)]

    @property
    def hopeless(self) -> bool:
        """Whether so many came to nothing that whoever waits is told."""
        return self._fails >= HOPELESS

    def begin(self) -> None:
        """One is started."""
        self.fault, self._slow = "", False

    def too_slow(self, fault: str) -> None:
        """The present one has not become ready in time."""
        self.fault, self._slow = fault, True

    def ready(self) -> None:
        """The present one is ready."""
        self._fails = 0

    def failed(self, pid: int, cause: str) -> tuple[str, str]:
        """The present one has ended before it was ready.

        Args:
            pid: Of its process.
            cause: How that ended.

        Returns:
            (level, text) for the log.
        """
        self._fails += 1
        preload = self.preload
        self._level = min(self._level + 1, len(LEVELS) - 1)
        # That user code cannot be imported here is no news: the workers will say it, with the
        # traceback.
        quiet = preload == "user" and self.fault and not self._slow
        return (
            "debug" if quiet else "warning",
            f"fork server {pid} ended while importing {preload!r} ({cause}): "
            f"{self.fault or self.last_words or 'no reason given'}",
        )
