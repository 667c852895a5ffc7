"""Fake trainers around the real client session: they take, hold, scribble, hoard, stall, seek and
die, and check every row they get.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from loaderd.server.admission import SPARE_SLOTS, sized
from loaderd_client import shared_memory
from loaderd_client.batch_reader import Made
from loaderd_client.devices.interface import Uses
from loaderd_client.protocol import ClientProtocol
from loaderd_client.session import COPY_PAUSE_S
from loaderd_client.session_memory import SessionMemory
from loaderd_client.wait import BatchWait, WaitLimits
from loaderd_wire.messages import (
    PROTOCOL,
    Bye,
    Descriptor,
    Failure,
    Hello,
    Progress,
    Pulse,
    Released,
    Segment,
    Starting,
    Welcome,
)
from loaderd_wire.slices import (
    Cursor,
    EpochShape,
    next_cursor,
    normalize_cursor,
    slice_at,
    steps_left,
)
from simulation.clockwork import Broken
from simulation.devices import Device, Handle, Mapping, View
from simulation.memory import SCRIBBLE, Row
from simulation.network import Control
from simulation.samples import Samples
from simulation.surroundings import Peer

if TYPE_CHECKING:
    from simulation.daemon import Daemon
    from simulation.world import World

RETRY_S = 0.5
MOST_PREFETCH = 5
JUMP_S = 1.0  # what a pause of everybody adds to a trainer's clock


@dataclass
class Lease:
    """A batch in the trainer's hands, and what must still lie in its slot when it goes back."""

    batch: Descriptor
    handle: Handle
    rows: list[Row]


