"""Which keys of [streams.NAME] go together."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from loaderd.config import batching, database_keys, mixture_keys, order_keys
from loaderd.config import transforms as ops_table
from loaderd.config.types import Say, show

SOURCES = ("lmdb", "parts", "dataset")
# The rules of `check`, as JSON schema, as far as it can say them.
CONDITIONS: dict[str, Any] = {
    "oneOf": [{"required": [word]} for word in (*SOURCES, "of")],
    "dependentRequired": {
        "stop": ["of"],
        "dataset_args": ["dataset"],
        "ragged_as": ["ragged"],
        "group": ["split_by"],
    },
    "dependentSchemas": {
        **database_keys.SCHEMAS,
        **order_keys.SCHEMAS,
        **mixture_keys.SCHEMAS,
        **batching.SCHEMAS,
        "layout": database_keys.ON_DATABASES,
        "layout_args": {
            **database_keys.ON_DATABASES,
            "required": ["layout"],
            "properties": {"layout": {"pattern": ":"}},
        },
        "pad": {"properties": {"collate": {"const": "stack"}}},
        "ragged": {"properties": {"collate": {"const": "stack"}}},
        "empty": {
            "anyOf": [
                {"required": ["on_error"], "properties": {"on_error": {"const": "skip"}}},
                {"required": ["tail"], "properties": {"tail": {"const": "short"}}},
                {"required": ["of"]},
            ]
        },
        "tail": {
            "oneOf": [
                {"properties": {"tail": {"const": "drop"}, "drop_last": {"const": True}}},
                {
                    "properties": {
                        "tail": {"enum": ["repeat", "short"]},
                        "drop_last": {"const": False},
                    }
                },
            ]
        },
    },
}


def check(given: Mapping[str, Any], say: Say) -> None:
    """Report what does not go together in one [streams.NAME].

    Args:
        given: The table as it was written, by key.
        say: Takes (key, text) for each fault; the key "" is the table itself.
    """
    sources = [word for word in SOURCES if word in given]
    if len(sources) > 1:
        say("", f"has both {' and '.join(sources)}: leave one out")
    mixture_keys.check(given, say)
    if not sources and "of" not in given:
        alone = given.keys() == {"transforms"}
        say(
            "",
            'needs lmdb = "path" or dataset = "pkg.module:Class"'
            + "; it has transforms alone: is its name that of the stream you mean?" * alone,
        )
    for name in ("layout", "layout_args"):
        if name in given and not {"lmdb", "parts"} & given.keys():
            say(name, f"{show(given[name])}: goes with lmdb, which is not set")
    if "dataset_args" in given and "dataset" not in given:
        say("dataset_args", f"{show(given['dataset_args'])}: goes with dataset, which is not set")
    database_keys.check(given, say)
    batching.check(given, say)
    order_keys.check(given, say)
    if given.get("decode") is False and given.get("views", 1) != 1:
        say("views", f"{show(given['views'])}: goes with decode = true, but decode is false")
    _mixing_is_last(given, say)
    _one_draw_a_sample(given.get("transforms"), say)
    _marks_follow(given.get("transforms"), say)
    may_be_empty = given.get("on_error") == "skip" or given.get("tail") == "short"
    if "empty" in given and not may_be_empty and "of" not in given:
        say(
            "empty",
            f'{show(given["empty"])}: goes with on_error = "skip" or tail = "short", which are '
            "not set",
        )
    drops, tail = given.get("drop_last"), given.get("tail")
    if (
        isinstance(drops, bool)
        and tail in ("repeat", "short", "drop")
        and drops != (tail == "drop")
    ):
        say("tail", f"{show(tail)}: contradicts drop_last = {show(drops)}; leave one of them out")
    if "layout_args" in given and ":" not in str(given.get("layout")):
        say("layout_args", f'{show(given["layout_args"])}: goes with layout = "pkg.module:Class"')


def _one_draw_a_sample(transforms: Any, say: Say) -> None:
    """Report random ops of one kind on different fields.

    They draw differently: then an image and its mask no longer match.
    """
    # of each op: the word that names its fields, and the fields
    seen: dict[str, list[tuple[str, list[str]]]] = {}
    for number, step in enumerate(transforms if isinstance(transforms, list) else ()):
        if not isinstance(step, dict) or step.get("op") not in ops_table.RANDOM:
            continue
        op, word = step["op"], "fields" if "fields" in step else "field"
        given: Any = step["fields"] if word == "fields" else [step.get("field", "image")]
        names = [name for name in given if isinstance(name, str)] if isinstance(given, list) else []
        if names != given:
            continue  # told elsewhere
        earlier = seen.setdefault(op, [])
        other = next(
            (other for how, other in earlier if other != names and "field" in (word, how)), None
        )
        earlier.append((word, names))
        if other is not None:
            all_names = list(dict.fromkeys([*other, *names]))
            say(
                f"transforms[{number}].{word}",
                f"{op} draws separately for each field, so {' and '.join(map(repr, all_names))} "
                f"would no longer match: use one {op} with "
                f"fields = {json.dumps(all_names)}; if they need not match, give each op its own "
                'fields = ["..."]',
            )


def _marks_follow(transforms: Any, say: Say) -> None:
    """Boxes that follow one op and not another no longer lie where they should."""
    steps = [
        (number, step)
        for number, step in enumerate(transforms if isinstance(transforms, list) else ())
        if isinstance(step, dict) and step.get("op") in ops_table.GEOMETRY
    ]
    for word in ("boxes", "keypoints", "polygons"):
        named = [step for _, step in steps if isinstance(step.get(word), str)]
        for number, step in steps:
            other = next((other for other in named if _fields(step) & _fields(other)), None)
            if word not in step and other is not None:
                say(
                    f"transforms[{number}]",
                    f"{step['op']} moves pixels, but only {other['op']} says {word} = "
                    f"{json.dumps(other[word])}: say it for both, or the {word} would no longer "
                    "match the picture",
                )


def _fields(step: dict[str, Any]) -> set[str]:
    given: Any = step.get("fields", [step.get("field", "image")])
    names = given if isinstance(given, list) else []
    return {name for name in names if isinstance(name, str)}


def _mixing_is_last(given: Mapping[str, Any], say: Say) -> None:
    """Ops on a batch come after those on its samples, and need a batch that is stacked."""
    transforms = given.get("transforms")
    mixing = ""
    for number, step in enumerate(transforms if isinstance(transforms, list) else ()):
        op = step.get("op") if isinstance(step, dict) else None
        if isinstance(op, str) and op in ops_table.BATCH:
            mixing = op
        elif mixing:
            say(
                f"transforms[{number}]",
                f"comes after {mixing}, which works on whole batches: put {mixing} last",
            )
    if mixing and given.get("collate", "stack") != "stack":
        say("collate", f"{show(given['collate'])}: {mixing} needs stacked batches; mix in it")
