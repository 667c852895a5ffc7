"""Shared memory as memfds: made, reserved piece by piece, sealed, counted, given back."""

from __future__ import annotations

import fcntl
import functools
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from loaderd.system.fork_hooks import closed_in_children
from loaderd.system.loop import Loop
from loaderd_wire.messages import Segment

PIECE_BYTES = 16 << 20  # reserved in one turn of the loop: 3 to 8 ms
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

Allocate = Callable[[int, int, int], None]  # (fd, offset, bytes), as os.posix_fallocate


@dataclass(slots=True)
class _Held:
    session: int
    size: int
    fd: int
    filled: int = 0
    closed: bool = False


class SegmentStore:
    """Every segment of this daemon, from its reservation until its last worker has unmapped it.

    The one owner of the descriptors.

    A segment counts in `live_bytes` from `reserve` to `free`; `unfilled_bytes` is what is promised
    and not yet taken from the system, so what the system calls available must be less by that.
    """

    def __init__(self, loop: Loop, *, allocate: Allocate = os.posix_fallocate) -> None:
        self._loop = loop
        self._allocate = allocate
        self._held: dict[int, _Held] = {}
        self.live_bytes = 0
        closed_in_children(self)

    @property
    def unfilled_bytes(self) -> int:
        """Bytes that are promised and not yet taken from the system."""
        return sum(held.size - held.filled for held in self._held.values())

    def of_session(self, session: int) -> tuple[int, ...]:
        """The ids of a session's segments, oldest first."""
        return tuple(number for number, held in self._held.items() if held.session == session)

    def reserve(
        self, session: int, segment: Segment, done: Callable[[int, OSError | None], None]
    ) -> None:
        """Make the memfd and take its pages from the system, PIECE_BYTES a turn.

        After `free` in between `done` isn't called. The fd stays ours.

        Args:
            session: Whose it is.
            segment: Its number and size.
            done: Called as (fd, None); or as (-1, error) when everything has been given back after
                an error.
        """
        size = segment.slots * segment.slot_bytes
        held = _Held(session, size, -1)
        self._held[segment.segment] = held
        self.live_bytes += size
        try:
            held.fd = os.memfd_create(
                f"loaderd-{segment.segment}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
            )
            os.ftruncate(held.fd, size)
            fcntl.fcntl(held.fd, fcntl.F_ADD_SEALS, SEALS)
        except OSError as error:
            self.free(segment.segment)
            done(-1, error)
            return
        self._fill(segment.segment, held, done)

    def read(self, segment: int, offset: int, size: int) -> bytes:
        """A copy of some bytes of a segment.

        Args:
            segment: Its number.
            offset: Of the first byte.
            size: How many.

        Returns:
            The bytes; fewer where the segment ends before, none where it has gone.
        """
        held = self._held.get(segment)
        return os.pread(held.fd, size, offset) if held is not None and held.fd >= 0 else b""

    @contextmanager
    def lent(self, segment: int, *, writable: bool) -> Iterator[int]:
        """A descriptor of a segment, to be copied and handed to a client.

        Without /proc it is writable all the same.

        Args:
            segment: Its number. It has been reserved.
            writable: False: who gets it can map it for reading only.
        """
        own = fd = self._held[segment].fd
        if not writable:
            with suppress(OSError):
                os.fchmod(own, stat.S_IRUSR)  # nor can another user open it again for writing
                fd = os.open(f"/proc/self/fd/{own}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            if fd != own:
                os.close(fd)

    def free(self, segment: int) -> None:
        """Forget the segment: nobody of ours maps it any longer. Idempotent."""
        held = self._held.pop(segment, None)
        if held is not None:
            self.live_bytes -= held.size
            held.closed = True
            if held.fd >= 0:
                os.close(held.fd)

    def close(self) -> None:
        """Free all segments."""
        for segment in tuple(self._held):
            self.free(segment)

    def disown(self) -> None:
        """In a forked child: close the descriptors."""
        for held in self._held.values():
            held.closed = True
            if held.fd >= 0:
                os.close(held.fd)
                held.fd = -1

    def _fill(self, segment: int, held: _Held, done: Callable[[int, OSError | None], None]) -> None:
        if held.closed:
            return
        piece = min(PIECE_BYTES, held.size - held.filled)
        try:
            self._allocate(held.fd, held.filled, piece)
        except OSError as error:
            self.free(segment)
            done(-1, error)
            return
        held.filled += piece
        if held.filled < held.size:
            # A timer, not `soon`: every other descriptor gets its turn in between, and so does
            # whoever was put off.
            self._loop.later(0.0, functools.partial(self._fill, segment, held, done))
        else:
            done(held.fd, None)
