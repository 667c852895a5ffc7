"""Which samples a stream uses, and in which order: what the keys that say so take."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction as Exact
from typing import Any

from loaderd.config.table import Key, Table
from loaderd.config.types import Either, Flag, Say, Text, Whole, near, show

SPLIT_END = r" *(?:(?:[0-9]{1,3}(?:\.[0-9]{0,9})?|\.[0-9]{1,9}) *%|[0-9]{1,15})? *"


def _split(text: str) -> str:
    """What is wrong with a split whatever the number of samples is."""
    low, high = (part.strip() for part in text.split(":"))
    percents = [
        Exact(end.rstrip("% ")) for end in (low or "0%", high or "100%") if end.endswith("%")
    ]
    if any(percent > 100 for percent in percents):
        return "ends beyond 100%"
    counts = [int(end) for end in (low, high) if end.isdigit()]
    empty = any(len(ends) == 2 and ends[0] >= ends[1] for ends in (percents, counts))
    return "is empty: it ends where it begins, or before" if empty else ""


def _group(text: str) -> str:
    """What is wrong with a pattern of groups."""
    try:
        groups = re.compile(text).groups
    except (re.error, OverflowError, RecursionError) as error:
        return f"is no regular expression: {error}"
    return "" if groups == 1 else f"has {groups} groups: put one (...) around what names the group"


def _weights(text: str) -> str:
    """What is wrong with the weights: a word is "balanced", and a path has one of ./$ in it."""
    word = text != BALANCED and not re.search(r"[./$]", text)
    slip = near(text, (BALANCED,)) if word else ""
    return f"is no .npy file{slip}" if slip else ""


BALANCED = "balanced"
GROUP = Text(r"(?s:.*\(.+)", 'a regular expression with one (...) such as "^([^_]+)_"', _group)
WEIGHTS = Text(r"(?s:.+)", f'the path of a .npy file, or "{BALANCED}"', _weights)
PERCENTAGES = "^ *([0-9.]+ *%)? *: *([0-9.]+ *%)? *$"
SPLIT = Text(f"{SPLIT_END}:{SPLIT_END}", 'a part such as "0%:95%" or "0:50000"', _split)
SHUFFLE = Either(
    (Flag(), Table({"block": Key(Whole(1, 1 << 40), "Samples per block.", required=True)})),
    "true, false or {block = N}",
)

# The rules of `check`, as JSON schema.
SCHEMAS = {
    "group": {"properties": {"split_by": {"const": "key"}}},
    "split_by": {
        "anyOf": [
            {"properties": {"split_by": {"enum": ["random", "stored"]}}},
            {"required": ["group"], "properties": {"split": {"pattern": PERCENTAGES}}},
        ]
    },
    "classes": {
        "anyOf": [
            {"properties": {"dataset": False}},
            {"properties": {"collate": {"const": "stack"}}},
        ]
    },
    "weights": {"properties": {"shuffle": {"type": "boolean"}}},
}


def check(given: Mapping[str, Any], say: Say) -> None:
    """Which of these keys go together."""
    by_key = given.get("split_by") == "key"
    if "group" in given and not by_key:
        say("group", f'{show(given["group"])}: goes with split_by = "key", which is not set')
    if by_key and "group" not in given:
        say(
            "split_by",
            '"key": needs group, a regular expression that finds in a key what samples of one '
            'group share, such as group = "^([^_]+)_"',
        )
    split = given.get("split")
    if by_key and isinstance(split, str) and any(end.strip().isdigit() for end in split.split(":")):
        say(
            "split",
            f'{show(split)}: with split_by = "key" write percentages, as in "0%:80%": groups have '
            "any number of samples",
        )
    if "classes" in given and "dataset" in given and given.get("collate", "stack") != "stack":
        say(
            "classes",
            f"{show(given['classes'])}: goes without collate, which gets samples as the dataset "
            "returned them: map the labels in it",
        )
    if "weights" in given and isinstance(given.get("shuffle"), dict):
        say(
            "shuffle",
            f"{show(given['shuffle'])}: goes without weights, which draw samples from anywhere",
        )
