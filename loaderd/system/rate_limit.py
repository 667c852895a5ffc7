"""Saying the same thing not too often."""

from __future__ import annotations

from collections.abc import Hashable

MAX_KEYS = 1024


class RateLimit:
    """At most one line a key in every_s.

    Memory and lines are bounded: beyond max_keys keys all others share one.
    """

    def __init__(self, every_s: float = 60.0, max_keys: int = MAX_KEYS) -> None:
        self._every_s = every_s
        self._max_keys = max_keys
        self._said: dict[Hashable, tuple[float, int]] = {}

    def ask(self, key: Hashable, now_s: float) -> str | None:
        """None: say nothing now.

        Else what to append to the line: "" or how many were left unsaid.
        """
        if key not in self._said and len(self._said) >= self._max_keys:
            self._said = {k: v for k, v in self._said.items() if now_s - v[0] < self._every_s}
            if len(self._said) >= self._max_keys:
                key = None
        at_s, unsaid = self._said.get(key, (float("-inf"), 0))
        if now_s - at_s < self._every_s:
            self._said[key] = (at_s, unsaid + 1)
            return None
        self._said[key] = (now_s, 0)
        return f" ({unsaid} more such since the last line)" if unsaid else ""
