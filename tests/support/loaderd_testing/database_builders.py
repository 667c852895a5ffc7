"""Databases of a few hundred values, and what opening a bad one says."""

from __future__ import annotations

from pathlib import Path

import pytest

from loaderd.data.errors import SourceError
from loaderd.data.lmdb.open_stores import open_store
from loaderd_testing.sample_builders import write


def filled(path: Path, *, subdir: bool = False) -> Path:
    """A database of 300 values of 3,000 bytes."""
    write(path, {b"%04d" % i: bytes([i % 256]) * 3000 for i in range(300)}, subdir=subdir)
    return path


def refusal(path: Path) -> str:
    """What opening it says: one line that names the path."""
    with pytest.raises(SourceError) as caught:
        open_store(str(path))
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    return text
