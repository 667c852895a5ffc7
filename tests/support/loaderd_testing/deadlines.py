"""How long tests wait for what must happen: in one place, and generous, since a wait ends as soon
as its condition holds.

The machine that runs the tests may be ten times slower than the one that they were written on, or
busy with something else. A deadline here is no claim about speed; it only keeps a broken product
from holding up the tests for ever.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any

DEADLINE_S = 200.0  # well below the limit of a whole test (`timeout` in pyproject.toml)
LEAVING_S = 30.0  # for what is on its way out when a test ends


class WaitedInVainError(AssertionError):
    """What a test waited for did not happen."""


def until(what: str, condition: Callable[[], Any], deadline_s: float = DEADLINE_S) -> Any:
    """The condition's first true value; fails, saying what was waited for, after the deadline."""
    end, pause_s = time.monotonic() + deadline_s, 0.01
    while not (value := condition()):
        if time.monotonic() > end:
            raise WaitedInVainError(f"waited {deadline_s:.0f} s for: {what}")
        select.select([], [], [], pause_s)
        pause_s = min(1.2 * pause_s, 0.05)  # who waits long leaves the processors to the others
    return value
