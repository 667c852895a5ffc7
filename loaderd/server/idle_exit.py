"""When a daemon that nobody uses leaves by itself."""

from __future__ import annotations

from collections.abc import Callable

from loaderd.system.control_socket import ControlListener
from loaderd.system.loop import Loop, Timer

EMBEDDED_FIRST_S = 30.0  # an embedded daemon to which nobody has come
EMBEDDED_LAST_S = 2.0  # after its last control socket closed


class IdleExit:
    """Says when a daemon that nobody uses is to leave.

    An embedded daemon leaves 2 s after its last connection has ended, or 30 s after "ready"
    without one. Any other leaves exit_when_idle_s after its last session has ended; 0: never.
    """

    def __init__(
        self,
        loop: Loop,
        control: ControlListener,
        embedded: bool,
        exit_when_idle_s: float,
        *,
        leave: Callable[[str], object],
    ) -> None:
        """Count from nothing yet.

        Args:
            loop: Calls whatever is here.
            control: Knows who is connected.
            embedded: A Loader has started the daemon.
            exit_when_idle_s: For any other daemon.
            leave: Called with the reason when it is time.
        """
        self._loop = loop
        self._control = control
        self._embedded = embedded
        self._exit_when_idle_s = exit_when_idle_s
        self._leave = leave
        self._timer: Timer | None = None

    def await_first(self) -> None:
        """The daemon is ready."""
        if self._embedded and self._timer is None:  # else all who waited for it have gone
            self._arm(EMBEDDED_FIRST_S, self._alone)

    def connection_ended(self) -> None:
        """Of a client, or of whoever started the daemon and waited for it."""
        if self._embedded and not self._used:
            self._arm(EMBEDDED_LAST_S, self._alone)

    def sessions_ended(self, anybody: Callable[[], object]) -> None:
        """The last session has ended.

        Args:
            anybody: Returns whether there is one again.
        """
        if self._exit_when_idle_s > 0:
            self._arm(
                self._exit_when_idle_s,
                lambda: anybody() or self._leave(f"no trainer for {self._exit_when_idle_s:g} s"),
            )

    @property
    def _used(self) -> bool:
        """Whether there is a connection whose end will be told to `connection_ended`."""
        return any(peer.spoken for peer in self._control.peers)

    def _alone(self) -> None:
        if not self._control.peers:
            self._leave("the last client has disconnected")
        elif not self._used:
            # somebody has just come and will speak, or be dropped
            self._arm(EMBEDDED_LAST_S, self._alone)

    def _arm(self, delay_s: float, then: Callable[[], object]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.later(delay_s, then)
