"""In an interactive session, such as a notebook, earlier Loaders make way for a new one.

A notebook keeps what its cells have left behind: in its output cache, in the traceback of the last
error, in cycles that are not collected yet. The sessions of such Loaders would hold memory, and
keep the daemon from taking up a config or code that was edited.
"""

from __future__ import annotations

import sys
import weakref
from typing import Protocol


class MakesWay(Protocol):
    """What has a session with a daemon, and can do without."""

    def make_way(self) -> None:
        """Give the session up, unless a call is under way; the next call gets another one."""


_configs: weakref.WeakKeyDictionary[MakesWay, str] = weakref.WeakKeyDictionary()


def arrive(newcomer: MakesWay, config: str) -> None:
    """Have all earlier ones of the same config make way; outside interactive sessions do nothing.

    Args:
        newcomer: What connects for the first time.
        config: Path of the config.
    """
    if not hasattr(sys, "ps1"):  # which says so in a notebook, too
        return
    for earlier, theirs in list(_configs.items()):
        if theirs == config and earlier is not newcomer:
            earlier.make_way()
    _configs[newcomer] = config
