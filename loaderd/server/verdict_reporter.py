"""Says who waits for whom while trainers are attached: a line in the log, and systemd's status."""

from __future__ import annotations

from collections.abc import Callable

from loaderd.core.assessment import worst
from loaderd.core.verdict import IDLE, Verdict
from loaderd.system.logs import WriteLog
from loaderd.system.loop import Loop

FIRST_S, EVERY_S = 10.0, 60.0  # after the first trainer has come, and from then on


class VerdictReporter:
    """Sets a timer while there are sessions, and none else."""

    def __init__(
        self,
        loop: Loop,
        verdicts: Callable[[], list[Verdict]],
        log: WriteLog,
        notify: Callable[[str], object],
    ) -> None:
        """Say nothing yet.

        Args:
            loop: Calls it.
            verdicts: Returns those on all trainers.
            log: Its log.
            notify: Takes the line for systemd.
        """
        self._loop = loop
        self._verdicts = verdicts
        self._log = log
        self._notify = notify
        self._timer: object | None = None
        self._idle = False  # that is said once

    def session_attached(self) -> None:
        """A trainer has come."""
        if self._timer is None:
            self._timer = self._loop.later(FIRST_S, self._say)

    def _say(self) -> None:
        self._timer = None
        verdicts = self._verdicts()
        found = worst(verdicts)
        if found is None:
            return
        text = found.text
        if len(verdicts) > 1:
            text += f" (of {len(verdicts)} trainers the one that waits most)"
        idle = found.kind == IDLE
        if not (idle and self._idle):
            self._log("info", "verdict", text, verdict=found.kind)
            self._notify(f"STATUS={text}")
        self._idle = idle
        self._timer = self._loop.later(EVERY_S, self._say)
