"""Class names of streams that are trained together: a label must mean the same in all of them.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest


def disagreement(classes: Mapping[str, tuple[str, ...]]) -> str:
    """Why some streams cannot be served side by side: their class names differ.

    A stream without class names agrees with every other.

    Args:
        classes: Names of the classes by name of the stream.

    Returns:
        The reason and what to do; "" if they can.
    """
    named = {stream: names for stream, names in classes.items() if names}
    for first, names in named.items():
        for second, others in named.items():
            if others != names:
                return _told(first, names, second, others)
        break  # all that agree with the first agree with each other
    return ""


def _told(first: str, names: tuple[str, ...], second: str, others: tuple[str, ...]) -> str:
    label, mine, its = next(
        (n, a, b) for n, (a, b) in enumerate(zip_longest(names, others)) if a != b
    )
    return (
        f"streams {first!r} and {second!r} have different classes ({len(names):,} and "
        f"{len(others):,}): label {label} is {_shown(mine)} in "
        f"{first!r}, {_shown(its)} in {second!r}\n"
        'set classes = "OTHER_DB" on one of the streams, which maps its labels by name, or pack it '
        "again with --classes-from OTHER_DB (or --classes FILE); if the streams do not belong "
        "together, use one config for each"
    )


def _shown(name: str | None) -> str:
    return "no class" if name is None else repr(name if len(name) <= 60 else name[:57] + "...")
