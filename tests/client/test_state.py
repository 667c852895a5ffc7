from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from loaderd_client import ConfigError
from loaderd_client.state import LoaderState
from loaderd_wire.slices import Cursor

STATE = LoaderState(Cursor(3, 40, 10), {"seed": "0", "split": "all"}, {"transforms": "a"}, 160, 2)


def test_a_state_survives_json() -> None:
    assert LoaderState.from_dict(json.loads(json.dumps(STATE.to_dict()))) == STATE
    assert STATE.to_dict()["numpy"] == np.__version__


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", 2),
        ("epoch", -1),
        ("epoch", True),
        ("position", 1.0),
        ("step", None),
        ("order", []),
        ("content", {"a": 1}),
        ("errors", None),
        ("errors", {"rows": 1}),
        ("errors", {"rows": 1, "bad": 2}),
        ("step", 41),
        ("position", 9),
        ("numpy", 2),
    ],
)
def test_an_entry_that_cannot_be_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name if name != "errors" or value is None else "bad"):
        LoaderState.from_dict({**STATE.to_dict(), name: value})


@pytest.mark.parametrize("state", [None, 3, [], "x", {}])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(
        ConfigError,
        match=r"^a state is what state_dict\(\) returned, (not|this is a table of nothing)",
    ):
        LoaderState.from_dict(state)


def test_a_whole_checkpoint_is_refused_with_what_is_in_it() -> None:
    with pytest.raises(
        ConfigError, match=r"a table of 'model', 'loader': .*checkpoint\[\"loader\"\]"
    ):
        LoaderState.from_dict({"model": {}, "loader": STATE.to_dict()})


def test_another_order_is_refused_naming_old_and_new() -> None:
    with pytest.raises(ConfigError, match="seed was 0, is 1"):
        STATE.fits({"seed": "1", "split": "all"}, {"transforms": "a"}, 100)
    with pytest.raises(ConfigError, match="split was all, is not set"):
        STATE.fits({"seed": "0"}, {"transforms": "a"}, 100)


def test_a_refused_state_also_names_what_else_has_changed() -> None:
    with pytest.raises(ConfigError, match=r"\(of its content transforms was a, is b\)"):
        STATE.fits({"seed": "1", "split": "all"}, {"transforms": "b"}, 100)


@pytest.mark.parametrize(
    "name", ["version", "epoch", "position", "step", "errors", "order", "content", "numpy"]
)
@pytest.mark.parametrize(
    "value",
    ["x" * 100_000, {"seed": "y" * 100_000, "z" * 100_000: "1"}, 10**4000],
    ids=["text", "dict", "number"],
)
def test_what_a_state_holds_is_not_repeated_at_length(name: str, value: Any) -> None:
    try:
        told = LoaderState.from_dict({**STATE.to_dict(), name: value}).fits(
            {"seed": "0", "split": "all"}, {"transforms": "a"}, 100
        )
    except ConfigError as error:
        told = [str(error)]
    assert told
    assert all(len(text) < 1000 for text in told)


def test_other_content_is_one_warning() -> None:
    (text,) = STATE.fits({"seed": "0", "split": "all"}, {"transforms": "b"}, 100)
    assert "transforms was a, is b" in text


def test_another_numpy_is_one_warning() -> None:
    old = LoaderState.from_dict({**STATE.to_dict(), "numpy": "1.0"})
    (text,) = old.fits({"seed": "0", "split": "all"}, {"transforms": "a"}, 100)
    assert "1.0" in text
    assert np.__version__ in text


def test_a_position_beyond_the_epoch_is_refused() -> None:
    with pytest.raises(ConfigError, match="position=40"):
        STATE.fits({"seed": "0", "split": "all"}, {"transforms": "a"}, 39)


def test_code_that_has_changed_is_one_warning_that_names_the_files() -> None:
    order, content = (
        {"seed": "0", "split": "all"},
        {"transforms": "a", "code:mine.py": "1", "code:sub/aug.py": "2", "code:same.py": "3"},
    )
    state = LoaderState.from_dict(LoaderState(Cursor(0, 0, 0), order, content).to_dict())
    (text,) = state.fits(order, content | {"code:mine.py": "4", "code:sub/aug.py": "5"}, 100)
    assert "code has changed since this state was saved: mine.py, sub/aug.py;" in text


def test_code_that_only_one_of_the_two_has_imported_yet_is_no_change() -> None:
    order, content = {"seed": "0", "split": "all"}, {"transforms": "a", "code:late.py": "1"}
    assert (
        LoaderState(Cursor(0, 0, 0), order, content).fits(
            order, {"transforms": "a", "code:other.py": "2"}, 100
        )
        == []
    )


def test_a_fact_of_the_order_that_an_older_version_did_not_know_is_not_missed_in_its_states() -> (
    None
):
    order, content = {"seed": "0", "split": "all"}, {"transforms": "a"}
    assert (
        LoaderState(Cursor(0, 0, 0), order, content).fits(order | {"values": "abc"}, content, 100)
        == []
    )
    with pytest.raises(ConfigError, match="values was abc, is abd"):
        LoaderState(Cursor(0, 0, 0), order | {"values": "abc"}, content).fits(
            order | {"values": "abd"}, content, 100
        )
