from __future__ import annotations

from collections.abc import Iterator

import pytest

from loaderd_testing.examples import Examples

IMPORTS = ("torch", "torch._dynamo", "torch.distributed")  # an optimizer imports the second


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examples]:
    """One daemon and one import of torch for the examples of all files."""
    running = Examples(tmp_path_factory.mktemp("examples"), *IMPORTS)
    yield running
    running.close()
