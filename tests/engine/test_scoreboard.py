"""The scoreboard: what is read belongs together, whoever may be writing."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from loaderd.core.jobs import IMPORTING, Stage, stamp, unstamp
from loaderd.engine.scoreboard import KEY, Scoreboard, StatusLine


@pytest.fixture
def board() -> Iterator[Scoreboard]:
    made = Scoreboard(20)
    yield made
    made.close()
    made.close()


def test_each_worker_has_a_line_of_its_own(board: Scoreboard) -> None:
    lines = [StatusLine(board.fd, n) for n in range(20)]
    for n, line in enumerate(lines):
        line.name(n, f"key {n}")
        line.stamp(n + 1, n, Stage.DECODE)
    for n in range(20):
        assert board.read(n) == (stamp(n + 1, n, Stage.DECODE), f"key {n}")


def test_a_new_line_says_nothing(board: Scoreboard) -> None:
    assert board.read(3) == (0, "")
    line = StatusLine(board.fd, 3)
    line.name(0, "old")
    line.stamp(1, 0, Stage.READ)
    board.clear(3)
    assert board.read(3) == (0, "")


def test_a_long_key_is_cut_and_a_cut_letter_does_no_harm(board: Scoreboard) -> None:
    line = StatusLine(board.fd, 1)
    line.name(0, "k" * (KEY - 1) + "é")
    line.stamp(1, 0, Stage.READ)
    assert board.read(1)[1] == "k" * (KEY - 1) + "\ufffd"
    line.name(1, "lone \udc80 half")
    line.stamp(1, 1, Stage.READ)
    assert board.read(1)[1] == "lone ? half"


def test_the_next_rows_name_does_not_touch_that_of_the_row_at_work(board: Scoreboard) -> None:
    line = StatusLine(board.fd, 1)
    line.name(6, "six")
    line.stamp(9, 6, Stage.WRITE)
    line.name(7, "seven")
    assert board.read(1) == (stamp(9, 6, Stage.WRITE), "six")


def test_word_and_key_belong_together_while_a_worker_is_busy(board: Scoreboard) -> None:
    line = StatusLine(board.fd, 5)
    stop = threading.Event()

    def work() -> None:
        row = 0
        while not stop.is_set():
            row = (row + 1) % 1000
            line.name(row, str(row) * 20)
            line.stamp(1, row, Stage.READ)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(3000):
            word, key = board.read(5)
            row = unstamp(word)[1]
            assert key in ("", str(row) * 20)
    finally:
        stop.set()
        worker.join()


def test_a_forked_child_that_stamps_ends_and_leaves_the_line_alone(board: Scoreboard) -> None:
    line = StatusLine(board.fd, 2)
    line.name(0, "mine")
    line.stamp(1, 0, Stage.READ)
    pid = os.fork()
    if pid == 0:
        try:
            line.stamp(2, 2, Stage.WRITE)
        finally:
            os._exit(77)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert board.read(2) == (stamp(1, 0, Stage.READ), "mine")


def test_a_mark_on_a_stamp_changes_nothing_else_and_goes_with_the_next_stamp(
    board: Scoreboard,
) -> None:
    line = StatusLine(board.fd, 4)
    line.importing(True)
    assert board.read(4) == (0, "")  # who does nothing is not marked
    line.name(3, "k")
    line.stamp((1 << 34) - 1, (1 << 20) - 1, Stage.COMPACT)
    line.importing(True)
    word, _ = board.read(4)
    assert unstamp(word) == ((1 << 34) - 1, (1 << 20) - 1, Stage.COMPACT)
    assert word & IMPORTING
    line.importing(False)
    assert board.read(4)[0] == word & ~IMPORTING
    line.importing(True)
    line.stamp(2, 0, Stage.READ)
    assert board.read(4)[0] == stamp(2, 0, Stage.READ)


def test_a_wild_word_reads_as_idle() -> None:
    assert unstamp((7 << 24) | 15) == (0, 0, Stage.IDLE)


def test_a_copied_line_says_something_else() -> None:
    here, there = Scoreboard(1), Scoreboard(1)
    with closing(here), closing(there):
        line = StatusLine(there.fd, 0)
        line.name(3, "a key")
        line.stamp(5, 3, Stage.DECODE, 2)
        StatusLine(here.fd, 0).copy(*there.read(0))
        assert here.read(0) == there.read(0)
        assert here.read(0)[1] == "a key"
