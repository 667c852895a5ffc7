from __future__ import annotations

from collections.abc import Iterator

import pytest

from loaderd_testing.examples import Examples


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examples]:
    """One daemon and one import of torch for the examples of all files."""
    running = Examples(tmp_path_factory.mktemp("examples"))
    yield running
    running.close()
