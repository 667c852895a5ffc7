"""After each test no database is open any longer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from loaderd.data.lmdb.open_stores import open_stores


@pytest.fixture(autouse=True)
def nothing_open() -> Iterator[None]:
    yield
    left = [store.path for store in open_stores.all()]
    for store in open_stores.all():
        store.unmap()
    assert left == []
