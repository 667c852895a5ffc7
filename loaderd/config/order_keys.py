"""Which samples a stream uses, and in which order: what the keys that say so take."""

from __future__ import annotations

from fractions import Fraction as Exact

from loaderd.config.table import Key, Table
from loaderd.config.types import Either, Flag, Text, Whole

SPLIT_END = r" *(?:(?:[0-9]{1,3}(?:\.[0-9]{0,9})?|\.[0-9]{1,9}) *%|[0-9]{1,15})? *"


def _split(text: str) -> str:
    """What is wrong with a split whatever the number of samples is."""
    low, high = (part.strip() for part in text.split(":"))
    percents = [
        Exact(end.rstrip("% ")) for end in (low or "0%", high or "100%") if end.endswith("%")
    ]
    if any(percent > 100 for percent in percents):
        return "ends beyond 100%"
    counts = [int(end) for end in (low, high) if end.isdigit()]
    empty = any(len(ends) == 2 and ends[0] >= ends[1] for ends in (percents, counts))
    return "is empty: it ends where it begins, or before" if empty else ""


SPLIT = Text(f"{SPLIT_END}:{SPLIT_END}", 'a part such as "0%:95%" or "0:50000"', _split)
SHUFFLE = Either(
    (Flag(), Table({"block": Key(Whole(1, 1 << 40), "Samples per block.", required=True)})),
    "true, false or {block = N}",
)
