"""A daemon hands over to a successor that serves beside it, which may be killed like any other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from loaderd.server.handover import HandedOver

if TYPE_CHECKING:
    from simulation.daemon import Daemon

LATE_S = 0.1  # after which, at most, a daemon hears that its successor serves


class Successor:
    """The connection of a successor at the daemon before it."""

    session = None

    def __init__(self) -> None:
        self.ended = False

    def __str__(self) -> str:
        return "another daemon"


class Handover:
    """The real end of a daemon's sessions: `HandedOver`. What is left out is the socket itself.

    leaving: the successor is known to serve; it has sent its trainers there.
    """

    def __init__(self, old: Daemon) -> None:
        self.old = old
        self.leaving = False
        self._new: Daemon | None = None
        self._successor: Any = Successor()
        parts: Any = SimpleNamespace(
            loop=old.loop,
            control=SimpleNamespace(send=lambda peer, message: None, drop=old.control.drop),
            admission=old.admission,
            registry=old.registry,
            log=lambda level, event, text, **_: old.world.write("{}: {}", level, text),
            env={},
        )
        self._phase = HandedOver(self, parts, self._successor, lambda: None)  # type: ignore[arg-type]

    def begin(self, new: Daemon) -> None:
        """The successor serves. The daemon hears of it a moment later."""
        self._new = new
        world = self.old.world
        world.after(world.end_chance.uniform(0, LATE_S), self.old.run, self._taken)

    def _taken(self) -> None:
        if not self._successor.ended:
            self.old.world.write("daemon hands over")
            self.leaving = True
            self._phase.begin()

    def failed(self) -> None:
        """The successor has died first: all is as before."""
        self._successor.ended = True
        self.old.run(self._phase.left, self._successor)

    def enter(self, phase: object) -> None:
        """It serves again."""
        self.leaving = False
        self.old.handover = None
        self.old.admission.open(self.old.world.opened)

    def over(self) -> None:
        """The daemon has left, or was killed: its memory is its successor's."""
        if self._new is not None:
            self._new.run(self._new.admission.own_memory)
