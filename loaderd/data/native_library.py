"""The native parts: shared objects that are built from native/ when the package is installed.

There must be a C compiler then. None of them knows Python: one that was built beside any version
serves every other, and is called through ctypes. Every part can be missing: slower code does the
same work then. This module imports neither numpy nor anything else of the daemon's packages.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
REINSTALL = "pip install --force-reinstall --no-deps --no-cache-dir --no-binary loaderd loaderd"


@dataclass(frozen=True, slots=True)
class NativePart:
    """One of the shared objects.

    Attributes:
        name: Of its file, without ".so".
        version_function: Takes nothing and returns the version of its sources.
        version: The version that this loaderd calls. Another one counts as missing.
        cost: What is slower without it, with the ratio that tests/bench/native_parts.py measured.
    """

    name: str
    version_function: str
    version: int
    cost: str


CROP = NativePart(
    "_crop", "loaderd_crop_version", 3, "decoding and cropping a JPEG takes 2.2 times as long"
)
JPEG = NativePart(
    "_jpeg",
    "loaderd_jpeg_version",
    1,
    "`loaderd pack` needs the jpegtran program to rewrite a JPEG, and takes 2.8 times as long",
)
ROWS = NativePart(
    "_rows",
    "loaderd_rows_version",
    1,
    "copying raw rows takes 1.4 times (150 KB each) to 3.4 times (1 KB each) as long",
)
PARTS = (CROP, JPEG, ROWS)


def load(
    part: NativePart, declare: Callable[[ctypes.CDLL], object] = lambda found: None
) -> ctypes.CDLL | None:
    """Load a part.

    Args:
        part: Which one.
        declare: Gives its functions their types. May raise AttributeError for one that is not
            there.

    Returns:
        The shared object; None if it was not built, was built for another machine or from other
            sources.
    """
    try:
        found = ctypes.CDLL(str(FOLDER / f"{part.name}.so"))
        if getattr(found, part.version_function)() != part.version:
            return None
        declare(found)
    except (OSError, AttributeError):
        return None
    return found


def present() -> dict[str, bool]:
    """Name of each native part -> whether this installation has it."""
    return {part.name: load(part) is not None for part in PARTS}


def described(found: dict[str, bool]) -> str:
    """What `--version` and `status` say of the native parts.

    Args:
        found: As `present` gives it.
    """
    missing = [name for name, there in found.items() if not there]
    return (
        f"native parts: {', '.join(found)}"
        if not missing
        else f"native parts missing: {', '.join(missing)}"
    )


def warnings() -> list[str]:
    """A warning that names the parts which this installation lacks.

    It says what is slower without each and how to get them; none if it has all.
    """
    found = present()
    missing = [part for part in PARTS if not found[part.name]]
    if not missing:
        return []
    costs = "; ".join(f"without {part.name} {part.cost}" for part in missing)
    return [
        f"native parts are missing: {costs}. Install a loaderd wheel, or a C compiler (Debian: "
        "apt-get install gcc) and then loaderd again: "
        f"{REINSTALL}"
    ]
