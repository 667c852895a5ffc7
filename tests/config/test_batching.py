from __future__ import annotations

from typing import Any

import pytest

from config.test_load import faults
from loaderd.config import batching, stream_rules
from loaderd.config.batching import PadRules


def read(value: Any) -> tuple[Any, list[str]]:
    said: list[str] = []
    return PadRules().read(value, lambda where, text: said.append(f"{where}: {text}")), said


def test_a_rule_is_a_number_or_a_table() -> None:
    rules, said = read({"ids": 0, "x": {"value": 1.5, "multiple": 8, "mask": "m"}, "b": False})
    assert said == []
    assert rules == {
        "ids": {"value": 0, "multiple": 1, "mask": ""},
        "x": {"value": 1.5, "multiple": 8, "mask": "m"},
        "b": {"value": False, "multiple": 1, "mask": ""},
    }


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], ": [] is not a table"),
        ({"ids": "0"}, 'ids: "0" is not the number that fills it up'),
        ({"ids": {"multiple": 8}}, "ids: "),
        ({"ids": {"value": 0, "multiple": 0}}, "ids.multiple: 0 is not 1 to"),
        ({"ids": {"value": 0, "mask": ""}}, 'ids.mask: "" is not the name of a field'),
        ({"ids": {"value": 0, "max": 1}}, "ids.max: unknown key; there are value, multiple, mask"),
    ],
)
def test_what_is_no_rule_is_named_with_its_path(value: Any, words: str) -> None:
    _, said = read(value)
    assert len(said) == 1
    assert said[0].startswith(words)


@pytest.mark.parametrize(
    ("given", "where", "words"),
    [
        ({"pad": {"a": 0}, "ragged": ["a"]}, "ragged", "field 'a' is in pad, too"),
        ({"pad": {"a": 0}, "collate": "a:b"}, "pad", "goes without collate"),
        ({"ragged": ["a"], "collate": "a:b"}, "ragged", "goes without collate"),
        ({"ragged_as": "flat"}, "ragged_as", "goes with ragged, which is not set"),
    ],
)
def test_keys_that_do_not_go_together_are_told(
    given: dict[str, Any], where: str, words: str
) -> None:
    for check in (batching.check, stream_rules.check):
        said: list[tuple[str, str]] = []
        check(
            {"dataset": "a:B", **given}, lambda place, text, said=said: said.append((place, text))
        )
        assert [place for place, _ in said] == [where]
        assert words in said[0][1]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("max_tokens = 5", "max_tokens: 5: goes with bucket_by, which is not set"),
        ('bucket_by = "x"\nshuffle = {block = 5}', "it must be true or false"),
        ('bucket_by = "x"\nweights = "balanced"', "it must be no weights"),
        ('bucket_by = "x"\nrepeat = 2', "it must be no repeat"),
        ('bucket_by = "x"\nepoch_steps = 2', "it must be no epoch_steps"),
        ('bucket_by = "x"\ntail = "short"', 'it must be "repeat" or "drop"'),
        ('bucket_by = "x"\nmax_errors = 0.5', "it must be a count"),
    ],
)
def test_what_batches_of_similar_length_do_not_go_with_is_named(line: str, words: str) -> None:
    (found,) = faults(f'[streams.train]\nlmdb = "a"\n{line}\n')
    assert words in found
