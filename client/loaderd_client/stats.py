"""What a loader has done so far, in numbers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TypedDict

NO_VERDICT = "starting: too little has been measured yet"


class LoaderStats(TypedDict):
    """What `Loader.stats` returns; all seconds and counts are since the Loader was made."""

    batches: int
    waited_s: float
    started_s: float
    wait_fraction: float
    bytes: int
    copied_batches: int
    passed_batches: int
    device_bytes: int
    device_copy_s: float
    device_gb_per_s: float
    verdict: str
    shared: bool


@dataclass(slots=True)
class Stats:
    """Counts for `Loader.stats`.

    Attributes:
        batches: Batches that `next()` returned.
        waited_s: Seconds spent waiting for a daemon or a batch.
        started_s: Of these, seconds until a daemon that was not ready had started.
        bytes: Size of the arrays of these batches.
        copied: Batches that were copied because too many are held.
        passed: Batches left out because they had lost all their rows.
        device_bytes: Bytes that were copied to a device.
        device_copy_s: Seconds that the device took for them.
    """

    batches: int = 0
    waited_s: float = 0.0
    started_s: float = 0.0
    bytes: int = 0
    copied: int = 0
    passed: int = 0
    device_bytes: int = 0
    device_copy_s: float = 0.0
    _since_s: float = 0.0

    def started(self) -> None:
        """The first `next()` begins."""
        if not self._since_s:
            self._since_s = time.monotonic()

    def connected(self, waited_s: float, *, started: bool) -> None:
        """Add the seconds that a session was waited for; `started` if no daemon was ready."""
        self.waited_s += waited_s
        if started:
            self.started_s += waited_s

    def copied_to_device(self, size: int, copy_s: float) -> None:
        """Add a copy to a device."""
        self.device_bytes += size
        self.device_copy_s += copy_s

    def picture(self, verdict: str, *, shared: bool = False) -> LoaderStats:
        """The counts as the user sees them.

        Args:
            verdict: Who waits for whom, as the daemon last said; "" before it has.
            shared: Other trainers may get the same batches without their being made again.
        """
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
            "device_bytes": self.device_bytes,
            "device_copy_s": self.device_copy_s,
            "device_gb_per_s": self.device_bytes / self.device_copy_s / 1e9
            if self.device_copy_s
            else 0.0,
            "verdict": verdict or NO_VERDICT,
            "shared": shared,
        }
