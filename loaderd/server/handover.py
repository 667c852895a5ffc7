"""A daemon hands its socket over to a successor that runs beside it.

The successor asks, and is offered the socket. Until it says that it serves, everything goes on
here, and its end changes nothing. Then the trainers are sent to it: each keeps the batches that it
has, and connects anew. Should the successor die before this daemon has left, it serves again.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from loaderd.server.handover_offer import HandoverOffer, stream_facts
from loaderd.server.parts import Parts
from loaderd.server.phases import Leaving, PhaseOwner, Serving
from loaderd.server.served_socket import ServedSocket
from loaderd.system import systemd
from loaderd.system.control_socket import Peer
from loaderd.system.loop import Timer
from loaderd.system.predecessor import SERVES
from loaderd_wire.messages import Bye, Report, Starting

OFFER_S = 10.0  # that a successor has from the offer on
STAY_S = 0.5  # in which a daemon takes its socket back should its successor die


class Handover:
    """The successor, if there is one."""

    def __init__(self, daemon: PhaseOwner, parts: Parts, socket: ServedSocket, own: int) -> None:
        """Begin without a successor.

        Args:
            daemon: Whose successor it will be.
            parts: What that is made of.
            socket: What is handed over.
            own: The uid of this process: nobody else but root gets the socket.
        """
        self._daemon = daemon
        self._parts = parts
        self._socket = socket
        self._own = own
        self._successor: Peer | None = None
        self._timer: Timer | None = None

    def asked(self, peer: Peer, *, ready: bool) -> None:
        """A successor asks for the socket.

        Args:
            peer: Its connection.
            ready: This daemon serves.
        """
        parts = self._parts
        why = self._refusal(peer)
        if not why and not ready:
            parts.control.send(peer, Starting("the daemon there is still starting"))
            parts.control.finish(peer)  # it asks again
            return
        try:
            fds = () if why else self._socket.offer()
        except OSError as error:
            why, fds = f"{error.filename}: {error.strerror}", ()
        if why:
            parts.control.reject(peer, "RefusedError", why)
            return
        parts.log("info", "handover_offered", f"a successor ({peer}) may take over")
        self._successor = peer
        peer.on_more = self._taken
        self._timer = parts.loop.later(
            OFFER_S, lambda: parts.control.drop(peer, f"has not taken over within {OFFER_S:.0f} s")
        )
        parts.control.send(peer, Report(self._offer().to_json()), fds)

    def left(self, peer: Peer) -> None:
        """A connection has ended; if it was the successor's, everything is as before."""
        if peer is not self._successor:
            return
        self._successor = None
        self._disarm()
        self._socket.take_back()
        self._parts.log("warning", "handover_failed", "the successor has gone: serving on")

    def _refusal(self, peer: Peer) -> str:
        """Why the socket is not handed over to this peer; "" if it is."""
        options = self._parts.options
        if peer.cred.uid not in (0, self._own):
            return f"only uid {self._own} and root may take over"
        if options.embedded:
            return (
                "a Loader has started the daemon there, which leaves with its last user: "
                "--takeover is for those that `loaderd serve` has started"
            )
        if options.replay:
            return "`loaderd bench --replay` runs there"
        if self._successor is not None:
            return f"another daemon ({self._successor}) is taking over"
        return ""

    def _offer(self) -> HandoverOffer:
        parts = self._parts
        hellos = [session.hello for session in parts.registry.sessions.values()]
        return HandoverOffer(
            os.getpid(),
            parts.budget.memory,
            parts.budget.store.live_bytes,
            {name: stream_facts(opened) for name, opened in parts.catalog.opened.items()},
            sorted({hello.config for hello in hellos if hello.config}),
            sorted({hello.protocol for hello in hellos}),
        )

    def _taken(self, said: bytes) -> None:
        """The successor serves, if that is what it says."""
        peer = self._successor
        assert peer is not None
        if said != SERVES:
            self._parts.control.drop(peer, "says something else than that it serves")
            return
        peer.on_more = None
        self._disarm()
        self._socket.hand_over()
        self._daemon.enter(HandedOver(self._daemon, self._parts, peer, self._over))

    def _over(self) -> None:
        """This daemon leaves: whatever becomes of the successor is no affair of it."""
        self._successor = None

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class HandedOver(Leaving):
    """A successor serves; this daemon leaves after STAY_S."""

    def __init__(
        self, daemon: PhaseOwner, parts: Parts, successor: Peer, over: Callable[[], object]
    ) -> None:
        """Change nothing yet.

        Args:
            daemon: Whose phase it is.
            parts: What that is made of.
            successor: The connection of the daemon that serves.
            over: Called when this daemon leaves.
        """
        super().__init__(parts)
        self._over = over
        self._daemon = daemon
        self._successor = successor
        self._timer: Timer | None = None

    def begin(self) -> None:
        """Send all trainers to the successor."""
        parts = self._parts
        parts.log("info", "handed_over", f"handed over to its successor ({self._successor})")
        self._timer = parts.loop.later(STAY_S, self._leave)
        parts.control.send(self._successor, Bye("handed over"))
        if self._successor.ended:
            return  # found out just now: this daemon serves again
        systemd.notify("STOPPING=1", parts.env)
        parts.admission.close()
        parts.registry.close("its successor is ready")
        for session in tuple(parts.registry.sessions.values()):
            parts.control.drop(session.peer)

    def left(self, peer: Peer) -> None:
        """If it was the successor, serve again."""
        self._parts.admission.gone(peer)
        if peer is self._successor and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._daemon.enter(Serving(self._daemon, self._parts))

    def signalled(self, number: int) -> None:
        """End at once."""
        self._leave()

    def _leave(self) -> None:
        self._timer = None
        self._over()
        self._parts.loop.stop()
