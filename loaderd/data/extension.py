"""The shared objects that are built from native/ when the package is installed and there is a C compiler. None of them knows Python: one that
was built beside any version serves every other, and is called through ctypes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path


def load(name: str, declare: Callable[[ctypes.CDLL], bool]) -> ctypes.CDLL | None:
    """The shared object of that name, if it is there and loads.

    declare: gives its functions their types; False, or AttributeError, if it was built from other sources.
    """
    for path in sorted(Path(__file__).parent.glob(f"{name}*.so")):
        try:
            found = ctypes.CDLL(str(path))
            if declare(found):
                return found
        except (OSError, AttributeError):
            continue  # built for another machine, or from other sources
    return None
