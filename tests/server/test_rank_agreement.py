"""Ranks of one training that cut the epoch in different ways are told of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loaderd.server.admission import AdmittedStream, OpenedStream, admit
from loaderd.server.rank_agreement import disagreement
from server.test_admission import FACTS, HELLO, PLAN

STREAM = OpenedStream(PLAN, FACTS)


def rank(**asked: Any) -> AdmittedStream:
    """Rank 1 of 2, or what the arguments say."""
    return admit(replace(HELLO, **{"rank": 1, "world_size": 2, **asked}), STREAM, 1)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"seed": 9}, ["rank 1 of 2 has seed = 9", "rank 0 of 2 has seed = 0"]),
        (
            {"batch_size": 4, "drop_last": True},
            ["batch_size = 4, drop_last = True", "batch_size = 1, drop_last = False"],
        ),
        ({"world_size": 4}, ["rank 1 of 4 has world_size = 4", "rank 0 of 2 has world_size = 2"]),
    ],
)
def test_a_rank_that_differs_is_named_with_both_values(
    asked: dict[str, Any], words: list[str]
) -> None:
    text = disagreement("train", rank(**asked), [rank(rank=0)])
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"seed": 9, "rank": 0},  # the first rank of another training
        {"seed": 9, "rank": 0, "world_size": 1},
    ],
)
def test_an_equal_rank_and_another_training_are_not_named(asked: dict[str, Any]) -> None:
    assert disagreement("train", rank(**asked), [rank(rank=0)]) == ""


def test_a_rank_like_one_of_several_trainings_belongs_to_that_one() -> None:
    others = [rank(rank=0), rank(rank=0, seed=9)]
    assert disagreement("train", rank(seed=9), others) == ""


def test_the_first_rank_has_nobody_to_agree_with() -> None:
    assert disagreement("train", rank(), []) == ""
    assert disagreement("train", rank(), [rank(rank=0, world_size=1)]) == ""
