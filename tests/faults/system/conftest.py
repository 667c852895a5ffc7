from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loaderd_testing.daemon_harness import Site, digest, take


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A daemon for all tests of a file that leave it as it is."""
    made = Site(tmp_path_factory.mktemp("served"))
    made.write().serve().settled()
    yield made
    made.close()


@pytest.fixture
def daemon(served: Site) -> Iterator[Site]:
    """The file's daemon, without sessions before and after."""
    yield served
    served.end_sessions()


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The first epoch of the default site, 100 samples, when nothing goes wrong."""
    site = Site(tmp_path_factory.mktemp("calm"))
    try:
        return take(site.write().serve().loader())
    finally:
        site.close()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of two epochs of the default site, 100 samples, when nothing goes wrong."""
    site = Site(tmp_path_factory.mktemp("calm"))
    try:
        loader = site.write().serve().loader()
        return digest(take(loader) + take(loader))
    finally:
        site.close()
