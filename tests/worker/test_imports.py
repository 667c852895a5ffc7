"""User code that imports in the middle of its samples."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from loaderd.core.jobs import Stage, importing, unstamp
from loaderd_testing.engine_harness import Workshop, numbers

Build = Callable[..., Workshop]


def test_the_first_sample_of_each_worker_draws_from_torch_as_any_other_and_knows_its_worker(
    build: Build,
) -> None:
    shop = build(numbers(dataset="late:LateTorch"))
    facts = shop.facts("train")
    shop.start(1, 2)
    pond = shop.pond(facts, 4)
    for slot, worker in enumerate((1, 2)):
        shop.run(worker, shop.job("train", 4, slot=slot, start=2 * slot))
        assert pond.field(slot, "first", 4).tolist() == [True, False, False, False]
        assert pond.field(slot, "known", 4).tolist() == [slot] * 4
    assert pond.field(0, "drawn", 4).tolist()[2:] == pond.field(1, "drawn", 4).tolist()[:2]


def test_a_module_that_draws_and_seeds_changes_nothing_for_the_sample_that_imports_it(
    build: Build,
) -> None:
    shop = build(numbers(dataset="late:LateSeeder"))
    facts = shop.facts("train")
    shop.start(1, 2)
    pond = shop.pond(facts, 4)
    for slot, worker in enumerate((1, 2)):
        shop.run(worker, shop.job("train", 4, slot=slot, start=2 * slot))
    for field in ("before", "after"):
        first, second = (pond.field(slot, field, 4).tolist() for slot in (0, 1))
        assert first[2:] == second[:2]
        assert len(set(first)) == 4


def test_an_import_is_on_the_scoreboard_with_its_sample_and_leaves_it_at_its_end(
    build: Build, tmp_path: Path
) -> None:
    shop = build(numbers(dataset="late:LateWaiter"))
    facts = shop.facts("train")
    shop.start(1)
    shop.pond(facts, 4)
    shop.run(1, shop.job("train", 4))  # which opens the stream: that imports, too
    job = shop.job("train", 4, start=18)
    shop.pool.send(1, job)
    seen = shop.until(
        lambda: [seen for seen in shop.look().seen if importing(seen.word)], "the import"
    )[0]
    assert (unstamp(seen.word), seen.key) == ((job.job, 2, Stage.READ), "20")
    (tmp_path / "go").touch()
    shop.until(
        lambda: [
            seen for seen in shop.look().seen if not importing(seen.word) and seen.key == "20"
        ],
        "the end of the import",
    )
    (tmp_path / "over").touch()
    assert shop.answer(1, job).bad == ()


def test_another_threads_import_is_not_what_the_sample_is_doing(
    build: Build, tmp_path: Path
) -> None:
    shop = build(numbers(dataset="late:LateInThread"))
    (tmp_path / "go").touch()
    facts = shop.facts("train")
    (tmp_path / "go").unlink()
    (tmp_path / "begun").unlink()
    shop.start(1)
    shop.pond(facts, 4)
    job = shop.job("train", 4)
    shop.pool.send(1, job)
    shop.until((tmp_path / "begun").exists, "the import")
    assert [importing(seen.word) for seen in shop.look().seen] == [False]
    (tmp_path / "go").touch()
    assert shop.answer(1, job).bad == ()


@pytest.mark.parametrize("dataset", ["LateInChild", "LateInChildOfC"])
def test_a_forked_child_imports_and_leaves_its_parents_line_alone(
    build: Build, dataset: str
) -> None:
    shop = build(numbers(dataset=f"late:{dataset}"))
    facts = shop.facts("train")
    shop.start(1)
    shop.pond(facts, 4)
    assert shop.run(1, shop.job("train", 4)).bad == ()


def test_an_import_that_fails_is_told_with_the_users_lines_alone(build: Build) -> None:
    shop = build(numbers(dataset="late:LateFailure"))
    found = shop.open("train")
    assert "No module named 'no_such_module'" in str(found)
    traceback = getattr(found, "traceback", "")
    assert "import no_such_module" in traceback
    assert os.path.join("worker", "imports.py") not in traceback
    assert "importlib" not in traceback
