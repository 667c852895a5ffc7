from __future__ import annotations

import json

import pytest

from loaderd_wire.facts import MADE, apart_from_code, comparable, differences


def step(op: str | None = None, call: str | None = None, **args: object) -> dict[str, object]:
    return {"op": op, "call": call, "args": args}


@pytest.mark.parametrize(
    ("name", "old", "new", "told"),
    [
        ("shuffle", "0", "1", "shuffle was false, is true"),
        ("shuffle", "4096", "0", "shuffle was {block = 4096}, is false"),
        ("seed", "0", "7", "seed was 0, is 7"),
        ("decode", "rgb", "no", 'mode was "rgb", is not used (decode = false)'),
        (
            "layout",
            '["loaderd",{}]',
            '["mine:Pairs",{"n":3,"s":"x"}]',
            'layout was loaderd, is mine:Pairs(n=3, s="x")',
        ),
        (
            "transforms",
            json.dumps([step("hflip", p=0.5), step(call="aug:train", deep={"a": [1]})]),
            "[]",
            'transforms was hflip(p=0.5), aug:train(deep={"a": [1]}), is none',
        ),
        ("transforms", "sha256:ab", "[]", "transforms was sha256:ab, is none"),
        ("on_error", "raise", None, "on_error was raise, is not set"),
        ("shuffle", "of a later version", "0", "shuffle was of a later version, is false"),
        ("layout", "[]", "[1]", "layout was [], is [1]"),
        ("data", "a" * 500, "b", f"data was {'a' * 197}..., is b"),
    ],
)
def test_a_difference_is_told_as_a_config_has_it(
    name: str, old: str, new: str | None, told: str
) -> None:
    assert (
        differences(
            {name: old, "same": "x"}, {"same": "x"} if new is None else {name: new, "same": "x"}
        )
        == told
    )


def test_what_does_not_differ_is_nothing() -> None:
    assert differences({"seed": "0"}, {"seed": "0"}) == ""
    assert differences({}, {"seed": "0"}) == "seed was not set, is 0"


def test_facts_told_from_samples_are_compared_only_where_the_code_is_the_same() -> None:
    facts = {"data": "a", "values": f"{MADE}1", "b.values": f"{MADE}2", "c.values": "3"}
    assert apart_from_code(facts, "") == facts
    assert apart_from_code(facts, "mine.py") == {"data": "a", "c.values": "3"}


@pytest.mark.parametrize("name", ["keys", "a.weights", "bucket_by", "lengths", "epoch_steps"])
def test_a_fact_that_was_not_set_is_compared_and_one_that_nobody_noted_is_not(name: str) -> None:
    now = {"seed": "0", name: "x", "values": "of a later version"}
    assert differences({"seed": "0"}, comparable({"seed": "0"}, now)) == f"{name} was not set, is x"
