"""Daemons that one handshake has started and that a signal has ended before they were ready."""

from __future__ import annotations

from loaderd_client.log import warn
from loaderd_wire.errors import LoaderdError, StreamFailedError

MAX_STARTS = 5  # of a first daemon, before it is given up that each is killed


class StartAttempts:
    """Whether another daemon is to be started in the place of one that was killed."""

    def __init__(self, *, successor: bool) -> None:
        """No daemon was started yet.

        Args:
            successor: A daemon has served before. Its successors are started for as long as
                `reconnect_s` says, else MAX_STARTS times.
        """
        self._successor = successor
        self._killed = 0

    def failed(self, error: LoaderdError, signal: str) -> str:
        """Count a daemon that has ended before it was ready.

        Args:
            error: What it has ended with.
            signal: Name of the signal that has ended it; "" if none has.

        Returns:
            How it was lost: another one may be started.

        Raises:
            LoaderdError: `error`: no signal has ended it.
            StreamFailedError: All of MAX_STARTS were killed.
        """
        if not signal:
            raise error
        self._killed += 1
        what, *log = str(error).splitlines()
        if not self._successor and self._killed == MAX_STARTS:
            raise StreamFailedError(
                "\n".join(
                    [f"{what}, as were the {MAX_STARTS - 1} that were started before it", *log]
                )
            )
        if not self._successor and self._killed == 1:
            warn(
                "the embedded daemon was ended by %s before it was ready; starting another one",
                signal,
            )
        return f"{what}, start {self._killed}"
