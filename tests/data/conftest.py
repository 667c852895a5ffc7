"""After each test no database is open any longer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from loaderd.data.lmdb import store as lmdb_store


@pytest.fixture(autouse=True)
def nothing_open() -> Iterator[None]:
    yield
    left = [store.path for store in lmdb_store._open.values()]
    for store in list(lmdb_store._open.values()):
        store.unmap()
    assert left == []
