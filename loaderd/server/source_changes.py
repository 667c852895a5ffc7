"""What a daemon was started with, and what of it has changed since: config, code and data."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from loaderd.config.stream import StreamConfig
from loaderd.data.sources.part_paths import touched
from loaderd.server.admission import OpenedStream

SHOWN = 5  # files in one line


class SourceChanges:
    """Compares the config file and the user's code with what they were at the start."""

    def __init__(self, config_path: str, edited: Callable[[], list[str]]) -> None:
        """Read the config file.

        Args:
            config_path: The config file; "" for none.
            edited: Returns the files of the user's code that were edited after their import.
        """
        self._config_path = config_path
        self._config = _bytes_of(config_path)
        self._edited = edited

    def config_changed(self) -> bool:
        """Whether the config file is not what it was."""
        return _bytes_of(self._config_path) != self._config

    def why_outdated(self) -> str:
        """Why a new daemon would serve something else; "" if it would serve the same."""
        if self.config_changed():
            return "the config file has changed"
        edited = self._edited()
        return _edited_line(edited) if edited else ""

    def old_code(self, *, shared: bool) -> str:
        """A warning for a client that gets rows made by code as it was before an edit.

        Args:
            shared: Other sessions are the reason why the daemon goes on.

        Returns:
            "" if no code was edited.
        """
        edited = self._edited()
        if not edited:
            return ""
        who = "other sessions use this daemon, so it" if shared else "this daemon"
        return (
            f"{_edited_line(edited)}: {who} keeps the old code (`loaderd drain "
            f"{self._config_path or 'SOCKET'}` ends it)"
        )


def data_changed(stream: OpenedStream) -> bool:
    """Whether another file lies at the path of a stream's database, or the same with other times.

    So with its files of keys, weights and classes. Nothing is opened.
    """
    each = zip(stream.plan.sources, stream.facts.sources, strict=False)
    return any(
        _files_changed(plan, facts.state) or facts.selection.files_changed()
        for plan, facts in ((stream.plan, stream.facts), *each)
    )


def _files_changed(plan: StreamConfig, state: str) -> bool:
    if plan.parts:
        return touched(plan, state)
    path = plan.stored_at
    if path is None or not state:
        return False
    was = json.loads(state)["facts"]
    try:
        now = os.stat(os.path.join(path, "data.mdb") if os.path.isdir(path) else path)
    except OSError:
        return True  # whoever opens it anew says what is wrong
    return (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns) != tuple(
        was[name] for name in ("device", "inode", "size", "mtime_ns", "ctime_ns")
    )


def _edited_line(files: list[str]) -> str:
    shown = ", ".join(files[:SHOWN]) + (
        f" and {len(files) - SHOWN} more" if len(files) > SHOWN else ""
    )
    return (
        f"{shown} was edited after its import"
        if len(files) == 1
        else f"{shown} were edited after their import"
    )


def _bytes_of(path: str) -> bytes:
    """What is in a file; b"" where it can't be read."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
