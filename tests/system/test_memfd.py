from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Callable

import pytest

from loaderd.system import memfd
from loaderd.system.loop import Loop
from loaderd.system.memfd import PIECE_BYTES, SEALS, SegmentStore
from loaderd_wire.messages import Segment

Until = Callable[[Callable[[], object]], None]
BIG = Segment(7, 5, PIECE_BYTES // 2 + 4096, 64, 0)


class Answers(list[tuple[int, OSError | None]]):
    def __call__(self, fd: int, error: OSError | None) -> None:
        self.append((fd, error))


def test_a_reserved_segment_is_sealed_and_has_its_pages(loop: Loop, until: Until) -> None:
    segments, answers = SegmentStore(loop), Answers()
    segments.reserve(1, BIG, answers)
    assert answers == []  # in pieces: others come in between
    assert segments.live_bytes == BIG.slots * BIG.slot_bytes
    until(lambda: answers)
    fd, error = answers[0]
    assert error is None
    found = os.fstat(fd)
    assert found.st_size == BIG.slots * BIG.slot_bytes
    assert found.st_blocks * 512 >= found.st_size
    assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) == SEALS
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, found.st_size + 1)
    with mmap.mmap(fd, found.st_size) as view:
        view[0] = 1
    assert not os.get_inheritable(fd)
    assert segments.unfilled_bytes == 0
    segments.close()
    assert segments.live_bytes == 0


def test_a_segment_that_many_read_can_be_written_by_none_of_them(loop: Loop, until: Until) -> None:
    segments, answers = SegmentStore(loop), Answers()
    segments.reserve(1, BIG, answers)
    until(lambda: answers)
    size = BIG.slots * BIG.slot_bytes
    with segments.lent(7, writable=True) as own, mmap.mmap(own, size) as view:
        assert own == answers[0][0]
        view[0] = 1
        with segments.lent(7, writable=False) as lent:
            assert fcntl.fcntl(lent, fcntl.F_GET_SEALS) == SEALS
            assert not os.get_inheritable(lent)
            with pytest.raises(PermissionError):
                mmap.mmap(lent, size)
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.pwrite(lent, b"2", 0)
            read = mmap.mmap(lent, size, prot=mmap.PROT_READ)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(lent)
        view[0] = 3
        assert read[0] == 3
        read.close()
    segments.close()


def test_without_proc_many_read_a_segment_all_the_same(
    loop: Loop, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: object) -> int:
        raise FileNotFoundError

    segments, answers = SegmentStore(loop), Answers()
    segments.reserve(1, BIG, answers)
    until(lambda: answers)
    monkeypatch.setattr(memfd.os, "open", absent)
    with segments.lent(7, writable=False) as lent:
        assert lent == answers[0][0]
    os.fstat(lent)  # it is still there
    segments.close()


def test_a_reservation_that_fails_in_the_middle_gives_all_back(loop: Loop, until: Until) -> None:
    made: list[int] = []

    def allocate(fd: int, offset: int, size: int) -> None:
        made.append(fd)
        if len(made) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.posix_fallocate(fd, offset, size)

    segments, answers = SegmentStore(loop, allocate=allocate), Answers()
    segments.reserve(1, BIG, answers)
    until(lambda: answers)
    fd, error = answers[0]
    assert fd == -1
    assert error is not None
    assert error.errno == errno.ENOSPC
    assert segments.live_bytes == segments.unfilled_bytes == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made[0])


def test_a_session_that_ends_while_its_memory_is_reserved_hears_no_more(loop: Loop) -> None:
    segments, answers = SegmentStore(loop), Answers()
    segments.reserve(1, BIG, answers)
    assert segments.of_session(1) == (7,)
    segments.free(7)
    for _ in range(6):
        loop.turn(0)
    assert answers == []
    assert segments.live_bytes == 0
    assert segments.of_session(1) == ()


def test_others_are_served_between_two_pieces(
    loop: Loop, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memfd, "PIECE_BYTES", 4096)
    segments, answers = SegmentStore(loop), Answers()
    before = loop.turns
    segments.reserve(1, Segment(1, 10, 4096, 64, 0), answers)
    until(lambda: answers)
    assert loop.turns - before >= 9
    segments.close()


def test_bytes_of_a_segment_can_be_read_while_it_is_there(loop: Loop, until: Until) -> None:
    segments, answers = SegmentStore(loop), Answers()
    segments.reserve(1, BIG, answers)
    until(lambda: answers)
    os.pwrite(answers[0][0], b"abcdef", 4096)
    assert segments.read(BIG.segment, 4097, 3) == b"bcd"
    assert segments.read(BIG.segment, BIG.slots * BIG.slot_bytes - 1, 3) == b"\0"
    assert segments.read(BIG.segment + 1, 0, 3) == b""
    segments.free(BIG.segment)
    assert segments.read(BIG.segment, 4097, 3) == b""
