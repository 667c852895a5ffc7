"""A split by groups of keys: no group on both sides, whatever is added later."""

from __future__ import annotations

import numpy as np
import pytest

from loaderd.data.errors import SourceError
from loaderd.data.selection.groups import of_side
from loaderd_testing.named_samples import Named

PATIENT = "^([^_]+)_"
KEYS = [f"patient{n % 100}_{n}.png" for n in range(500)]


def side(split: str, names: list[str] = KEYS, pattern: str = PATIENT) -> list[str]:
    source = Named(names)
    places = of_side(source, np.arange(len(names)), split, pattern, lambda count: None)
    return [names[place] for place in places]


def test_every_sample_is_on_one_side_and_no_group_on_two() -> None:
    train, val = side("0%:80%"), side("80%:100%")
    assert sorted(train + val) == sorted(KEYS)
    assert not {key.split("_")[0] for key in train} & {key.split("_")[0] for key in val}
    assert train == [key for key in KEYS if key in set(train)], "the stored order is kept"


def test_which_groups_fall_on_a_side_never_changes() -> None:
    names = [f"p{n}_a" for n in range(10)]
    assert side("0%:50%", names) == GOLDEN


GOLDEN = ["p4_a", "p7_a", "p9_a"]


def test_samples_that_are_added_move_no_group() -> None:
    before = set(side("0%:80%"))
    after = set(side("0%:80%", [*KEYS, *(f"new{n}_1.png" for n in range(300)), "patient7_x.png"]))
    assert before == after & set(KEYS)


def test_key_without_a_group_is_named() -> None:
    with pytest.raises(SourceError, match=r"does not match the key 'stray\.png'"):
        side("0%:80%", [*KEYS, "stray.png"])
    with pytest.raises(SourceError, match="does not match the key 'b'"):
        side("0%:80%", ["ab", "b"], "(a)?b")


def test_side_without_a_group_is_refused() -> None:
    with pytest.raises(
        SourceError, match=r"split '0%:0\.1%' has no sample: none of the 100 groups"
    ):
        side("0%:0.1%")
