"""Bad samples: each has a record in the quarantine file, and a line in the log."""

from __future__ import annotations

from collections import deque

from loaderd.core.actions import Quarantine
from loaderd.system.logs import QuarantineLog, WriteLog


class BadSamples:
    """Takes what the scheduler sets aside. `close` it.

    Attributes:
        kept: The quarantine file.
        pictures: Of each of `kept.tail` the bytes of its image, as they are stored; b"" for none.
    """

    def __init__(self, path: str, log: WriteLog) -> None:
        """Begin without any.

        Args:
            path: Of the quarantine file.
            log: Its log.
        """
        self.kept = QuarantineLog(path)
        self.pictures: deque[bytes] = deque(maxlen=self.kept.tail.maxlen)
        self._log = log

    def add(self, action: Quarantine) -> None:
        """Record one."""
        sample = action.sample
        facts = {name: getattr(sample, name) for name in sample.__slots__}
        self.pictures.append(action.picture)
        self.kept.add({"stream": action.stream, "epoch": action.epoch, **facts})
        self._log(
            "warning",
            "bad_sample",
            f"stream {action.stream!r}, epoch {action.epoch}: {sample.line()}",
            stream=action.stream,
            epoch=action.epoch,
            index=sample.index,
            key=sample.key,
            stage=sample.stage,
        )
        self._tell_trouble()

    def close(self) -> None:
        """Close the file; why its last records were lost is known only then."""
        self.kept.close()
        self._tell_trouble()

    def _tell_trouble(self) -> None:
        trouble = self.kept.trouble()
        if trouble:
            self._log("error", "quarantine_failed", trouble)
