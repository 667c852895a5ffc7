"""A daemon that takes the socket over from the one that serves it: `loaderd serve --takeover`.

Its streams are open and its workers run before it asks. See `handover` for the other side.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from loaderd.server.handover_offer import HandoverOffer
from loaderd.server.parts import Parts
from loaderd.server.phases import PhaseOwner, Serving, log_slow_turn
from loaderd.server.served_socket import ServedSocket
from loaderd.system.control_socket import Peer
from loaderd.system.lockfile import AlreadyServed, CannotServe
from loaderd.system.loop import Timer
from loaderd.system.predecessor import Predecessor
from loaderd_wire.messages import OLDEST, Ask, Bye, Hello, Rejected, Report, Starting

RETRY_S = 0.1  # between two looks at a daemon that takes no connections
PATIENCE_S = 30.0  # for one that does not hand over, and does not leave
TOO_OLD = ": its version may not know how; use `loaderd drain`, then `loaderd serve`"


class TakingOver:
    """From the last thing to prepare until this daemon serves.

    The one that serves can be killed at any moment, and so can this one: one of the two has the
    lock, and with it the socket.
    """

    name = "starting"

    def __init__(
        self,
        daemon: PhaseOwner,
        parts: Parts,
        socket: ServedSocket,
        alone: Callable[[], object],
    ) -> None:
        """Change nothing yet.

        Args:
            daemon: Whose phase it is.
            parts: What that is made of.
            socket: What is taken over.
            alone: Called once the daemon before has ended.
        """
        self._daemon = daemon
        self._parts = parts
        self._socket = socket
        self._alone = alone
        self._predecessor: Predecessor | None = None
        self._deadline: Timer | None = None
        self._retry: Timer | None = None
        self._who = ""  # serves it
        self._starting = ""  # what it has said, if it does not serve yet
        self._serves = False  # this daemon does
        self._released = False  # the one before has said that it leaves

    def begin(self) -> None:
        """Ask whoever serves the socket."""
        self._parts.startup.end()
        self._deadline = self._parts.loop.later(PATIENCE_S, self._late)
        self._attempt()

    def _attempt(self) -> None:
        path = self._parts.config.daemon.socket
        try:
            self._socket.take()
        except AlreadyServed as served:
            self._who = str(served)
        except (CannotServe, OSError) as error:
            self._fail(str(error))
            return
        else:
            self._parts.log(
                "info",
                "nobody_to_follow",
                f"no daemon serves {path}: there is nothing to take over",
            )
            self._serve()
            self._alone()
            return
        try:
            self._predecessor = Predecessor(
                self._parts.loop,
                path,
                Ask(OLDEST, "takeover"),  # of a later version, too
                heard=self._hear,
                ended=self._ended,
            )
        except OSError:  # it is leaving, or is not there yet
            self._try_again()

    def _try_again(self) -> None:
        self._predecessor = None
        self._retry = self._parts.loop.later(RETRY_S, self._attempt)

    def _hear(self, message: Any, fds: list[int]) -> None:
        if isinstance(message, Bye):
            self._released = True
        elif isinstance(message, Report) and len(fds) == 2 and not self._serves:
            self._consider(message.body, *fds)
        else:
            for fd in fds:
                os.close(fd)
            if isinstance(message, Starting):
                self._await(message.text)
            elif isinstance(message, Rejected):
                old = message.error == "ProtocolError"  # the command is unknown to it
                self._fail(f"cannot take over: {message.text}" + TOO_OLD * old)

    def _await(self, text: str) -> None:
        """It will be asked again, as long as there is time."""
        if not self._starting:
            self._parts.log("info", "waits", f"{text}: this one waits for it")
        self._starting = text

    def _consider(self, body: str, lock: int, listener: int) -> None:
        """Take what is offered, if all trainers can go on with this daemon."""
        parts = self._parts
        streams = parts.catalog.opened
        try:
            offer = HandoverOffer.from_json(body)
            if parts.config.daemon.memory is None:  # measured beside the other one's segments
                parts.budget.memory = max(parts.budget.memory, offer.memory)
            why = offer.refusal(streams, parts.config.path, parts.budget.memory)
        except ValueError as error:
            offer, why = None, str(error)
        if offer is None or why:
            os.close(lock)
            os.close(listener)
            self._fail(
                f"cannot take over: {why}; restore the old data and settings, or end the training "
                "and use `loaderd drain`"
            )
            return
        edited = offer.edited(streams)
        if edited:
            parts.log("warning", "code_changed", f"code has changed: {edited}; trainers are told")
        try:
            self._socket.adopt(lock, listener)
        except OSError as error:
            self._fail(f"cannot take over: {error}")
            return
        parts.admission.share_memory(offer.segments)
        parts.log("info", "taken_over", f"takes over from pid {offer.pid}")
        self._serve()
        assert self._predecessor is not None
        self._predecessor.say()

    def _serve(self) -> None:
        self._serves = True
        self._disarm()
        self._daemon.enter(Serving(self._daemon, self._parts))

    def _ended(self) -> None:
        """The daemon before has left, or was killed, or has taken its offer back."""
        if not self._serves:
            self._try_again()
            return
        if not self._released:
            try:
                self._socket.hold_alone()
            except AlreadyServed as error:
                self._fail(f"took too long to take over: {error}")
                return
        self._socket.sweep()
        self._parts.log("info", "follows", "the daemon before has left")
        self._parts.admission.own_memory()
        self._alone()

    def _late(self) -> None:
        if self._starting:
            self._fail(
                f"cannot take over: {self._starting} after {PATIENCE_S:.0f} s; try again when "
                "`loaderd status` says ready"
            )
            return
        self._fail(
            f"{self._who}, and it has neither handed over nor left within {PATIENCE_S:.0f} s"
            + TOO_OLD
        )

    def _fail(self, why: str) -> None:
        self._disarm()
        self._daemon.fail(why)

    def _disarm(self) -> None:
        for timer in (self._deadline, self._retry):
            if timer is not None:
                timer.cancel()
        self._deadline = self._retry = None

    # -- nobody comes before it serves

    def hello(self, peer: Peer, hello: Hello) -> None:
        """Nobody can say it yet."""

    def ask(self, peer: Peer, ask: Ask) -> None:
        """Nobody can say it yet."""

    def left(self, peer: Peer) -> None:
        """Nobody has come."""

    def starter_left(self) -> None:
        """It goes on."""

    def sessions_ended(self) -> None:
        """There has been none."""

    def stream_answered(self, name: str) -> None:
        """All are open."""

    def slow_turn(self, spent_s: float, text: str) -> None:
        """Log it."""
        log_slow_turn(self._parts.log, spent_s, text)

    def drain(self, why: str) -> None:
        """End: the other one serves on."""
        self._parts.log("info", "draining", f"draining: {why}")
        self._disarm()
        self._parts.loop.stop()

    def signalled(self, number: int) -> None:
        """End: the other one serves on."""
        self.drain(signal.Signals(number).name)
