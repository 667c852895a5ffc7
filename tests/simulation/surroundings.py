"""What the real Reception and dispatcher have around them, faked: control socket, messages socket,
shared memory, the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loaderd_wire.messages import Segment
from simulation.clockwork import Broken
from simulation.memory import SegmentMemory

if TYPE_CHECKING:
    from simulation.daemon import Daemon
    from simulation.trainers import Trainer

TIMER_S = 1e-6  # what a timer is late at least: it never comes too early


@dataclass(eq=False)
class Peer:
    """A trainer's connection to one daemon.

    ended: by the daemon, or known to it. The trainer learns of it at once if it looks.
    """

    trainer: Trainer
    session: int | None = None
    ended: bool = False

    def __str__(self) -> str:
        return f"trainer {self.trainer.number}"


class Alarm:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """Whatever the daemon is told is a turn of its own."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._hooks: list[Callable[[], bool]] = []

    def before_sleep(self, hook: Callable[[], bool]) -> None:
        self._hooks.append(hook)

    def end_turn(self) -> None:
        for hook in self._hooks:
            hook()

    def stop(self) -> None:
        self._daemon.leave()

    def now_s(self) -> float:
        return self._daemon.clock

    def later(self, delay_s: float, call: Callable[[], object]) -> Alarm:
        alarm = Alarm()
        self._daemon.world.after(
            max(delay_s, 0.0) + TIMER_S,
            self._daemon.run,
            lambda: None if alarm.cancelled else call(),
        )
        return alarm


class Control:
    """Everything that is said here arrives in order, or not at all because the trainer is gone, or
    because the daemon has hung up.
    """

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def send(self, peer: Peer, message: Any, fds: tuple[int, ...] = ()) -> None:
        if peer.ended:
            return
        if self._daemon.world.cannot_send(peer.trainer):
            self.drop(peer)
            return
        peer.trainer.control.send(peer.trainer.controlled, peer, message)

    def reject(self, peer: Peer, error: str, text: str) -> None:
        peer.trainer.control.send(peer.trainer.rejected, peer, error, text)

    def drop(self, peer: Peer) -> None:
        """As `ControlListener.drop`: the end is there to see before anything follows from it."""
        if not peer.ended:
            self.hang_up(peer)
            self._daemon.gone(peer)

    def hang_up(self, peer: Peer) -> None:
        peer.ended = True
        self._daemon.peers.discard(peer)
        peer.trainer.control.send(peer.trainer.hung_up, peer)


class Messages:
    """Sessions that have a token; nobody else is heard."""

    def __init__(self) -> None:
        self.admitted: set[int] = set()

    def admit(self, session: int, token: bytes) -> None:
        self.admitted.add(session)

    def forget(self, session: int) -> None:
        self.admitted.discard(session)


class Segments:
    """Shared memory under a ceiling. A segment counts from `reserve` to `free`."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._held: dict[int, tuple[int, Segment]] = {}
        self.live_bytes = 0
        self.unfilled_bytes = 0

    def of(self, owner: int) -> list[int]:
        return [number for number, (its, _) in self._held.items() if its == owner]

    def reserve(
        self, owner: int, segment: Segment, done: Callable[[int, OSError | None], object]
    ) -> None:
        world = self._daemon.world
        self._held[segment.segment] = (owner, segment)
        self.live_bytes += segment.slots * segment.slot_bytes
        if self.live_bytes > world.ceiling:
            raise Broken(
                f"{self.live_bytes} bytes of shared memory, over the ceiling of {world.ceiling}"
            )

        def ready() -> None:
            if segment.segment not in self._held:
                return
            if not world.calm and world.seeder.random() < world.reserve_fails:
                self.free(segment.segment)
                done(-1, OSError(28, "No space left on device"))
                return
            reserved = self._daemon.registry.memories[owner]
            world.memory.segments[segment.segment] = SegmentMemory(
                segment, owner, reserved.admitted.shape.batch_size, shared=reserved.group > 0
            )
            done(segment.segment, None)

        world.after(world.seeder.uniform(0, 0.3), self._daemon.run, ready)

    def lent(self, segment: int, *, writable: bool) -> AbstractContextManager[int]:
        return nullcontext(segment)

    def free(self, segment: int) -> None:
        held = self._held.pop(segment, None)
        if held is None:
            return
        self.live_bytes -= held[1].slots * held[1].slot_bytes
        if segment in self._daemon.engine.mapped:
            raise Broken(f"segment {segment} is freed, and workers have it mapped")
