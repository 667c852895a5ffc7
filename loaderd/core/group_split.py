"""A split by groups, each wholly inside or outside; its text alone decides."""

from __future__ import annotations

import hashlib
import re
from fractions import Fraction

_PERCENT = re.compile(r"\s*(?:(\d+(?:\.\d*)?|\.\d+)\s*%)?\s*")
ALL = 1 << 64


def group_bounds(text: str) -> tuple[int, int]:
    """The half-open range of `group_word` that a split stands for.

    Args:
        text: "LOW:HIGH". An end is a percentage, or left out.

    Raises:
        ValueError: It is not of that form, or its range is empty or beyond 100%.
    """
    parts = text.split(":")
    found = [_PERCENT.fullmatch(part) for part in parts]
    if len(parts) != 2 or None in found:
        raise ValueError(
            f"split {text!r}: with split_by = \"key\" both ends are percentages, as in '0%:80%': "
            "how many samples the groups have is not known beforehand"
        )
    low, high = (
        default if not match or match[1] is None else int(Fraction(match[1]) * ALL // 100)
        for match, default in zip(found, (0, ALL), strict=True)
    )
    if not low < high <= ALL:
        raise ValueError(f"split {text!r} is empty, or ends beyond 100%")
    return low, high


def group_word(group: str) -> int:
    """Where a group falls, in [0, 2**64): the same on every machine and in every version.

    Args:
        group: Any text.
    """
    data = group.encode("utf-8", "surrogatepass")
    return int.from_bytes(
        hashlib.blake2b(data, digest_size=8, person=b"loaderd group").digest(), "big"
    )
