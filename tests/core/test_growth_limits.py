"""What keeps a pool that finds its own number of workers from growing, and how it is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderd_testing.timed_load import NEEDS_5, TimedLoad, ran, said


@pytest.mark.parametrize("stage", ["decode_s", "transform_s", "write_s"])
def test_a_load_that_computes_gets_no_more_workers_than_processors(stage: str) -> None:
    world = TimedLoad(replace(NEEDS_5, cpus=3, workers=2, stage=stage))
    made = world.run()
    assert world.sizes == [2, 3]
    assert "there are 3 processors" in made.text
    assert "num_workers" not in made.setting + made.text


def test_a_load_that_reads_for_half_of_the_time_gets_more_workers_than_processors() -> None:
    world = ran(replace(NEEDS_5, cpus=2, stage="half"))
    assert world.size == 3  # 2 / (0.5 + 0.5 / 8)


def test_memory_that_has_no_room_for_another_worker_is_named_with_numbers() -> None:
    world = TimedLoad(replace(NEEDS_5, worker_memory=1 << 30))
    world.free_bytes = 5 << 29  # room for two, one of which is left free
    made = world.run()
    assert world.sizes == [2, 3]
    told = "memory has no room for another worker (1536 MiB are free, a worker takes 1024 MiB)"
    assert told in made.text
    assert made.setting == "memory"
    assert [line for line in said(world) if told in line] == [said(world)[-1]]


def test_workers_that_could_not_all_help_are_not_started() -> None:
    """A collated batch is one job: four that are made ahead occupy four workers."""
    world = TimedLoad(replace(NEEDS_5, collated=True))
    made = world.run()
    assert world.size == 4
    assert made.setting == "prefetch = 8"
    assert "only 4 workers can help: give the Loader prefetch = 8" in made.text
