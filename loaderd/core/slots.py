"""The slots of one segment: who may write or read each of them, as a table of moves."""

from __future__ import annotations

from enum import Enum

from loaderd_wire.messages import Segment


class SlotState(str, Enum):
    """What a slot is used for."""

    FREE = "free"
    FILLING = "filling"  # given to a batch; jobs may write it
    READY = "ready"  # the batch is made, the client does not know of it
    ANNOUNCED = "announced"  # the client may read it
    LEASED = "leased"  # the trainer has it, and may write it
    ENDING = "ending"  # the batch is not wanted, but a job may still write it


# Used by these names in what runs for every batch: a lookup in the class costs ten times as much.
FREE, FILLING, READY, ANNOUNCED, LEASED, ENDING = SlotState


class SlotEvent(str, Enum):  # str: its hash is fast, and every move looks it up in the table
    """What may happen to a slot."""

    CLAIM = "claim"
    FINISH = "finish"
    ANNOUNCE = "announce"
    LEASE = "lease"
    RELEASE = "release"
    KEEP = "keep"  # of a group: no client reads it any longer, and its batch stays
    ABANDON = "abandon"
    SETTLE = "settle"  # its last job has ended


CLAIM, FINISH, ANNOUNCE, LEASE, RELEASE, KEEP, ABANDON, SETTLE = SlotEvent

MOVES: dict[tuple[SlotState, SlotEvent], SlotState] = {
    (FREE, CLAIM): FILLING,
    (FILLING, FINISH): READY,
    (FILLING, ABANDON): ENDING,
    (READY, ANNOUNCE): ANNOUNCED,
    (READY, ABANDON): ENDING,
    (ANNOUNCED, LEASE): LEASED,
    (ANNOUNCED, RELEASE): FREE,
    (ANNOUNCED, KEEP): READY,
    (LEASED, RELEASE): FREE,
    (ENDING, SETTLE): FREE,
}


class SlotTable:
    """States, generations and writers of a segment's slots.

    A slot with a writer is FILLING or ENDING.

    Attributes:
        segment: The segment.
        state: State of each slot.
        generation: How often each slot was claimed.
        writers: For each slot the jobs that write it. A job is in there from the moment it is sent
            until its worker has answered or is dead.
    """

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.state = [FREE] * segment.slots
        self.generation = [0] * segment.slots
        self.writers: list[set[int]] = [set() for _ in range(segment.slots)]
        self._free = list(range(segment.slots - 1, -1, -1))

    @property
    def free(self) -> int:
        """Number of slots that may be claimed."""
        return len(self._free)

    @property
    def idle(self) -> bool:
        """No slot is claimed, announced, leased or being written: the segment may be freed."""
        return len(self._free) == len(self.state)

    def count(self, state: SlotState) -> int:
        """Number of slots in a state."""
        return self.state.count(state)

    def move(self, slot: int, verb: SlotEvent) -> None:
        """Change a slot's state.

        Args:
            slot: Index of the slot.
            verb: What happens to it.

        Raises:
            ValueError: The table has no such move, or a job writes the slot. The text names all
                three.
        """
        before = self.state[slot]
        to = MOVES.get((before, verb))
        if to is None or (self.writers[slot] and to not in (FILLING, ENDING)):
            raise ValueError(
                f"segment {self.segment.segment} slot {slot} is {before.value} with jobs "
                f"{sorted(self.writers[slot])}: cannot {verb.value}"
            )
        self.state[slot] = to
        if to is FREE:
            self._free.append(slot)

    def claim(self) -> tuple[int, int] | None:
        """Take a FREE slot for a batch: it is FILLING now.

        The slot that was freed last comes first, because its pages are still in the cache.

        Returns:
            (slot, generation), or None if no slot is FREE.
        """
        if not self._free:
            return None
        slot = self._free.pop()
        self.move(slot, CLAIM)
        self.generation[slot] += 1
        return slot, self.generation[slot]

    def abandon(self, slot: int) -> None:
        """A FILLING or READY slot is not wanted any longer.

        It is FREE at once, or ENDING until its last job has ended.
        """
        self.move(slot, ABANDON)
        if not self.writers[slot]:
            self.move(slot, SETTLE)

    def wrote(self, slot: int, job: int) -> None:
        """A job has ended and writes the slot no more.

        Args:
            slot: Index of the slot.
            job: Number of the job.
        """
        self.writers[slot].discard(job)
        if self.state[slot] is ENDING and not self.writers[slot]:
            self.move(slot, SETTLE)

    def invariants(self) -> None:
        """Check the table.

        Raises:
            AssertionError: It contradicts itself.
        """
        name = f"segment {self.segment.segment}"
        assert sorted(self._free) == [i for i, s in enumerate(self.state) if s is FREE], (
            f"{name}: the free list is wrong"
        )
        for slot, (state, jobs) in enumerate(zip(self.state, self.writers, strict=True)):
            if jobs:
                assert state in (FILLING, ENDING), (
                    f"{name} slot {slot} is {state.value} with jobs {sorted(jobs)}"
                )
            else:
                assert state is not ENDING, f"{name} slot {slot} is ending without a job"
