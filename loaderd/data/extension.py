"""The shared objects that are built from native/ when the package is installed and there is a C compiler. None of them knows Python: one that
was built beside any version serves every other, and is called through ctypes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path


def load(name: str, declare: Callable[[ctypes.CDLL], object]) -> ctypes.CDLL | None:
    """The shared object of that name, if it is there and loads.

    declare: gives its functions their types. Raises AttributeError if it was built from other sources.
    """
    try:
        found = ctypes.CDLL(str(Path(__file__).parent / f"{name}.so"))
        declare(found)
    except (OSError, AttributeError):
        return None  # not built, built for another machine, or from other sources
    return found


def same(version: int, wanted: int) -> None:
    """Raises AttributeError if what a shared object says of itself isn't what its caller knows."""
    if version != wanted:
        raise AttributeError(f"version {version}, not {wanted}")
