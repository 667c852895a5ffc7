"""Mixtures: streams whose samples are those of other streams."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from loaderd.config.transforms import BATCH
from loaderd.config.types import Say, join, near, show

# What a mixture may say: what concerns its batches. All else is said by its sources.
OWN = (
    "of", "stop", "epoch_steps", "batch_size", "seed", "drop_last", "tail", "empty", "max_errors",
    "collate", "pad", "ragged", "ragged_as", "share", "share_window", "transforms",
)  # fmt: skip
MOST_UNITS = 1 << 31  # of all weights together, as the least whole numbers
# What `check` refuses, as JSON schema, as far as it can say it.
SCHEMAS: dict[str, Any] = {
    "stop": {"properties": {"epoch_steps": {"const": 0}}},
    "of": {
        "propertyNames": {"enum": [*OWN]},
        "properties": {
            "transforms": {
                "items": {"properties": {"op": {"enum": sorted(BATCH)}}, "required": ["op"]}
            }
        },
    },
}
WEIGHTS = "a table of streams with their weights: {a = 0.7, b = 0.3}"


@dataclass(frozen=True, slots=True)
class Weights:
    """A table of streams, each with a weight above 0."""

    def read(self, value: Any, say: Say) -> Any:
        """The table as written: stream -> weight, an int or a float."""
        if not isinstance(value, dict) or not value:
            say("", f"{show(value)} is not {WEIGHTS}")
            return {}
        sound = True
        for name, weight in value.items():
            if type(weight) not in (int, float) or not math.isfinite(weight) or weight <= 0:
                say(join("", name), f"{show(weight)} is not a weight above 0")
                sound = False
        if sound and sum(units_of(value)) >= MOST_UNITS:
            say(
                "",
                f"{show(value)}: the ratio of these weights takes numbers of {MOST_UNITS:,} or "
                "more: write whole numbers, such as {a = 2, b = 1}",
            )
        return value

    def schema(self) -> dict[str, Any]:
        """Weights above 0; that their ratio takes small numbers, no schema can say."""
        return {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": {"type": "number", "exclusiveMinimum": 0},
        }


def exact(weights: Mapping[str, float]) -> list[Fraction]:
    """The weights as they are written: 0.7 is 7/10."""
    return [Fraction(str(weight)) for weight in weights.values()]


def units_of(weights: Mapping[str, float]) -> list[int]:
    """The weights as the least whole numbers of their ratio."""
    each = exact(weights)
    scale = math.lcm(*(weight.denominator for weight in each))
    whole = [int(weight * scale) for weight in each]
    return [number // math.gcd(*whole) for number in whole]


def check(given: Mapping[str, Any], say: Say) -> None:
    """What a mixture says that is not its own to say, and what others say of mixtures."""
    if "of" not in given:
        if "stop" in given:
            say("stop", f"{show(given['stop'])}: goes with of, which is not set")
        return
    for name, value in given.items():
        if name not in OWN:
            say(name, f"{show(value)}: a mixture has that from its sources: write it there")
    steps = given.get("transforms")
    for number, step in enumerate(steps if isinstance(steps, list) else ()):
        if not isinstance(step, dict) or step.get("op") not in BATCH:
            say(
                f"transforms[{number}]",
                "works on samples, which a mixture has from its sources: write it there (a mixture "
                f"has {', '.join(sorted(BATCH))})",
            )
    if "stop" in given and given.get("epoch_steps"):
        say("stop", f"{show(given['stop'])}: contradicts epoch_steps; leave one of them out")


def check_sources(streams: Mapping[str, Mapping[str, Any]], say: Say) -> None:
    """Whether the sources of all mixtures are there, and agree on what concerns a batch.

    Args:
        streams: What was read of each stream, by name.
        say: Takes (path below streams, text) for each fault.
    """
    for name, table in streams.items():
        weights = table["of"] if isinstance(table.get("of"), dict) else {}
        rules: dict[str, str] = {}
        for source in weights:
            where = join(join(join("", name), "of"), source)
            other = streams.get(source)
            if other is None:
                say(where, f"no stream of that name{near(source, streams)}")
            elif other.get("of"):
                say(where, "is a mixture itself: name its sources here")
            else:
                rules[source] = other["on_error"]
        if len(set(rules.values())) > 1:
            one = next(iter(rules))
            other = next(each for each in rules if rules[each] != rules[one])
            say(
                join(join("", name), "of"),
                f"{one!r} has on_error = {show(rules[one])} and {other!r} {show(rules[other])}: a "
                "batch of both needs one of them; give the sources the same",
            )
