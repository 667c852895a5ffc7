"""A database's structure is verified without opening it, and whatever the file does stays in
another process.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loaderd.data.errors import SourceError
from loaderd.data.lmdb.verify import can_verify, state_of, verify
from loaderd_testing.sample_builders import write

PAGE = 4096


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A file of a few hundred pages, some of them overflow pages."""
    write(tmp_path / "db", {b"%06d" % n: b"v" * (100 if n % 10 else 9000) for n in range(3000)})
    return tmp_path / "db"


def spoil(path: Path, page: int, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(page * PAGE + at)
        file.write(data)


def test_a_sound_file_has_no_problems(database: Path) -> None:
    assert can_verify()
    verdict = verify(str(database))
    assert (verdict.problems, verdict.remark) == ((), "")
    assert verdict.state == state_of(str(database))


def leaf(path: Path) -> int:
    """A page with keys in it."""
    data = path.read_bytes()
    pages = range(2, len(data) // PAGE)
    return next(
        n
        for n in pages
        if data[n * PAGE : n * PAGE + 12] == n.to_bytes(8, "little") + b"\0\0\x02\0"
    )


@pytest.mark.parametrize(
    ("at", "data"),
    [
        (0, b"\xff" * 16),  # its header
        (16, b"\xff\xff"),  # where a node lies
        (0, bytes(PAGE)),  # all of it, as a download that was broken off leaves it
        (10, b"\x55"),
    ],
)
def test_a_torn_page_is_found(database: Path, at: int, data: bytes) -> None:
    spoil(database, leaf(database), at, data)
    assert verify(str(database)).problems


def test_a_root_that_points_beyond_the_file_is_found_and_not_followed(database: Path) -> None:
    for page in (0, 1):
        # root of the main database
        spoil(database, page, 16 + 24 + 48 + 40, (1 << 40).to_bytes(8, "little"))
    assert verify(str(database)).problems


def test_a_file_that_is_cut_short_is_told_before_any_page_is_read(database: Path) -> None:
    os.truncate(database, 50 * PAGE)
    with pytest.raises(SourceError, match="is cut short"):
        verify(str(database))
