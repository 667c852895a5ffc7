"""What must not live on in a forked child: descriptors whose end says that we are gone."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Owner(Protocol):
    def disown(self) -> None:
        """Called in a forked child: close the descriptors, without touching anything that the
        parent shares.
        """


_owners: weakref.WeakSet[Owner] = weakref.WeakSet()


def closed_in_children(owner: Owner) -> None:
    """From now on, as long as it exists, `owner.disown()` is called in every child that Python code
    forks from this process.
    """
    _owners.add(owner)


def _disown_all() -> None:
    for owner in tuple(_owners):
        owner.disown()


os.register_at_fork(after_in_child=_disown_all)
