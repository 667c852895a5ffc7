"""Whether another host would make the bytes that this one makes."""

from __future__ import annotations

import json

from loaderd.engine.messages import StreamInfo
from loaderd.worker.makers import SAMPLES

# what both must have found of a stream, and what that is called
SAME = {
    "total": "the number of samples",
    "samples": "the number of samples of an epoch",
    "identity": "the data",
    "values": "the first samples as they are read",
    "layout": "the layout",
    "keys": "the names of samples",
    "classes": "the class names",
    "sample_specs": "the fields of samples",
    "specs": "the fields of batches",
    "form": "the form of samples",
    "collated": "the form of batches",
}


def difference(here: StreamInfo, there: StreamInfo) -> str:
    """What of a stream is another on another host than here; "" if nothing.

    Args:
        here: What was found here.
        there: What was found there.
    """
    ours, theirs = json.loads(here.makers), json.loads(there.makers)
    for name, text in ours.items():
        if name != SAMPLES and theirs.get(name, text) != text:
            return f"{name} is {theirs[name]} there, {text} here: install the same"
    known = {module.path: module.digest for module in here.code}
    for module in there.code:
        if known.get(module.path, module.digest) != module.digest:
            return f"{module.path} is another file there than here"
    if text := _found(here, there):
        return text
    for one, other in zip(here.sources, there.sources, strict=True):
        if text := _found(one, other):
            return f"source {one.stream!r}: {text}"
    if ours[SAMPLES] != theirs[SAMPLES]:
        return (
            "the first samples would be others, with the same versions of all that is known: is "
            "the data the same, and does the code make a sample alike each time (`loaderd check`)?"
        )
    return ""


def _found(here: StreamInfo, there: StreamInfo) -> str:
    """What of a stream, or of a source of one, was found to be another."""
    for name, what in SAME.items():
        one, other = getattr(here, name), getattr(there, name)
        if one != other:
            return f"{what} would be others: {other!r:.100} there, {one!r:.100} here"
    if here.selection.content != there.selection.content:
        return (
            "keys, weights or bucket_by select other samples there than they did here: give both "
            "hosts the same files, and start the daemon again if they have changed since"
        )
    return ""
