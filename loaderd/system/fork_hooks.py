"""What must not live on in a forked child: descriptors whose end says that we are gone."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Owner(Protocol):
    """What has descriptors that a forked child must not keep."""

    def disown(self) -> None:
        """Called in a forked child: close the descriptors, touch nothing that the parent shares."""


_owners: weakref.WeakSet[Owner] = weakref.WeakSet()


def closed_in_children(owner: Owner) -> None:
    """Have `owner.disown()` called in every child that Python code forks from this process.

    That holds as long as the owner exists.
    """
    _owners.add(owner)


def _disown_all() -> None:
    for owner in tuple(_owners):
        owner.disown()


os.register_at_fork(after_in_child=_disown_all)
