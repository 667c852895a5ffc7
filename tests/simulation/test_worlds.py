"""A thousand worlds, and some that nobody has seen before: whatever happens in them, every trainer
gets the undisturbed stream, and nothing is left behind.
"""

from __future__ import annotations

import secrets

import pytest

from simulation.world import World, replay_seed

WORLDS = 1000
AT_ONCE = 50
FRESH = 300


@pytest.mark.parametrize("first", range(0, WORLDS, AT_ONCE))
def test_no_disaster_changes_what_trainers_get(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        World(seed).run()


def test_a_mixture_of_one_sound_source_and_one_of_killers_is_no_world() -> None:
    World(289365671195).run()  # an epoch was one killer, and so the stream was given up


def test_a_mixture_whose_every_batch_kills_its_worker_is_no_world() -> None:
    World(70000646).run()  # each epoch was one batch, and so the stream was given up


def test_no_disaster_changes_what_trainers_get_in_worlds_drawn_anew() -> None:
    first = 1_000_000 + secrets.randbelow(1 << 40)
    print(f"worlds {first} to {first + FRESH - 1}; each that fails says how to replay it")
    for seed in range(first, first + FRESH):
        World(seed).run()


def test_a_replay_tells_the_same_story_line_by_line() -> None:
    """With LOADERD_SEED in the environment: that world, aloud."""
    seed = replay_seed()
    diaries = []
    for _ in range(2):
        world = World(11 if seed is None else seed, aloud=seed is not None and not diaries)
        world.run()
        diaries.append(world.diary())
    assert diaries[0] == diaries[1]
