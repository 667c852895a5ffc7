"""Leases that end when a device is done with their slots, and the page locks of their segments.

A segment is unlocked after the last of its leases, and before it is unmapped. All of this happens
in the calls of a Loader: a finalizer, which may run in any thread at any moment, does none of it.
"""

from __future__ import annotations

import mmap
import os
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from loaderd_client import fork_safety
from loaderd_client.devices.interface import Device, Mark, Stream, Uses
from loaderd_client.log import warn
from loaderd_client.shared_memory import Lease, Lent, SegmentView, Slot


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """A lease that is over for the trainer, while a device may still read its slot.

    Attributes:
        lease: Segment, slot and generation.
        marks: Points in the device's work behind which nothing reads it.
        unmarked: Streams that may read it and have no mark yet; None: the current one.
        slot: What keeps its memory mapped, if no segment does.
    """

    lease: Lease
    marks: list[Mark]
    unmarked: list[Stream | None]
    slot: Slot | None = None


class PageLocks:
    """The segments of one session, and which of its slots a device may still read.

    Not for two threads at once, except `depart`.
    """

    def __init__(self, device: Device) -> None:
        """Lock nothing yet.

        Args:
            device: What reads the slots.
        """
        self._device = device
        self._process = os.getpid()
        self._memory: dict[int, mmap.mmap] = {}  # of the segments that are locked
        self._unlocking: dict[int, Mark] = {}  # behind all copies from a segment
        self._tried: set[int] = set()
        self._lent: dict[Lease, tuple[Lent, Uses]] = {}  # what the trainer has views of
        self._reading: list[Reading] = []

    @property
    def busy(self) -> bool:
        """A device may still read slots that nobody else uses, or a segment is to be unlocked."""
        return bool(self._reading or self._unlocking)

    def lock(self, view: SegmentView) -> None:
        """Lock a segment, if that was not tried before.

        Where it fails, one warning says so, and all memory stays pageable from then on.
        """
        number = view.segment.segment
        if number not in self._tried:
            self._tried.add(number)
            if self._device.asynchronous and self._device.name not in _failed:
                try:
                    self._device.lock(view.mapping)
                    self._memory[number] = view.mapping
                except (OSError, RuntimeError) as error:
                    _failed.add(self._device.name)
                    warn(
                        "batches cannot be page-locked for %s (%s): they are copied from pageable "
                        "memory, which is slower",
                        self._device.name,
                        str(error),
                    )

    def read_until(self, slot: Slot, lease: Lease, mark: Mark) -> None:
        """Have a lease end with a mark behind the copies from its slot."""
        self._reading.append(Reading(lease, [mark], [], slot))

    def lent(self, lent: Lent, uses: Uses) -> None:
        """The trainer has views of a slot, and may have a device read them."""
        self._lent[lent.lease] = (lent, uses)

    def dropped(self, lease: Lease) -> bool:
        """The trainer has dropped its last view of a slot.

        The lease ends after what it has queued until now. False if no device may read the slot.
        """
        if lease not in self._lent:
            return False
        _, uses = self._lent.pop(lease)
        self._reading.append(Reading(lease, uses.marks, [None, *uses.streams]))
        return True

    def over(self) -> list[Lease]:
        """The leases that have ended since the last call. Never waits."""
        if not self._reading or self._device.capturing():
            return []
        ended = [reading for reading in self._reading if self._is_over(reading)]
        if ended:
            self._reading = [reading for reading in self._reading if reading not in ended]
        return [reading.lease for reading in ended]

    def unlock(self, live: Collection[int]) -> None:
        """Unlock the segments that are not live and that nobody reads any more.

        A copy whose batch was never handed out may still be under way, so that a mark behind all
        copies comes first.

        Args:
            live: Numbers of the segments whose batches are still wanted.
        """
        unwanted = [number for number in self._memory if number not in live]
        if not unwanted or self._device.capturing():
            return
        used = {lease[0] for lease in self._lent} | {r.lease[0] for r in self._reading}
        for number in [n for n in unwanted if n not in used]:
            if number not in self._unlocking:
                with self._device.copying():
                    self._unlocking[number] = self._device.mark()
            if self._unlocking[number].done():
                self._device.unlock(self._memory.pop(number))
                del self._unlocking[number]

    def depart(self) -> None:
        """The session is closed: `sweep` does the rest. Touches no device.

        In a forked child nothing is done: the locks are its parent's.
        """
        if os.getpid() == self._process:
            _departed.append(self)
        else:
            fork_safety.forget(self)

    def finish(self) -> bool:
        """After `depart`: unlock what can be. True if nothing is left."""
        for lease in [lease for lease, (lent, _) in self._lent.items() if lent() is None]:
            self.dropped(lease)
        self.over()
        self.unlock(())
        return not (self._memory or self._lent or self._reading)

    def _is_over(self, reading: Reading) -> bool:
        while reading.unmarked:
            reading.marks.append(self._device.mark_stream(reading.unmarked[-1]))
            reading.unmarked.pop()
        return all(mark.done() for mark in reading.marks)


_failed: set[str] = set()  # devices for which memory could not be locked
_departed: deque[PageLocks] = deque()


def sweep(wait_s: float = 0.0) -> None:
    """Unlock what sessions that are closed have left behind.

    Args:
        wait_s: How long to wait for copies that are under way.
    """
    end_s = time.monotonic() + wait_s
    while _departed:
        for _ in range(len(_departed)):
            try:
                locks = _departed.popleft()
            except IndexError:  # another thread has it
                return
            try:
                finished = locks.finish()
            except RuntimeError:  # of a device that has failed: all of its work is lost, and said
                finished = True
            if not finished:
                _departed.append(locks)
        if not any(locks.busy for locks in _departed) or time.monotonic() >= end_s:
            return
        time.sleep(0.001)


def _in_child() -> None:
    fork_safety.forget(*_departed)
    _departed.clear()


os.register_at_fork(after_in_child=_in_child)
