"""Fake trainers around the real client session: they take, hold, scribble, hoard, stall, seek and die, and check every row they get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loaderd_client.session import ClientSession
from loaderd_wire.messages import Batch, Failure, Progress, Pulse, Released, Segment
from loaderd_wire.slices import Cursor, Shape, after, settle, slice_at
from simulation.clockwork import Broken
from simulation.memory import SCRIBBLE, Row, Slot
from simulation.network import Control
from simulation.samples import Samples

if TYPE_CHECKING:
    from simulation.daemon import Daemon
    from simulation.world import World

PING_S = 1.0
RETRY_S = 0.5


@dataclass
class Lease:
    """A batch in the trainer's hands, and what must still lie in its slot when it goes back. own: of the session that lives now."""

    session: ClientSession
    batch: Batch
    slot: Slot
    rows: list[Row]


class Trainer:
    """One rank. It goes on at its cursor through every disaster; `taken` counts the batches that it got."""

    def __init__(self, world: World, number: int, samples: Samples, shape: Shape, seed: int, cursor: Cursor) -> None:
        chance = world.chance
        self.world = world
        self.number = number
        self.samples = samples
        self.shape = shape
        self.seed = seed
        self.cursor = cursor
        self.prefetch = chance.randint(1, 5)
        self.tail_row_bytes = chance.choice([8, 16, 64, 512])
        self.body_bytes = shape.batch_size * chance.choice([4, 8, 32, 512])
        self.think_s = chance.choice([0.05, 0.2, 0.5, 1.0])
        self.hoards = chance.random() < 0.25
        self.seeks = chance.choice([0, 0, 0.05, 0.3])
        self.control = Control(world)
        self.alive = True
        self.failed = ""
        self.content = False  # it has what it wanted, and asks for no more
        self.taken = 0
        self.fresh_at = 0.0  # when it last got a batch, or began to wait
        self.leases: list[Lease] = []
        self.session: ClientSession | None = None
        self._daemon: Daemon | None = None
        self._number = 0  # of the session
        self._waiting = False
        self._wait = 0
        self._answered = 0
        world.after(chance.uniform(0, 0.5), self.connect)

    # the control socket

    def connect(self) -> None:
        daemon = self.world.daemon
        if not self.alive or self._daemon is not None:
            return
        if daemon is None or not daemon.alive or daemon.stopped:
            self.world.after(RETRY_S, self.connect)
            return
        self._daemon = daemon
        daemon.admit(self)

    def welcome(self, daemon: Daemon, session: int, segment: Segment) -> None:
        if daemon is not self._daemon:
            return
        if not self.alive:
            daemon.left(session)
            return
        self._number = session
        self.session = ClientSession(session, self.shape, self.prefetch, segment, self.cursor)
        self.say()
        self._waiting = False
        self.turn()

    def grown(self, daemon: Daemon, session: int, segment: Segment) -> None:
        if self.alive and daemon is self._daemon and self.session and session == self._number:
            self.session.add_segment(segment)
            self._arrived()

    def hung_up(self, daemon: Daemon) -> None:
        """EOF: what it holds stays valid; it says Hello to the successor."""
        if not self.alive or daemon is not self._daemon:
            return
        self.world.write("trainer {} meets EOF at {}", self.number, self.cursor)
        self._daemon = self.session = None
        self._waiting = False
        self.connect()

    # messages

    def say(self, **more: bool) -> None:
        """Its progress, to the daemon's messages socket."""
        assert self.session is not None
        assert self._daemon is not None
        progress = self.session.progress(**more)
        self.world.write("trainer {} says {}", self.number, progress)
        self.world.network.send(self.world.hear, progress)

    def hear(self, message: Batch | Pulse | Failure) -> None:
        if not self.alive or self.session is None or message.session != self._number:
            return
        if isinstance(message, Failure):
            self.world.write("trainer {} hears {}", self.number, message)
            self.world.trainer_failed(self, message)
            self.failed = message.error
        elif isinstance(message, Pulse):
            self._answered = max(self._answered, message.seq)
        else:
            self.session.receive(message)
            self._arrived()

    def _arrived(self) -> None:
        if self._waiting:
            self._next()
        self._say_if_due()

    def _say_if_due(self) -> None:
        if self.session is not None and self._daemon is not None and self.session.due:
            self.say()

    # the training loop

    def turn(self) -> None:
        """One pass of the loop: give back, perhaps change its mind, ask for the next batch."""
        if not self.alive or self.session is None or self.failed or self._waiting or self.content:
            return
        chance = self.world.chance
        self._give_back()
        if not self.world.calm and chance.random() < self.seeks:
            self._seek()
        self._next()

    def _next(self) -> None:
        """next(): the batch if it is here, else it waits, with its leases in its hands."""
        assert self.session is not None
        if self.session.cursor != self.cursor:
            raise Broken(f"trainer {self.number} is at {self.cursor}, its session at {self.session.cursor}")
        chance, batch = self.world.chance, self.session.take()
        if batch is None:
            if not self._waiting:
                self._waiting = True
                self._wait += 1
                self._ask(self._wait, self.session.gap)
            return
        self._waiting = False
        self._got(batch)
        self._say_if_due()
        pause = chance.uniform(0.3, 1.5) * (0.01 if self.world.calm else self.think_s)
        if not self.world.calm and chance.random() < 0.02:
            pause += chance.uniform(1, 8)  # validation, a breakpoint, SIGSTOP
        self.world.after(pause, self._next_turn, self.session)

    def _next_turn(self, session: ClientSession) -> None:
        if session is self.session:
            self.turn()

    def _ask(self, wait: int, again: bool) -> None:
        """Inside next(): say so at once, and every second again."""
        if self._waiting and wait == self._wait and self.session is not None and self.alive and not self.failed:
            self.say(waiting=True, ping=True, again=again, stacks=self.world.chance.random() < 0.2)
            self.world.after(PING_S, self._ask, wait, True)

    def prod(self) -> None:
        """The clock has jumped: a waiting client's second is over."""
        if self._waiting:
            self._wait += 1
            self._ask(self._wait, True)

    def _seek(self) -> None:
        assert self.session is not None
        chance, at = self.world.chance, settle(self.shape, self.cursor)
        kind = chance.randrange(6)
        if kind == 0:
            at = self.cursor  # no change of mind after all
        elif kind == 1:
            at = Cursor(at.epoch + 1, 0, 0)
        elif kind == 2:
            at = Cursor(chance.randint(0, 3), 0, 0)
        elif kind == 3:
            at = Cursor(chance.randint(0, 3), chance.randint(0, self.shape.samples), chance.randint(0, 9))
        elif kind == 4:
            for _ in range(chance.randint(1, 3)):
                at = settle(self.shape, after(self.shape, at))
        else:
            block = self.shape.world_size * self.shape.batch_size
            back = chance.randint(1, 3)
            at = Cursor(at.epoch, max(0, at.position - back * block), max(0, at.step - back))
        self.world.write("trainer {} seeks from {} to {}", self.number, self.cursor, at)
        self.cursor = at
        self.session.seek(at)
        self._say_if_due()

    def _got(self, batch: Batch) -> None:
        """Compare it with the undisturbed one, row by row."""
        assert self.session is not None
        at = settle(self.shape, self.cursor)
        cut = slice_at(self.shape, at)
        self.world.write("trainer {} takes step {} of {}: {}", self.number, at.step, cut, batch)
        if (batch.epoch, batch.start, batch.rows) != (cut.epoch, cut.start, cut.rows):
            raise Broken(f"trainer {self.number} got {batch}, at {at} it wants {cut}")
        want = self.samples.expected(self.seed, cut)
        indices, data, keys = self.world.memory.read(batch)
        keys_wanted = [str(index) for index in want.indices] if self.samples.stored else []
        if batch.failed != want.failed or indices != want.indices or data != want.indices or keys != keys_wanted:
            raise Broken(f"trainer {self.number} got indices {indices}, data {data}, keys {keys} in {batch}, it wants {want}")
        if want.bad is not None and sorted(bad.index for bad in batch.bad) != sorted(want.bad):
            raise Broken(f"trainer {self.number} hears of bad samples {batch.bad}, it wants {want.bad}")
        self.cursor = after(self.shape, at)
        self.taken += 1
        self.fresh_at = self.world.now
        self._hold(batch)

    def _hold(self, batch: Batch) -> None:
        assert self.session is not None
        slot = self.world.memory.segments[batch.segment].slots[batch.slot]
        if slot.holder is not None:
            raise Broken(f"trainer {self.number} got {batch} in a slot that it still holds")
        # What has no rows is given back at once, and the last free slot is never lent: copied, and given back as well.
        if not batch.filled or self.session.free_slots() == 0:
            self.session.release(batch.segment, batch.slot, batch.generation)
            return
        slot.holder = (self.number, batch.generation)
        for row in range(batch.filled):
            if self.world.chance.random() < 0.2:
                slot.data[row] = SCRIBBLE
        self.leases.append(Lease(self.session, batch, slot, slot.data[: batch.filled]))

    def _give_back(self) -> None:
        """In any order. An orderly loop keeps the batch before this one; a hoarder keeps what it can."""
        chance = self.world.chance
        while self.leases:
            if len(self.leases) <= 1 and chance.random() < 0.7:
                return
            if self.hoards and not self.world.calm and chance.random() < 0.7:
                return
            self._release(self.leases.pop(chance.randrange(len(self.leases))))

    def _release(self, lease: Lease) -> None:
        batch = lease.batch
        if lease.slot.data[: batch.filled] != lease.rows:
            raise Broken(f"trainer {self.number} held {batch}: {lease.rows} became {lease.slot.data[: batch.filled]}")
        lease.slot.holder = None
        lease.session.release(batch.segment, batch.slot, batch.generation)

    # its end

    def die(self) -> None:
        """kill -9: the daemon sees EOF, its memory is gone. Its successor goes on at its last checkpoint."""
        if not self.alive:
            return
        self.world.write("trainer {} dies at {}", self.number, self.cursor)
        self.alive = False
        for lease in self.leases:
            lease.slot.holder = None
        self.leases.clear()
        if self._daemon is not None and self.session is not None:
            self.world.after(self.world.chance.uniform(0, 0.2), self._daemon.left, self._number)

    def expects(self, segment: int, slot: int) -> bool:
        """Its session has a descriptor of this slot that it will show."""
        items = self.session._items if self.session is not None else ()
        return any(item.batch and (item.batch.segment, item.batch.slot) == (segment, slot) for item in items)


