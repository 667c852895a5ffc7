"""How samples of different lengths become a batch: the keys of a stream that say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loaderd.config.types import ENTRY, Say, Text, join, script, show

MOST_MULTIPLE = 1 << 20
RULE = ("value", "multiple", "mask")
PAD = 'a table: {input_ids = 0}, or {input_ids = {value = 0, multiple = 8, mask = "mask"}}'

# What `check` refuses, as JSON schema, as far as it can say it.
SCHEMAS: dict[str, Any] = {
    "max_tokens": {
        "anyOf": [{"required": ["bucket_by"]}, {"properties": {"max_tokens": {"const": 0}}}]
    },
    "bucket_by": {
        "properties": {
            "shuffle": {"type": "boolean"},
            "weights": False,
            "repeat": {"const": 1},
            "epoch_steps": {"const": 0},
            "tail": {"enum": ["repeat", "drop"]},
            "max_errors": {"type": "integer"},
        }
    },
}


@dataclass(frozen=True, slots=True)
class PadRules:
    """A table of fields, each with the number that fills it up.

    Read as field -> {"value", "multiple", "mask"}.
    """

    def read(self, value: Any, say: Say) -> Any:
        """Every field with all of RULE; a bare number is its `value`."""
        if not isinstance(value, dict):
            say("", f"{show(value)} is not {PAD}")
            return {}
        rules: dict[str, dict[str, Any]] = {}
        for name, given in value.items():
            rule = given if isinstance(given, dict) else {"value": given}
            for key in rule.keys() - set(RULE):
                say(join(join("", name), key), f"unknown key; there are {', '.join(RULE)}")
            if not isinstance(rule.get("value"), (int, float)):
                say(
                    join("", name), f"{show(given)} is not the number that fills it up, as in {PAD}"
                )
            multiple, mask = rule.get("multiple", 1), rule.get("mask", "")
            if type(multiple) is not int or not 1 <= multiple <= MOST_MULTIPLE:
                say(
                    join(join("", name), "multiple"),
                    f"{show(multiple)} is not 1 to {MOST_MULTIPLE:,}",
                )
            if not isinstance(mask, str) or ("mask" in rule and not mask):
                say(join(join("", name), "mask"), f"{show(mask)} is not the name of a field")
            rules[name] = {"value": rule.get("value", 0), "multiple": multiple, "mask": mask}
        return rules

    def schema(self) -> dict[str, Any]:
        """For each field a number, or a table with a `value`."""
        number = {"type": ["number", "boolean"]}
        rule = {
            "type": "object",
            "properties": {
                "value": number,
                "multiple": {"type": "integer", "minimum": 1, "maximum": MOST_MULTIPLE},
                "mask": {"type": "string", "minLength": 1},
            },
            "required": ["value"],
            "additionalProperties": False,
        }
        return {"type": "object", "additionalProperties": {"anyOf": [number, rule]}}


COLLATE = Text(rf"stack|{ENTRY}", '"stack" or the name of a function: "pkg.module:name"', script)


def check(given: Mapping[str, Any], say: Say) -> None:
    """Which of these keys go together, and with which others."""
    pad, ragged = given.get("pad"), given.get("ragged")
    for name in pad if isinstance(pad, dict) else ():
        if isinstance(ragged, list) and name in ragged:
            say("ragged", f"field {name!r} is in pad, too: leave one out")
    for name in ("pad", "ragged"):
        if name in given and given.get("collate", "stack") != "stack":
            say(name, f"{show(given[name])}: goes without collate, which makes the batch by itself")
    if given.get("max_tokens") and "bucket_by" not in given:
        say("max_tokens", f"{show(given['max_tokens'])}: goes with bucket_by, which is not set")
    if "bucket_by" in given:
        _check_buckets(given, say)
    if "ragged_as" in given and not ragged:
        say("ragged_as", f"{show(given['ragged_as'])}: goes with ragged, which is not set")


def _check_buckets(given: Mapping[str, Any], say: Say) -> None:
    """What an order of batches of similar length cannot be."""
    budget, tail = given.get("max_errors"), given.get("tail")
    faults = {
        "shuffle": isinstance(given.get("shuffle"), dict) and "true or false",
        "weights": "weights" in given and "no weights",
        "repeat": given.get("repeat", 1) != 1 and "no repeat",
        "epoch_steps": given.get("epoch_steps", 0) != 0 and "no epoch_steps",
        "tail": tail == "short" and '"repeat" or "drop"',
        "max_errors": isinstance(budget, float) and "a count",
    }
    for name, instead in faults.items():
        if instead:
            say(name, f"{show(given[name])}: with bucket_by it must be {instead}")
