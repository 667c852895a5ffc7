"""What lies between clients and a daemon: messages that are late, lost, doubled, out of order, out
of date; and an orderly control socket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulation.world import World

REMEMBERED = 30
TIE_S = 1e-6  # between two messages of a stream: rounded times of one moment could change places


@dataclass
class Weather:
    """Chances by message, and the longest delay in seconds."""

    lost: float = 0.0
    doubled: float = 0.0
    stale: float = 0.0
    late_s: float = 0.001


class Network:
    def __init__(self, world: World, weather: Weather) -> None:
        self._world = world
        self.weather = weather
        self._past: deque[tuple[Callable[[Any], None], Any]] = deque(maxlen=REMEMBERED)

    def send(self, to: Callable[[Any], None], message: Any) -> None:
        """One ZeroMQ message: delivered once, twice, later or never; now and then an old one comes
        up again.
        """
        seeder, weather = self._world.seeder, self.weather
        self._past.append((to, message))
        if seeder.random() >= weather.lost:
            self._world.after(seeder.random() * weather.late_s, to, message)
        if seeder.random() < weather.doubled:
            self._world.after(seeder.random() * weather.late_s * 3, to, message)
        if seeder.random() < weather.stale:
            old_to, old = seeder.choice(self._past)
            self._world.after(seeder.random() * weather.late_s * 10, old_to, old)


class Control:
    """A unix stream: in order, nothing lost, but slow at times."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._free_at = 0.0

    def send(self, to: Callable[..., None], *what: Any) -> None:
        delay = self._world.seeder.random() * 3 * self._world.network.weather.late_s
        self._free_at = max(self._free_at + TIE_S, self._world.now + delay)
        self._world.after(self._free_at - self._world.now, to, *what)
