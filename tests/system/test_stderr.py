"""What libraries in C print on descriptor 2 is kept, and Python's own stderr goes on."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loaderd.system.stderr import MAX_LINE, STDERR, CapturedStderr, keep_named


@contextmanager
def printing(folder: Path) -> Iterator[Path]:
    """Where descriptor 2 and sys.stderr go meanwhile.

    No fixture: pytest changes descriptor 2 itself between a fixture and its test.
    """
    path, before, python = folder / "stderr", os.dup(STDERR), sys.stderr
    with path.open("w") as file:
        os.dup2(file.fileno(), STDERR)
        sys.stderr = os.fdopen(STDERR, "w", closefd=False)
        try:
            yield path
        finally:
            sys.stderr.flush()
            sys.stderr = python
            os.dup2(before, STDERR)
            os.close(before)


def say(text: bytes) -> None:
    """As a library in C does."""
    os.write(STDERR, text)


def flood() -> None:
    while True:
        say(b"x" * 1000 + b"\n")


def test_what_is_printed_is_kept_line_by_line_and_shown_to_nobody(tmp_path: Path) -> None:
    with printing(tmp_path) as printed, CapturedStderr() as captured:
        assert captured.lines() == []
        say(b"libpng warning: one\n\n  two  \nthr")
        assert captured.lines() == ["libpng warning: one", "two"]
        assert captured.lines() == []
        say(b"ee\n")
        assert captured.lines() == ["three"]
    assert printed.read_text() == ""


def test_a_line_is_cut_and_one_without_an_end_is_not_kept_whole(tmp_path: Path) -> None:
    with printing(tmp_path) as printed, CapturedStderr() as captured:
        say(b"x" * (MAX_LINE + 1) + b"\n" + b"y" * 2 * MAX_LINE)
        assert captured.lines() == ["x" * MAX_LINE]
        say(b"z\n\xff\n")
        assert captured.lines() == ["y" * MAX_LINE, "\\xff"]
    assert printed.read_text() == ""


def test_a_flood_makes_nobody_wait(tmp_path: Path) -> None:
    with printing(tmp_path) as printed, CapturedStderr() as captured:
        with pytest.raises(BlockingIOError):
            flood()
        assert captured.lines()
    assert printed.read_text() == ""


def test_python_prints_where_it_did_before_meanwhile_and_after(tmp_path: Path) -> None:
    with printing(tmp_path) as printed:
        python = sys.stderr
        print("before", file=sys.stderr)
        with CapturedStderr() as captured:
            print("meanwhile", file=sys.stderr)
            assert captured.lines() == []
        assert sys.stderr is python
        print("after", file=sys.stderr, flush=True)
        say(b"and C too\n")
    assert printed.read_text() == "before\nmeanwhile\nafter\nand C too\n"


@pytest.mark.parametrize("stream", [None, io.StringIO()])
def test_a_stderr_of_pythons_that_goes_elsewhere_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: io.StringIO | None
) -> None:
    with printing(tmp_path), monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        with CapturedStderr():
            assert sys.stderr is stream
        assert sys.stderr is stream


def test_a_closed_descriptor_2_is_no_place_for_the_next_file(tmp_path: Path) -> None:
    with printing(tmp_path) as printed:
        sys.stderr.flush()
        os.close(STDERR)
        with CapturedStderr() as captured:
            say(b"kept\n")
            assert captured.lines() == ["kept"]
        say(b"for nobody\n")
    assert printed.read_text() == ""


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    with printing(tmp_path):
        before = os.listdir("/proc/self/fd")
        with CapturedStderr():
            pass
        assert os.listdir("/proc/self/fd") == before


def test_a_log_that_was_removed_is_made_again_for_all_who_have_its_descriptor(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log"
    with path.open("ab", buffering=0) as file:
        path.unlink()
        for line in (b"it begins\n", b"it goes on\n"):  # then it is there
            keep_named(file.fileno(), str(path))
            file.write(line)
    assert path.read_text() == "it begins\nit goes on\n"
    assert path.stat().st_mode & 0o777 == 0o600
