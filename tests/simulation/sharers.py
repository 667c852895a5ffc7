"""Fake trainers that share their batches: each copies what it is told of, looks whether the daemon
still serves it, and none waits for another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loaderd.server.admission import SPARE_SLOTS
from loaderd_client import session_memory
from loaderd_client.protocol import ClientProtocol
from loaderd_client.wait import BatchWait
from loaderd_wire.messages import Descriptor
from simulation.clockwork import Broken
from simulation.devices import Handle, Mapping
from simulation.memory import SCRIBBLE, Memory, Row, Slot
from simulation.trainers import MOST_PREFETCH, Lease, Madman, Trainer


def later(call: Callable[..., None]) -> Callable[..., None]:
    """A method of a trainer that is called when it goes on, if it is stopped."""

    def called(self: Sharer, *args: Any) -> None:
        if self.stopped:
            self.backlog.append((call, args))
        else:
            call(self, *args)

    return called


class Copying:
    """A batch that is copied out of its slot: half of it first, then the rest."""

    def __init__(self, memory: Memory, batch: Descriptor) -> None:
        self._memory = memory
        self._batch = batch
        self._found: list[tuple[list[Row], list[Row], list[str]]] = []
        self._fault: Broken | None = None
        self.go_on()

    def go_on(self) -> None:
        """What is wrong with it matters only if the daemon still serves the trainer after that."""
        try:
            self._found.append(self._memory.read(self._batch))
        except Broken as fault:
            self._fault = fault

    def whole(self) -> tuple[list[Row], list[Row], list[str]]:
        if self._fault is not None:
            raise self._fault
        (indices, data, _), (last_indices, last_data, keys) = self._found
        half = self._batch.filled // 2
        return indices[:half] + last_indices[half:], data[:half] + last_data[half:], keys


class Sharer(Trainer):
    """A trainer that shares its batches with its mates: those with the same plans.

    It copies each batch out of its slot, half of it now and half after a moment, looks after
    another one whether its connection still stands, and gives the slot back then. What it writes
    into is its copy.

    stopped: by SIGSTOP, perhaps in the midst of that. It keeps what it was told of.
    """

    asks = ""  # as the stream says

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.device, self.ahead, self.pins = None, 0, False
        self.seeks = self.world.share_chance.choice([0, 0.1, 0.5])
        self.stopped = False
        self.backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._copy_s = self.world.share_chance.choice([0, 0, 0.002, 0.1])
        self._copy: tuple[list[Row], list[Row], list[str]] = [], [], []

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
        copying = Copying(self.world.memory, batch)
        self._then(self._reads_on, copying, batch, waited)

    def _then(self, call: Callable[..., None], *args: Any) -> None:
        """What comes next in the midst of next(), where it may be stopped as well as elsewhere."""
        self.world.may_falter(self)
        if self._copy_s or self.stopped:
            self.world.after(self._copy_s, self._goes_on, self.session, call, args)
        else:
            call(*args)

    @later
    def _goes_on(
        self, session: ClientProtocol, call: Callable[..., None], args: tuple[Any, ...]
    ) -> None:
        if session is self.session:
            call(*args)

    def _reads_on(self, copying: Copying, batch: Descriptor, waited: bool) -> None:
        copying.go_on()
        self._then(self._looks, copying, batch, waited)

    def _looks(self, copying: Copying, batch: Descriptor, waited: bool) -> None:
        """Is it still kept for? Else it goes on waiting for this batch, in another session."""
        peer = self._peer
        assert peer is not None
        copied = session_memory.unless_ended(copying.whole, lambda: peer.ended)
        if copied is None:
            self._wait = BatchWait(self._now_s, self.limits, told=True)
            self._gone()
        else:
            self._copy = copied
            super()._reads(batch, waited)

    def _read(self, batch: Descriptor) -> tuple[list[Row], list[Row], list[str]]:
        return self._copy

    def _hold(self, batch: Descriptor) -> None:
        assert self._memory is not None
        view = self._memory.view_of(batch)
        self._memory.lend(batch, None)
        own = Slot(0)
        own.data = [SCRIBBLE if self.world.seeder.random() < 0.2 else row for row in self._copy[1]]
        self.leases.append(Lease(batch, Handle(own, Mapping(view.segment)), list(own.data)))


class MadSharer(Madman):
    """A client of its own kind, that others share their batches with."""

    asks = Sharer.asks
    memory = Sharer.memory  # type: ignore[assignment]
    slots = Sharer.slots  # type: ignore[assignment]
