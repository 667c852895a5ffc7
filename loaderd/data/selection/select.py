"""What a stream's settings select: worked out once, when the stream is opened."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np

from loaderd.config.order_keys import BALANCED
from loaderd.config.stream import StreamConfig
from loaderd.core.order import Order
from loaderd.core.weighted_draw import weight_ends
from loaderd.data.errors import SourceError
from loaderd.data.selection import groups, keys_file, lengths, weights
from loaderd.data.selection.keys_file import Keyed
from loaderd.data.selection.lengths import Readable
from loaderd.data.selection.selection import ALL, SampleSelection, Tick, file_stamp
from loaderd.data.selection.tables import write_table
from loaderd.data.selection.weights import Labelled


class Selectable(Keyed, Labelled, Readable, Protocol):
    """What is selected from: a `Source`.

    Attributes:
        user_code: Somebody else's code reads or parses.
    """

    user_code: bool


def select(
    plan: StreamConfig, source: Selectable, tick: Tick = lambda count: None
) -> SampleSelection:
    """Work out what a stream selects.

    Args:
        plan: The stream's settings.
        source: Its dataset, open.
        tick: Called now and then with a count: keys and labels of all samples may be read.

    Raises:
        SourceError: A file, a key, a group or a weight is wrong; the text names it.
        ValueError: The split is empty, or beyond the end.
    """
    weighted = plan.weights if plan.weights != BALANCED else None
    files = tuple(
        (path, file_stamp(path)) for path in (plan.keys, weighted, plan.classes) if path is not None
    )
    if not (plan.keys or plan.weights or plan.bucket_by or plan.split_by == "key"):
        return replace(ALL, files=files)
    indices, keys_hash, weights_hash = np.arange(source.total, dtype=np.int64), "", ""
    if plan.keys:
        data, keys_hash = keys_file.read_file(plan.keys)
        indices = keys_file.listed(plan.keys, data, source, tick)
    total = len(indices)
    if plan.split_by == "key":
        places = groups.of_side(source, indices, plan.split, plan.group or "", tick)
        indices = chosen = indices[places]
    else:
        order = Order(total, plan.split, plan.split_by)
        places = order.indices(0, 0, np.arange(order.samples, dtype=np.int64))
        chosen = indices[places]
    listed = write_table(indices) if plan.keys or plan.split_by == "key" else ""
    ends, notes = "", tuple[str, ...]()
    if plan.weights:
        if plan.weights == BALANCED:
            found, notes = weights.balanced(source, chosen, tick, skipping=plan.on_error != "raise")
        else:
            data, weights_hash = keys_file.read_file(plan.weights)
            found = weights.of_file(plan.weights, data, total, places)
        try:
            ends = write_table(weight_ends(found))
        except ValueError as error:
            raise SourceError(f"{plan.weights}: {error}") from None
    selection = SampleSelection(listed, ends, keys_hash, weights_hash, notes, files)
    if not plan.bucket_by:
        return selection
    ranked, classes = lengths.ranked(
        source,
        chosen,
        plan.bucket_by,
        tick,
        lenient=plan.on_error != "raise",
        recipe="" if source.user_code else _recipe(plan),
    )
    return replace(
        selection,
        ranked=write_table(ranked),
        class_counts=tuple(each.count for each in classes),
        class_longest=tuple(each.longest for each in classes),
    )


def _recipe(plan: StreamConfig) -> str:
    """The settings that decide what a sample is as it is read, beside what the databases hold."""
    said = [(name, getattr(plan, name)) for name in plan.said_of_database()]
    classes = file_stamp(plan.classes) if plan.classes is not None else ""
    modes = plan.modes()
    looks = modes.stream, sorted(modes.fields.items()), sorted(modes.paired), modes.exif
    taken = sorted(plan.free_fields), plan.whole_samples, looks, classes
    return repr((plan.layout, plan.layout_args, said, [part.said for part in plan.parts], taken))
