"""Imports in the middle of a sample.

Their time is not the sample's, and they change nothing of what it draws.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from loaderd.engine.scoreboard import StatusWriter
from loaderd.worker.seeding import Kept

bootstrap: Any = importlib.import_module("importlib._bootstrap")
_load: Callable[[str, Any], Any] = bootstrap._find_and_load


class Imports:
    """What is done about imports in the middle of a sample.

    It marks the stamp while this thread imports what is not loaded yet, and keeps the global
    generators as they are. It stands where Python turns to for a module that it does not have:
    whoever imports nothing new pays nothing.
    """

    def __init__(self, line: StatusWriter, came: Callable[[], None]) -> None:
        """Watch nothing yet.

        Args:
            line: Where the stamp is.
            came: Called after torch has come, by whatever import.
        """
        self._line = line
        self._came = came
        self._owner = os.getpid()
        self._thread = threading.get_ident()
        self._inside = False  # of an import of this thread; those within it belong to it

    def watch(self) -> None:
        """Watch from now on, instead of whoever did before, for as long as this process lives.

        A fork of it only imports as ever.
        """

        def find_and_load(name: str, import_: Any) -> Any:
            if name in sys.modules or os.getpid() != self._owner:
                return _load(name, import_)
            kept = self._begin()
            had_torch = "torch" in sys.modules
            try:
                return _load(name, import_)
            finally:
                self._end(kept, not had_torch and "torch" in sys.modules)

        # Under this name Python leaves it out of tracebacks and out of what warnings count as the
        # caller, as it does its own part of an import.
        find_and_load.__code__ = find_and_load.__code__.replace(
            co_filename=_load.__code__.co_filename
        )
        bootstrap._find_and_load = find_and_load

    def _begin(self) -> Kept | None:
        """What is to be kept during an import.

        None if it is not this thread's, or is another's part.
        """
        if self._inside or threading.get_ident() != self._thread:
            return None
        kept = Kept()
        self._inside = True
        self._line.importing(True)
        return kept

    def _end(self, kept: Kept | None, torch_came: bool) -> None:
        if os.getpid() != self._owner:
            return
        if torch_came:
            self._came()
        if kept is not None:
            self._inside = False
            self._line.importing(False)
            kept.put_back()
