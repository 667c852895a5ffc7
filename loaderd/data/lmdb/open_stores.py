"""The databases that a process has open: one handle a file, of thousands of files only some."""

from __future__ import annotations

import os
import resource
from collections import OrderedDict

from loaderd.data.lmdb.file_facts import open_file
from loaderd.data.lmdb.store import Store

MOST_OPEN = 4096  # databases at once, however many descriptors there are


class OpenStores:
    """The databases of this process: each file is opened once, whoever asks.

    Those that need not be kept open share so many places.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._pid = os.getpid()
        self._all: dict[tuple[int, int], Store] = {}
        # that are open and not kept, the one that was used last at the end
        self._latest: OrderedDict[int, Store] = OrderedDict()

    def all(self) -> list[Store]:
        """Those that somebody uses."""
        return list(self._all.values())

    def room(self) -> int:
        """How many more may be kept open."""
        return self._places - sum(store.kept for store in self._all.values())

    def find(self, path: str, *, kept: bool) -> Store:
        """As `open_store`."""
        if self._pid != os.getpid():
            # the library remembers over a fork that the paths are open, and would refuse them
            for inherited in self.all():
                self._forget(inherited)
                inherited.unmap()
            self._pid = os.getpid()
        fd, file = open_file(path)
        stat = os.fstat(fd)
        store = self._all.get((stat.st_dev, stat.st_ino))
        if store is not None:
            os.close(fd)
        else:
            try:
                store = Store(path, fd, file)
            except BaseException:
                os.close(fd)
                raise
            self._all[(stat.st_dev, stat.st_ino)] = store
            store.kept, store.on_use, store.on_last_close = kept, self._used, self._forget
            if not kept:
                self._used(store)
        if kept and not store.kept:
            self._keep(store)
        store.users += 1
        return store

    def _keep(self, store: Store) -> None:
        store.get(b"\0")  # opens it
        store.kept = True
        self._latest.pop(id(store), None)

    def _used(self, store: Store) -> None:
        """This one is open, and was used last. Another may have to give up its place."""
        self._latest[id(store)] = store
        self._latest.move_to_end(id(store))
        if len(self._latest) > self._places:
            for number, other in list(self._latest.items()):
                if other is not store and not other.busy:
                    del self._latest[number]
                    other.unmap()
                    return

    def _forget(self, store: Store) -> None:
        """Nobody uses it any more."""
        self._all.pop((store.facts.device, store.facts.inode), None)
        self._latest.pop(id(store), None)


def _places() -> int:
    """How many databases may be open and not kept, and how many more may be kept.

    They have two descriptors each, and a third of all is for the process's own and user code's.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(8, min(MOST_OPEN, limit // 6))


open_stores = OpenStores(_places())


def open_store(path: str, *, kept: bool = True) -> Store:
    """The database at `path`, opened once a process whoever asks; each must `close()` it.

    Args:
        path: A file, or a folder with data.mdb.
        kept: It stays open. Else others may take its place, and its values are copies.

    Raises SourceError, naming path and reason.
    """
    return open_stores.find(path, kept=kept)
