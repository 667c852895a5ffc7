"""Fake trainers that share their batches: each copies what it is told of, and none waits for
another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loaderd.server.admission import SPARE_SLOTS
from loaderd_client.protocol import ClientProtocol
from loaderd_wire.messages import Descriptor
from simulation.devices import Handle, Mapping
from simulation.memory import SCRIBBLE, Row, Slot
from simulation.trainers import MOST_PREFETCH, Lease, Madman, Trainer


def later(call: Callable[..., None]) -> Callable[..., None]:
    """A method of a trainer that is called when it goes on, if it is stopped."""

    def called(self: Sharer, *args: Any) -> None:
        if self.stopped:
            self.backlog.append((call, args))
        else:
            call(self, *args)

    return called


class Sharer(Trainer):
    """A trainer that shares its batches with its mates: those with the same plans.

    It copies each batch out of its slot, half of it now and half after a moment, and gives the slot
    back then. What it writes into is its copy.

    stopped: by SIGSTOP, perhaps in the midst of a copy. It keeps what it was told of.
    """

    asks = ""  # as the stream says

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.device, self.ahead, self.pins = None, 0, False
        self.seeks = self.world.share_chance.choice([0, 0.1, 0.5])
        self.stopped = False
        self.backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._copy_s = self.world.share_chance.choice([0, 0, 0.002, 0.1])
        self._half: tuple[list[Row], list[Row], list[str]] | None = None
        self._copy: list[Row] = []

    connect = later(Trainer.connect)
    controlled = later(Trainer.controlled)
    rejected = later(Trainer.rejected)
    hung_up = later(Trainer.hung_up)
    hear = later(Trainer.hear)
    prod = later(Trainer.prod)
    _awake = later(Trainer._awake)
    _next_turn = later(Trainer._next_turn)

    def stop(self) -> None:
        """SIGSTOP: whatever happens waits until it goes on."""
        self.stopped = True

    def go_on(self) -> None:
        self.stopped = False
        self.fresh_at = self.world.now
        backlog, self.backlog = self.backlog, []
        for call, args in backlog:
            call(self, *args)

    @property
    def memory(self) -> object:
        return self.samples.name, self.shape, self.seed

    @property
    def slots(self) -> int:
        """Of a group that any of its members may found."""
        window = self.samples.stream.plan.share_window or 2 * MOST_PREFETCH
        return window + MOST_PREFETCH + SPARE_SLOTS

    @property
    def mates(self) -> list[Trainer]:
        return [
            other
            for other in self.world.trainers
            if other is not self and other.memory == self.memory
        ]

    def _seek(self) -> None:
        chance, mates = self.world.share_chance, self.mates
        if mates and chance.random() < 0.4:
            self._begin(chance.choice(mates).cursor)
        else:
            super()._seek()

    # a batch

    def _reads(self, batch: Descriptor, waited: bool) -> None:
        if not self._copy_s:
            super()._reads(batch, waited)
            return
        self._half = self.world.memory.read(batch)
        self.world.after(self._copy_s, self._reads_on, self.session, batch, waited)

    @later
    def _reads_on(self, session: ClientProtocol, batch: Descriptor, waited: bool) -> None:
        if session is self.session:
            super()._reads(batch, waited)

    def _read(self, batch: Descriptor) -> tuple[list[Row], list[Row], list[str]]:
        now = self.world.memory.read(batch)
        before, self._half = self._half or now, None
        half = batch.filled // 2
        indices = before[0][:half] + now[0][half:]
        self._copy = before[1][:half] + now[1][half:]
        return indices, self._copy, now[2]

    def _hold(self, batch: Descriptor) -> None:
        assert self._memory is not None
        view = self._memory.view_of(batch)
        self._memory.lend(batch, None)
        own = Slot(0)
        own.data = [SCRIBBLE if self.world.seeder.random() < 0.2 else row for row in self._copy]
        self.leases.append(Lease(batch, Handle(own, Mapping(view.segment)), list(own.data)))


class MadSharer(Madman):
    """A client of its own kind, that others share their batches with."""

    asks = Sharer.asks
    memory = Sharer.memory  # type: ignore[assignment]
    slots = Sharer.slots  # type: ignore[assignment]
