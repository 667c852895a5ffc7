"""What a loader has done so far, in numbers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TypedDict


class LoaderStats(TypedDict):
    """What `Loader.stats` returns; all seconds and counts are since the Loader was made."""

    batches: int
    waited_s: float
    started_s: float
    wait_fraction: float
    bytes: int
    copied_batches: int
    passed_batches: int


@dataclass(slots=True)
class Stats:
    """batches: yielded. waited_s: seconds in which a daemon, or a batch inside next(), was waited for. started_s: of these, until a daemon that
    was not ready yet had started. copied: batches copied out because too many are held. passed: batches that had lost all their rows, and were
    passed over. bytes: of the arrays yielded.
    """

    batches: int = 0
    waited_s: float = 0.0
    started_s: float = 0.0
    bytes: int = 0
    copied: int = 0
    passed: int = 0
    _since_s: float = 0.0

    def started(self) -> None:
        if not self._since_s:
            self._since_s = time.monotonic()

    def connected(self, waited_s: float, *, started: bool) -> None:
        """A session was waited for. started: until then no daemon was ready to serve."""
        self.waited_s += waited_s
        if started:
            self.started_s += waited_s

    def picture(self) -> LoaderStats:
        """wait_fraction: of the time since the first next()."""
        elapsed_s = time.monotonic() - self._since_s if self._since_s else 0.0
        fraction = min(1.0, self.waited_s / elapsed_s) if elapsed_s > 0 else 0.0
        return {
            "batches": self.batches,
            "waited_s": self.waited_s,
            "started_s": self.started_s,
            "wait_fraction": fraction,
            "bytes": self.bytes,
            "copied_batches": self.copied,
            "passed_batches": self.passed,
        }