class Madman(Trainer):
    """A client of its own kind: its messages are well formed and mean nothing. Whatever becomes of it, nobody else suffers."""

    def welcome(self, daemon: Daemon, session: int, segment: Segment) -> None:
        if not self.alive:
            daemon.left(session)
        elif daemon is self._daemon:
            self._number = session
            self._rave(daemon, segment, 1)

    def turn(self) -> None:
        pass

    def hung_up(self, daemon: Daemon) -> None:
        if daemon is self._daemon:
            self._daemon, self._number = None, 0
            self.connect()

    def hear(self, message: Any) -> None:
        pass

    def die(self) -> None:
        self.alive = False
        if self._daemon is not None and self._number:
            self._daemon.left(self._number)

    def _rave(self, daemon: Daemon, segment: Segment, seq: int) -> None:
        if not self.alive or daemon is not self._daemon:
            return
        chance = self.world.chance

        def number(likely: int) -> int:
            return chance.choice([0, 1, 2, likely, likely + 1, chance.randint(0, 20), 1 << 62])

        slots = chance.choice([segment.slots, segment.slots, segment.slots, number(segment.slots) % 40])
        released = Released(
            chance.choice([segment.segment, segment.segment, number(segment.segment)]),
            tuple(number(1) for _ in range(slots)),
            tuple(number(1) for _ in range(slots)),
        )
        progress = Progress(
            self._number,  # the daemon's socket lets no other pass
            chance.choice([seq, seq, number(seq)]),
            number(1),
            number(1),
            number(self.shape.samples),
            number(1),
            number(1),
            number(1),
            chance.random() < 0.5,
            chance.random() < 0.5,
            chance.random() < 0.5,
            (released,) * chance.choice([0, 1, 1, 2]),
            chance.random() < 0.5,
        )
        self.world.network.send(self.world.hear, progress)
        self.world.after(chance.uniform(0, 1), self._rave, daemon, segment, seq + 1)
