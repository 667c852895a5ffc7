"""The pool with real workers: jobs done, and every way in which a worker can end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from worker.workshop import Workshop, numbers

Build = Callable[..., Workshop]


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Build]:
    made: list[Workshop] = []

    def make(*plans: Any, **options: Any) -> Workshop:
        made.append(Workshop(tmp_path, plans, **options))
        return made[-1]

    yield make
    for shop in made:
        shop.close()


def test_a_job_fills_its_rows(build: Build) -> None:
    shop = build(numbers())
    facts = shop.facts("train")
    assert (facts.total, facts.keys, facts.form) == (100, "index", "dict")
    shop.start(1)
    pond = shop.pond(facts, 8)
    done = shop.run(1, shop.job("train", 8))
    assert done.bad == () and done.changed == ""
    assert pond.indices(0, 8) == list(range(8))
    assert pond.field(0, "x", 8).tolist() == [[i] * 3 for i in range(8)]