class Trainer:
    """One rank.

    It goes on at its cursor through every disaster; `taken` counts the batches that it got.

    It speaks and listens when the shipped client does: inside next() and when a batch has been
    taken, and at no other time. What arrives meanwhile lies in `_inbox` (messages) and `_control`
    (descriptors of memory, the end of the daemon).

    Its batches are views of slots, or copies that a device makes late, up to `ahead` of the one
    that it asks for; or it has views, and copies from them by itself (`pins`).
    """

    honest = True
    asks = "no"  # whether its batches may be shared: Hello.shared

    def __init__(
        self,
        world: World,
        number: int,
        samples: Samples,
        shape: EpochShape,
        seed: int,
        cursor: Cursor,
    ) -> None:
        seeder = world.seeder
        self.world = world
        self.number = number
        self.samples = samples
        self.shape = shape
        self.seed = seed
        self.cursor = cursor
        self.prefetch = seeder.randint(1, MOST_PREFETCH)
        self.think_s = seeder.choice([0.05, 0.2, 0.5, 1.0])
        self.hoards = seeder.random() < 0.25
        self.seeks = seeder.choice([0, 0, 0.05, 0.3])
        placed = seeder.choice(["host", "host", "host", "device", "device", "pinned"])
        self.ahead = seeder.choice([1, 1, 2, 4]) if placed == "device" else 0
        self.pins = placed == "pinned"
        late_s = seeder.choice([0.005, 0.05, 0.5])
        self.device = None if placed == "host" else Device(world, number, late_s)
        self.control = Control(world)
        self.alive = True
        self.failed = ""
        self.refused = False  # for want of memory, the last time that it asked
        self.content = False  # it has what it wanted, and asks for no more
        self.taken = 0
        self.fresh_at = 0.0  # when it last got a batch, or began to wait
        self.leases: list[Lease] = []
        self.ready: deque[tuple[Descriptor, Cursor]] = deque()  # not handed out, and what is behind
        self.session: ClientProtocol | None = None
        self._memory: SessionMemory | None = None
        self._dead: list[weakref.ref[Mapping]] = []  # of sessions that are over
        self._daemon: Daemon | None = None
        self._peer: Peer | None = None
        self._number = 0  # of the session
        self._shared = False  # its segment is a group's
        self._inbox: deque[Descriptor | Pulse | Failure] = deque()
        self._control: deque[Segment | None] = deque()  # None: EOF
        self._order: dict[str, str] = {}  # the fingerprint that it began with
        self.limits = WaitLimits(
            timeout_s=seeder.choice([2.0, 30.0, 300.0]), reconnect_s=60.0, stall_warning_s=5.0
        )
        self._wait: BatchWait | None = None  # while it is inside next()
        self._waited_s = 0.0  # before that
        self._skew_s = 0.0  # what its clock is before the world's
        self._pause = 0  # number of the latest sleep inside next()
        world.after(seeder.uniform(0, 0.5), self.connect)

    # the control socket

    def connect(self) -> None:
        if not self.alive or self._daemon is not None:
            return
        daemon = self.world.listener
        if daemon is None or not daemon.alive or daemon.stopped:
            self.world.after(RETRY_S, self.connect)
            return
        self._daemon, self._peer = daemon, Peer(self)
        daemon.connected(self._peer, self._hello())

    def _hello(self) -> Hello:
        shape = self.shape
        held = sum(mapping.bytes for dead in self._dead if (mapping := dead()) is not None)
        return Hello(
            PROTOCOL,
            self.samples.name,
            shape.batch_size,
            self.seed,
            shape.drop_last,
            shape.rank,
            shape.world_size,
            self.prefetch,
            None,
            held,
            self._order,
            {},
            "",
            self.asks,
        )

    @property
    def memory(self) -> object:
        """What is the same for trainers that have one segment."""
        return self.number

    @property
    def slots(self) -> int:
        """Of the segment that it asks for."""
        return self.prefetch + SPARE_SLOTS

    @property
    def bytes(self) -> int:
        """Of the segment that it asks for."""
        stream = self.samples.stream
        segment = sized(stream, stream.facts.specs, self.shape.batch_size, self.slots, 0)
        return segment.slots * segment.slot_bytes

    def controlled(self, peer: Peer, message: Starting | Welcome | Segment | Bye) -> None:
        """Something comes on the control socket of this connection."""
        if not self.alive or peer is not self._peer:
            return
        if isinstance(message, Welcome):
            self.welcome(message)
        elif isinstance(message, Segment):
            self._control.append(message)
            self._look()

    def rejected(self, peer: Peer, error: str, text: str) -> None:
        """No for now, or for good."""
        if not self.alive or peer is not self._peer:
            return
        self.world.write("trainer {} is rejected: {}: {}", self.number, error, text)
        assert self._daemon is not None
        self._daemon.left(peer)
        self._daemon = self._peer = None
        if error == "RefusedError":
            self.refused = True
            self.world.refused(self, text)
            self.world.after(RETRY_S, self.connect)
        else:
            self.world.trainer_failed(self, error, text)
            self.failed = error

    def welcome(self, welcome: Welcome) -> None:
        self.refused = False
        self._number, self._order = welcome.session, welcome.order
        self._inbox.clear()
        self._control.clear()
        self.session = ClientProtocol(
            welcome.session,
            self.shape,
            self.prefetch,
            welcome.segment,
            self._next_cursor,
            shared=welcome.shared,
        )
        self._shared = welcome.shared
        placement = SimpleNamespace(device=self.device)
        self._memory = SessionMemory(self.session, self._view(welcome.segment), placement)  # type: ignore[arg-type]
        if self._wait is None:
            self.turn()
        else:  # it lost the daemon inside next(), and goes on there
            self._wait = None
            self._await()

    def _view(self, segment: Segment) -> Any:
        return View(segment, shared=self._shared)

    def hung_up(self, peer: Peer) -> None:
        """EOF, which is noticed when it waits; what it holds stays valid.

        It says Hello to the successor.
        """
        if not self.alive or peer is not self._peer:
            return
        if self.session is None:
            self._gone()
        else:
            self._control.append(None)
            self._look()

    def _gone(self) -> None:
        self.world.write("trainer {} meets EOF at {}", self.number, self.cursor)
        self._end_session()
        self.connect()

    def _end_session(self) -> None:
        if self._memory is not None:
            self._dead = [dead for dead in self._dead if dead() is not None]
            self._dead += [weakref.ref(mapping) for mapping in self._memory.mappings]  # type: ignore[arg-type]
            self._memory.close()
            shared_memory.tidy()
        self._daemon = self._peer = self.session = self._memory = None

    # messages

    def say(self, **more: bool) -> None:
        """Its progress, to the daemon's messages socket."""
        assert self.session is not None
        waited_s = self._waited_s + (self._wait.waited_s if self._wait else 0.0)
        progress = self.session.progress(**more, waited_s=waited_s)
        self.world.write("trainer {} says {}", self.number, progress)
        self.world.network.send(self.world.hear, progress)

    def hear(self, message: Descriptor | Pulse | Failure) -> None:
        if self.alive and self.session is not None and message.session == self._number:
            self._inbox.append(message)
            self._look()

    def _listen(self) -> bool:
        """Takes in what has arrived; True if there was anything."""
        assert self.session is not None
        arrived = bool(self._inbox)
        while self._inbox:
            message = self._inbox.popleft()
            if isinstance(message, Failure):
                self.world.write("trainer {} hears {}", self.number, message)
                self.world.trainer_failed(self, message.error, message.text)
                self.failed = message.error
            elif isinstance(message, Descriptor):
                self.session.receive(message)
        return arrived

    def _tell_if_due(self, waited: bool) -> None:
        """A batch was taken."""
        assert self.session is not None
        if waited:
            self.say()
        elif self.session.due:
            self._listen()
            if self.session.due:
                self.say()

    # the training loop

    def turn(self) -> None:
        """One pass of the loop: give back, perhaps change its mind, ask for the next batch."""
        if not self.alive or self.session is None or self.failed or self._wait or self.content:
            return
        seeder = self.world.seeder
        self._give_back()
        if not self.world.calm and seeder.random() < self.seeks:
            self._seek()
        elif not self.session.told or not steps_left(self.shape, self.cursor.position):
            self._begin(normalize_cursor(self.shape, self.cursor))
        self._next()

    def _next(self) -> None:
        """next(): the batch if it is here, else it waits, with its leases in its hands."""
        assert self.session is not None
        if self.session.cursor != self._next_cursor:
            raise Broken(
                f"trainer {self.number} wants {self._next_cursor}, its session is at "
                f"{self.session.cursor}"
            )
        if self.ready:
            self._hand_out()
            return
        batch = self._take()
        if batch is not None:
            self._took(batch, waited=False)
        else:
            self._await()

    def _take(self) -> Descriptor | None:
        """The next batch if it is here, as `Session` takes it."""
        assert self.session is not None
        assert self._memory is not None
        self._memory.settle()
        return self.session.take()

    @property
    def _next_cursor(self) -> Cursor:
        """The batch behind those that are ready."""
        return self.ready[-1][1] if self.ready else self.cursor

    def _await(self) -> None:
        assert self.session is not None
        self._wait = BatchWait(self._now_s, self.limits, told=self.session.told)
        self._look()

    @property
    def _now_s(self) -> float:
        return self.world.now + self._skew_s

    def _look(self) -> None:
        """The loop inside next(), until it sleeps: is the batch here now?

        What comes on the control socket is heard when it is not.
        """
        wait = self._wait
        if wait is None or self.session is None or self._memory is None or self.failed:
            return
        wait.turn(self._now_s)
        while True:
            if self._listen():
                wait.heard()
            batch = self._take()
            if batch is not None:
                self._took(batch, waited=True)
                return
            if self.failed:
                return
            asked = wait.message_due(self.session.dirty)
            if asked is not None:
                self.say(again=asked.ping, ping=asked.ping, waiting=True, stacks=asked.stacks)
            wait.warning_due()
            if wait.over(self.limits.timeout_s):  # an error; its loop calls next() again
                self._await()
                return
            if not self._control:
                break
            segment = self._control.popleft()
            if segment is None:
                self._gone()
                return
            self._memory.add(segment, self._view(segment))
        self._pause += 1
        pause_s = wait.pause_s(self.limits.timeout_s)
        if self._memory.busy:
            pause_s = min(pause_s, COPY_PAUSE_S)
        self.world.after(pause_s, self._awake, self._pause)

    def _awake(self, pause: int) -> None:
        if pause == self._pause:
            self._look()

    def prod(self) -> None:
        """The clock has jumped while nobody ran."""
        self._skew_s += JUMP_S
        self._look()

    def _took(self, batch: Descriptor, waited: bool) -> None:
        self._waited_s += self._wait.waited_s if self._wait else 0.0
        self._wait = None
        self._reads(batch, waited)

    def _reads(self, batch: Descriptor, waited: bool) -> None:
        self._got(batch)
        self._tell_if_due(waited)
        self._hand_out()

    def _hand_out(self) -> None:
        """The first batch that is ready; and others are made ready that are here already."""
        _, self.cursor = self.ready.popleft()
        self.taken += 1
        self.fresh_at = self.world.now
        while (
            len(self.ready) < self.ahead
            and not self.failed
            and steps_left(self.shape, self._next_cursor.position)
        ):
            batch = self._take()
            if batch is None:
                break
            self._got(batch)
            self._tell_if_due(waited=False)
        seeder = self.world.seeder
        pause = seeder.uniform(0.3, 1.5) * (0.01 if self.world.calm else self.think_s)
        if not self.world.calm and seeder.random() < 0.02:
            pause += seeder.uniform(1, 8)  # validation, a breakpoint, SIGSTOP
        self.world.after(pause, self._next_turn, self.session)

    def _next_turn(self, session: ClientProtocol) -> None:
        if session is self.session:
            self.turn()

    def _begin(self, at: Cursor) -> None:
        """A pass over the data begins: the daemon is told at once."""
        assert self.session is not None
        self.ready.clear()
        self.cursor = at
        self.session.seek(at)
        self.say(waiting=True)

    def _seek(self) -> None:
        assert self.session is not None
        seeder, at = self.world.seeder, normalize_cursor(self.shape, self.cursor)
        kind = seeder.randrange(6)
        if kind == 0:
            at = self.cursor  # no change of mind after all
        elif kind == 1:
            at = Cursor(at.epoch + 1, 0, 0)
        elif kind == 2:
            at = Cursor(seeder.randint(0, 3), 0, 0)
        elif kind == 3:
            at = Cursor(
                seeder.randint(0, 3), seeder.randint(0, self.shape.samples), seeder.randint(0, 9)
            )
        elif kind == 4:
            for _ in range(seeder.randint(1, 3)):
                at = normalize_cursor(self.shape, next_cursor(self.shape, at))
        else:
            block = self.shape.world_size * self.shape.batch_size
            back = seeder.randint(1, 3)
            at = Cursor(at.epoch, max(0, at.position - back * block), max(0, at.step - back))
        self.world.write("trainer {} seeks from {} to {}", self.number, self.cursor, at)
        self._begin(at)

    def _got(self, batch: Descriptor) -> None:
        """Compare it with the undisturbed one, row by row."""
        assert self.session is not None
        at = normalize_cursor(self.shape, self._next_cursor)
        cut = slice_at(self.shape, at)
        self.world.write("trainer {} takes step {} of {}: {}", self.number, at.step, cut, batch)
        if (batch.epoch, batch.start, batch.rows) != (cut.epoch, cut.start, cut.rows):
            raise Broken(f"trainer {self.number} got {batch}, at {at} it wants {cut}")
        want = self.samples.expected(self.seed, cut, batch.bad)
        indices, data, keys = self._read(batch)
        keys_wanted = [str(index) for index in indices] if self.samples.stored else []
        if (
            batch.failed != want.failed
            or not want.fits(indices)
            or data != indices
            or keys != keys_wanted
        ):
            raise Broken(
                f"trainer {self.number} got indices {indices}, data {data}, keys {keys} in "
                f"{batch}, it wants {want}"
            )
        if want.bad is not None and sorted(bad.index for bad in batch.bad) != sorted(want.bad):
            raise Broken(
                f"trainer {self.number} hears of bad samples {batch.bad}, it wants {want.bad}"
            )
        self.ready.append((batch, next_cursor(self.shape, at)))
        self._hold(batch)

    def _read(self, batch: Descriptor) -> tuple[list[Row], list[Row], list[str]]:
        return self.world.memory.read(batch)

    def _hold(self, batch: Descriptor) -> None:
        """As `BatchReader` reads it: as views of its slot, or as copies."""
        assert self.session is not None
        assert self._memory is not None
        slot = self.world.memory.segments[batch.segment].slots[batch.slot]
        if slot.holder is not None:
            raise Broken(f"trainer {self.number} got {batch} in a slot that it still holds")
        view = self._memory.view_of(batch)
        # What has no rows is given back at once. The last free slot is never lent to a trainer:
        # copied, and given back as well.
        if not batch.filled or (not self.ahead and self.session.free_slots() == 0):
            self._memory.lend(batch, None)
            return
        handle = Handle(slot, view.mapping)  # type: ignore[arg-type]
        arrival = uses = None
        if self.ahead:
            assert self.device is not None
            self.device.copy(batch, handle, own=True)
            arrival = SimpleNamespace(copied=self.device.mark())
        elif self.pins:
            uses = Uses(self.device)  # type: ignore[arg-type]
        self._memory.lend(batch, Made(None, handle, 0, arrival, uses))  # type: ignore[arg-type]
        if self.ahead:
            return
        slot.holder = (self.number, batch.generation)
        for row in range(batch.filled):
            if self.world.seeder.random() < 0.2:
                slot.data[row] = SCRIBBLE
        self.leases.append(Lease(batch, handle, slot.data[: batch.filled]))
        if self.pins:
            assert self.device is not None
            self.device.copy(batch, handle, own=False)

    def _give_back(self) -> None:
        """In any order.

        An orderly loop keeps the batch before this one; a hoarder keeps what it can.
        """
        seeder = self.world.seeder
        while self.leases:
            if len(self.leases) <= 1 and seeder.random() < 0.7:
                return
            if self.hoards and not self.world.calm and seeder.random() < 0.7:
                return
            self._release(self.leases.pop(seeder.randrange(len(self.leases))))

    def _release(self, lease: Lease) -> None:
        """The last view is dropped: the lease has no other."""
        batch, slot = lease.batch, lease.handle.slot
        if slot.data[: batch.filled] != lease.rows:
            raise Broken(
                f"trainer {self.number} held {batch}: {lease.rows} became "
                f"{slot.data[: batch.filled]}"
            )
        slot.holder = None

    # its end

    def die(self) -> None:
        """kill -9: the daemon sees EOF, its memory is gone.

        Its successor goes on at its last checkpoint.
        """
        if not self.alive:
            return
        self.world.write("trainer {} dies at {}", self.number, self.cursor)
        self.alive = False
        for lease in self.leases:
            lease.handle.slot.holder = None
        self.leases.clear()
        if self._daemon is not None:
            self.world.after(self.world.seeder.uniform(0, 0.2), self._daemon.left, self._peer)
        self.lose_device()

    def lose_device(self) -> None:
        """Its process is gone, and all copies with it."""
        self._end_session()
        if self.device is not None:
            self.device.fail()

    def settle(self) -> None:
        """It gives everything back and says so, several times over more than a second: whatever was
        lost is made good by that.
        """
        while self.leases:
            self._release(self.leases.pop())
        if self.session is None or self._memory is None or self.failed:
            return
        self._listen()
        while self._control and (segment := self._control[0]):
            self._control.popleft()
            self._memory.add(segment, self._view(segment))
        self._memory.settle()
        self.say(ping=True, again=True)

    @property
    def settled(self) -> int:
        """The session that must be settled now; 0 if there is none."""
        return 0 if self.session is None or self.failed or None in self._control else self._number

    def check_locks(self) -> None:
        """Everything is given back: no memory is page-locked but that of this session."""
        live = self.session.live if self.session is not None else ()
        locked = self.device.locked if self.device is not None else []
        if self.settled and not {*locked} <= {*live}:
            raise Broken(f"trainer {self.number} has {locked} page-locked, and uses {live}")

    def expects(self, segment: int, slot: int) -> bool:
        """Its session has a descriptor of this slot that it will show."""
        here = self.session.here if self.session is not None else ()
        return any((batch.segment, batch.slot) == (segment, slot) for batch in here)


