"""Trainers that want to share and ask for different batches are told what differs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loaderd.server.admission import AdmittedStream, OpenedStream, admit
from loaderd.server.share_agreement import disagreement
from server.test_admission import FACTS, HELLO, PLAN

STREAM = OpenedStream(PLAN, FACTS)


def trainer(**asked: Any) -> AdmittedStream:
    return admit(replace(HELLO, **{"shared": "yes", **asked}), STREAM, 1)


@pytest.mark.parametrize(
    ("asked", "mine", "theirs"),
    [
        ({"seed": 9}, "seed = 9", "seed = 0"),
        (
            {"batch_size": 4, "drop_last": True},
            "batch_size = 4, drop_last = True",
            "batch_size = 1, drop_last = False",
        ),
        ({"world_size": 2, "rank": 1}, "world_size = 2", "world_size = 1"),
        ({"fields": ("y",)}, "fields = ['y']", "fields = ['x', 'y']"),
    ],
)
def test_what_differs_is_named_with_both_values(
    asked: dict[str, Any], mine: str, theirs: str
) -> None:
    text = disagreement("train", trainer(**asked), [trainer()])
    assert f"this trainer has {mine}, another one has {theirs}:" in text


@pytest.mark.parametrize(
    ("new", "others"),
    [
        ({}, []),
        ({}, [{}]),
        ({"prefetch": 9}, [{}]),
        ({"seed": 9}, [{}, {"seed": 9}]),
        ({"world_size": 2, "rank": 1}, [{"world_size": 2}]),  # another rank of one training
        ({"seed": 9, "shared": "no"}, [{}]),
        ({"seed": 9}, [{"shared": "no"}]),
    ],
)
def test_who_shares_or_does_not_want_to_is_told_nothing(
    new: dict[str, Any], others: list[dict[str, Any]]
) -> None:
    assert disagreement("train", trainer(**new), [trainer(**other) for other in others]) == ""
