"""What a fork copies, and what becomes of it in the child.

A copied control socket that lives on in a child would keep a dead trainer's session alive. Slots
are shared: the parent gives them back while the child still reads them, and then they hold another
batch.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable
from typing import Any, Protocol

MAP_FIXED = 0x10  # mman.h's; Python's mmap has no name for it


class Losable(Protocol):
    """What belongs to the process that made it."""

    def lose(self) -> None:
        """Called in a forked child."""


_open: weakref.WeakSet[Losable] = weakref.WeakSet()
_forgotten: list[Any] = []
_libc = ctypes.CDLL(None)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)


def watch(connection: Losable) -> None:
    """Have `connection.lose()` called in every forked child from now on."""
    _open.add(connection)


def forget(*things: Any) -> None:
    """Keep things until the process ends, so that nothing of them runs when they are collected."""
    _forgotten.extend(things)


def keep(lent: Callable[[], list[Any]], forgotten: Callable[[], object]) -> None:
    """Give each forked child a copy of slots, at the same place, from now on.

    The copies are made before the fork: after it the parent may go on at once.

    Args:
        lent: Returns the slots: whole pages that export their bytes.
        forgotten: Called in the child.
    """
    copies: list[tuple[int, bytes]] = []

    def before() -> None:
        copies.extend((ctypes.addressof(slot), bytes(memoryview(slot))) for slot in lent())

    def in_child() -> None:
        forgotten()
        for address, data in copies:
            if (
                _libc.mmap(
                    address,
                    len(data),
                    mmap.PROT_READ | mmap.PROT_WRITE,
                    MAP_FIXED | mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
                    -1,
                    0,
                )
                == address
            ):
                ctypes.memmove(address, data, len(data))
        copies.clear()

    os.register_at_fork(before=before, after_in_parent=copies.clear, after_in_child=in_child)


def _in_child() -> None:
    for connection in list(_open):
        connection.lose()
    _open.clear()


os.register_at_fork(after_in_child=_in_child)