class Madman(Trainer):
    """A client of its own kind: its messages are well formed and mean nothing.

    Whatever becomes of it, nobody else suffers.
    """

    honest = False

    def welcome(self, welcome: Welcome) -> None:
        assert self._daemon is not None
        self._number = welcome.session
        self._rave(self._daemon, welcome.segment, 1)

    def turn(self) -> None:
        pass

    def hung_up(self, peer: Peer) -> None:
        if peer is self._peer:
            self._daemon, self._peer, self._number = None, None, 0
            self.connect()

    def hear(self, message: Any) -> None:
        pass

    def die(self) -> None:
        self.alive = False
        if self._daemon is not None and self._peer is not None:
            self._daemon.left(self._peer)

    def _rave(self, daemon: Daemon, segment: Segment, seq: int) -> None:
        if not self.alive or daemon is not self._daemon:
            return
        seeder = self.world.seeder

        def number(likely: int) -> int:
            return seeder.choice([0, 1, 2, likely, likely + 1, seeder.randint(0, 20), 1 << 62])

        # what cannot be ends its session
        most = 1 << 62 if seeder.random() < 0.02 else self.shape.samples

        slots = seeder.choice(
            [segment.slots, segment.slots, segment.slots, number(segment.slots) % 40]
        )
        released = Released(
            seeder.choice([segment.segment, segment.segment, number(segment.segment)]),
            tuple(number(1) for _ in range(slots)),
            tuple(number(1) for _ in range(slots)),
        )
        progress = Progress(
            self._number,  # the daemon's socket lets no other pass
            seeder.choice([seq, seq, number(seq)]),
            max(1, number(1)),
            min(most, number(1)),
            min(most, number(self.shape.samples)),
            number(1),
            min(self.prefetch, number(1)),
            number(1),
            seeder.random() < 0.5,
            seeder.random() < 0.5,
            seeder.random() < 0.5,
            (released,) * seeder.choice([0, 1, 1, 2]),
            seeder.random() < 0.5,
        )
        self.world.network.send(self.world.hear, progress)
        self.world.after(seeder.uniform(0, 1), self._rave, daemon, segment, seq + 1)
