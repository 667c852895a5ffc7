"""Hypothesis without its stopwatch and without a memory between runs: the same examples everywhere,
however slow the machine.
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("loaderd", deadline=None, database=None, derandomize=True)
settings.load_profile("loaderd")
