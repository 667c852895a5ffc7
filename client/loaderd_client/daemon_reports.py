"""What the daemon has said during a session besides its batches, and what that tells the user."""

from __future__ import annotations

from loaderd_client.wait import BatchWait
from loaderd_wire import messages as m
from loaderd_wire.errors import from_name


class SessionEnded(Exception):
    """The daemon is gone; the text says how it went."""


class DaemonReports:
    """The last report of each kind of one daemon, during one session.

    Attributes:
        verdict: Who waits for whom, as the daemon last said; "" before it has.
    """

    def __init__(self) -> None:
        """Nothing has been said yet."""
        self.verdict = ""
        self._failure: m.Failure | None = None
        self._pulse: m.Pulse | None = None
        self._farewell = ""
        self._ended = ""

    def hear(self, message: m.Pulse | m.Failure | m.Bye) -> None:
        """Take in a message."""
        if isinstance(message, m.Pulse):
            self._pulse = message
        elif isinstance(message, m.Failure):
            self._failure = message
        else:
            self._farewell = (
                "it drained" if message.reason == "drained" else f"it drained: {message.reason}"
            )

    def connection_closed(self) -> None:
        """The daemon has closed the connection."""
        self._ended = self._farewell or "it closed the connection"

    def check(self) -> None:
        """Ask whether the session can go on.

        Raises:
            LoaderdError: What the daemon says that the stream has failed with.
            SessionEnded: The daemon is gone.
        """
        if self._failure is not None:
            raise from_name(self._failure.error, self._failure.text)
        if self._ended:
            raise SessionEnded(self._ended)

    def story(self, wait: BatchWait) -> str:
        """What the batch waits for, in one line."""
        said = self._pulse.story if self._pulse is not None else ""
        if wait.silent:
            last = f"; before that: {said}" if said else ""
            return f"the daemon does not answer (for {wait.silence_s:.0f} s{last})"
        if self._farewell:
            return f"the daemon is leaving, {self._farewell}"
        return said or "the daemon is there and does not say what the batch waits for"

    def detail(self, wait: BatchWait) -> str:
        """What the daemon adds to its story, in several lines; "" if that is nothing."""
        return self._pulse.detail if self._pulse is not None and not wait.silent else ""
