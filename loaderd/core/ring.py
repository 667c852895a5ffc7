"""The slots of one segment: who may write or read each of them, as a table of moves."""

from __future__ import annotations

from enum import Enum

from loaderd_wire.messages import Segment


class State(str, Enum):
    FREE = "free"
    FILLING = "filling"  # given to a batch; jobs may write it
    READY = "ready"  # the batch is whole, the client does not know of it
    ANNOUNCED = "announced"  # the client may read it
    LEASED = "leased"  # the trainer has got it, and may write it
    ENDING = "ending"  # nobody wants what is in it, but a job may still write it


# By these names in what runs for every batch: to look a member up in its class takes ten times as long.
FREE, FILLING, READY, ANNOUNCED, LEASED, ENDING = State


class Verb(str, Enum):  # str: its hash is quick, and the table is asked for each move
    CLAIM = "claim"
    FINISH = "finish"
    ANNOUNCE = "announce"
    LEASE = "lease"
    RELEASE = "release"
    ABANDON = "abandon"
    SETTLE = "settle"  # its last job has ended


CLAIM, FINISH, ANNOUNCE, LEASE, RELEASE, ABANDON, SETTLE = Verb

MOVES: dict[tuple[State, Verb], State] = {
    (FREE, CLAIM): FILLING,
    (FILLING, FINISH): READY,
    (FILLING, ABANDON): ENDING,
    (READY, ANNOUNCE): ANNOUNCED,
    (READY, ABANDON): ENDING,
    (ANNOUNCED, LEASE): LEASED,
    (ANNOUNCED, RELEASE): FREE,
    (LEASED, RELEASE): FREE,
    (ENDING, SETTLE): FREE,
}


class Ring:
    """States, generations and writers of a segment's slots.

    A slot's generation counts its claims from 1 and never falls. `writers[slot]` holds the jobs that write it, from Send until the
    worker has answered or is dead. A slot with a writer is FILLING or ENDING, never anything else.
    """

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.state = [FREE] * segment.slots
        self.generation = [0] * segment.slots
        self.writers: list[set[int]] = [set() for _ in range(segment.slots)]
        self._free = list(range(segment.slots - 1, -1, -1))

    @property
    def free(self) -> int:
        """Slots that may be claimed."""
        return len(self._free)

    @property
    def idle(self) -> bool:
        """No slot is claimed, announced, leased or being written: the segment may be dropped."""
        return len(self._free) == len(self.state)

    def count(self, state: State) -> int:
        return self.state.count(state)

    def move(self, slot: int, verb: Verb) -> None:
        """Raises ValueError for a move that the table doesn't have, or for one under a job's hands."""
        before = self.state[slot]
        to = MOVES.get((before, verb))
        if to is None or (self.writers[slot] and to not in (FILLING, ENDING)):
            raise ValueError(
                f"segment {self.segment.segment} slot {slot} is {before.value} with jobs {sorted(self.writers[slot])}: cannot {verb.value}"
            )
        self.state[slot] = to
        if to is FREE:
            self._free.append(slot)

    def claim(self) -> tuple[int, int] | None:
        """(slot, generation) of a slot that is FILLING from now on; None if none is FREE. The last one freed comes first: its pages are warm."""
        if not self._free:
            return None
        slot = self._free.pop()
        self.move(slot, CLAIM)
        self.generation[slot] += 1
        return slot, self.generation[slot]

    def abandon(self, slot: int) -> None:
        """Nobody wants a FILLING or READY slot any longer: FREE at once, or when its last job has ended."""
        self.move(slot, ABANDON)
        if not self.writers[slot]:
            self.move(slot, SETTLE)

    def wrote(self, slot: int, job: int) -> None:
        """The job has ended: it writes no more."""
        self.writers[slot].discard(job)
        if self.state[slot] is ENDING and not self.writers[slot]:
            self.move(slot, SETTLE)

    def invariants(self) -> None:
        name = f"segment {self.segment.segment}"
        assert sorted(self._free) == [i for i, s in enumerate(self.state) if s is FREE], f"{name}: the free list is wrong"
        for slot, (state, jobs) in enumerate(zip(self.state, self.writers, strict=True)):
            if jobs:
                assert state in (FILLING, ENDING), f"{name} slot {slot} is {state.value} with jobs {sorted(jobs)}"
            else:
                assert state is not ENDING, f"{name} slot {slot} is ending without a job"
