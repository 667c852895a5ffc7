"""What a stream is made of, as named facts, and how they are shown to users."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

CODE = "code:"  # then the file's path in the config's folder: a fact about user code
MADE = "samples:"  # begins a fact about the data that is told from samples, which user code makes
MOST = 200  # characters of a value that are shown
# facts that are noted only where the config sets them
OPTIONAL = frozenset(
    (
        "keys",
        "group",
        "weights",
        "repeat",
        "bucket_by",
        "max_tokens",
        "multiple",
        "lengths",
        "epoch_steps",
        "replay",
    )
)
NAMES = {"decode": "mode"}  # facts that have another name in a config


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """What differs between two sets of facts.

    Args:
        old: Fact by name.
        new: Likewise.

    Returns:
        For example "seed was 0, is 1; split was 0%:90%, is 0%:95%"; "" if nothing differs.
    """
    names = [*old, *(n for n in new if n not in old)]
    told = (
        f"{NAMES.get(n, n):.{MOST}} was {shown(n, old.get(n))}, is {shown(n, new.get(n))}"
        for n in names
        if old.get(n) != new.get(n)
    )
    return "; ".join(told)


def comparable(known: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """The facts of today that can be compared with those that somebody knows.

    Args:
        known: Facts that were noted earlier, perhaps by a version that had fewer of them.
        now: Those of today.

    Returns:
        Those of today that are in both, and those whose absence says that they were not set.
    """
    return {
        name: fact
        for name, fact in now.items()
        if name in known or name.rpartition(".")[2] in OPTIONAL  # "a.keys" of a mixture
    }


def apart_from_code(facts: Mapping[str, str], edited: str) -> dict[str, str]:
    """The facts that can be compared where user code may have been edited.

    Args:
        facts: Fact by name.
        edited: The files of code that differ, as from `edited_code`; "" if none does.

    Returns:
        All facts; where code differs, those that are not told from samples.
    """
    return {n: fact for n, fact in facts.items() if not (edited and fact.startswith(MADE))}


def shown(name: str, value: str | None) -> str:
    """A fact's value as a config has it.

    Args:
        name: Name of the fact.
        value: Its value; None: "not set". One that cannot be read is shown as it is.
    """
    if value is None:
        return "not set"
    try:
        kind = name if name.startswith(CODE) else name.rpartition(".")[2]  # "a.split" of a mixture
        text = READERS[kind](value) if kind in READERS else value
    except (ValueError, TypeError, KeyError, AttributeError):
        text = value
    return text if len(text) <= MOST else text[: MOST - 3] + "..."


def _shuffle(value: str) -> str:
    return {0: "false", 1: "true"}.get(int(value), f"{{block = {int(value)}}}")


def _mode(value: str) -> str:
    return "not used (decode = false)" if value == "no" else f'"{value}"'


def _layout(value: str) -> str:
    name, args = json.loads(value)
    return _called(name, args)


def _transforms(value: str) -> str:
    steps = [_called(step["op"] or step["call"], step["args"]) for step in json.loads(value)]
    return ", ".join(steps) or "none"


def _called(name: str, args: Mapping[str, Any]) -> str:
    inside = ", ".join(f"{arg}={json.dumps(value)}" for arg, value in args.items())
    return f"{name}({inside})" if inside else name


READERS: Mapping[str, Callable[[str], str]] = {
    "shuffle": _shuffle,
    "decode": _mode,
    "layout": _layout,
    "transforms": _transforms,
}


def without_code(facts: Mapping[str, str]) -> dict[str, str]:
    """The facts that are not about files of code."""
    return {name: value for name, value in facts.items() if not name.startswith(CODE)}


def edited_code(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """The files of code that both sets of facts know and that differ.

    Returns:
        For example "mine.py, sub/augment.py"; "" if none differs.
    """
    return ", ".join(
        name.removeprefix(CODE)
        for name in old
        if name.startswith(CODE) and new.get(name, old[name]) != old[name]
    )
