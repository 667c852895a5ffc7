"""Clients that wait: for the daemon to be ready, or for a stream to be opened."""

from __future__ import annotations

from collections.abc import Callable

from loaderd.system.control_socket import ControlListener, Peer
from loaderd.system.loop import Loop, Timer
from loaderd_wire.messages import Hello, Starting

STARTING_S = 1.0  # between two Starting messages


class WaitingClients:
    """Each is told at once, and then every second, what it waits for."""

    def __init__(self, loop: Loop, control: ControlListener, progress: Callable[[], str]) -> None:
        """Begin with nobody.

        Args:
            loop: Calls whatever is here.
            control: Where they are.
            progress: Returns what they wait for, in a line.
        """
        self._loop = loop
        self._control = control
        self._progress = progress
        self._hellos: dict[Peer, Hello] = {}
        self._timer: Timer | None = None

    @property
    def peers(self) -> tuple[Peer, ...]:
        """In the order in which they came."""
        return tuple(self._hellos)

    def add(self, peer: Peer, hello: Hello) -> None:
        """It waits from now on for what it has asked for."""
        self._hellos[peer] = hello
        self._control.send(peer, Starting(self._progress()))
        if self._timer is None:
            self._timer = self._loop.later(STARTING_S, self._tell)

    def forget(self, peer: Peer) -> None:
        """It waits no longer. Idempotent."""
        self._hellos.pop(peer, None)
        if not self._hellos and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def take(self, stream: str | None) -> list[tuple[Peer, Hello]]:
        """Those that wait for this stream, or all of them for None. They wait no longer."""
        taken = [
            (peer, hello) for peer, hello in self._hellos.items() if stream in (None, hello.stream)
        ]
        for peer, _ in taken:
            self.forget(peer)
        return taken

    def _tell(self) -> None:
        self._timer = self._loop.later(STARTING_S, self._tell)
        for peer in self.peers:
            self._control.send(peer, Starting(self._progress()))
