"""A fork copies a trainer's sockets, and a control socket that lives on in a child would keep a dead trainer's session alive."""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol


class Losable(Protocol):
    def lose(self) -> None: ...


_open: weakref.WeakSet[Losable] = weakref.WeakSet()
_forgotten: list[Any] = []


def watch(connection: Losable) -> None:
    """From now on `connection.lose()` is called in every forked child."""
    _open.add(connection)


def forget(*things: Any) -> None:
    """Keep them until the process ends, so that nothing of them runs when they are collected."""
    _forgotten.extend(things)


def _in_child() -> None:
    for connection in list(_open):
        connection.lose()
    _open.clear()


os.register_at_fork(after_in_child=_in_child)
