"""What the tests of the pool ask for: a workshop, closed after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loaderd_testing.engine_harness import Workshop

Build = Callable[..., Workshop]


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Build]:
    """build(*plans, **options of LocalEngine) -> Workshop"""
    made: list[Workshop] = []

    def make(*plans: Any, **options: Any) -> Workshop:
        made.append(Workshop(tmp_path, plans, **options))
        return made[-1]

    yield make
    for shop in made:
        shop.close()
