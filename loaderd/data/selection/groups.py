"""The samples on one side of a split by groups of their keys."""

from __future__ import annotations

import re

import numpy as np

from loaderd.core.group_split import group_bounds, group_word
from loaderd.data.errors import SourceError
from loaderd.data.selection.keys_file import EVERY, Ints, Keyed
from loaderd.data.selection.selection import Tick


def of_side(source: Keyed, indices: Ints, split: str, pattern: str, tick: Tick) -> Ints:
    """The samples whose group falls on this side.

    Args:
        source: The dataset.
        indices: int64[n], the samples that are split, in their order.
        split: The side, as for `group_bounds`.
        pattern: A regular expression that is searched in a sample's key; what its one group
            matches is the name of the sample's group.
        tick: Called now and then.

    Returns:
        int64[m], those on this side, as places in `indices`, in the same order.

    Raises:
        SourceError: The pattern does not match a key, or no sample is on this side.
        ValueError: The split is no part of groups.
    """
    low, high = group_bounds(split)
    search = re.compile(pattern).search
    inside: dict[str, bool] = {}
    chosen = np.zeros(len(indices), bool)
    for place, index in enumerate(indices):
        if place % EVERY == 0:
            tick(place)
        key = source.key(int(index))
        match = search(key)
        if match is None or match[1] is None:
            raise SourceError(
                f"group = {pattern!r} does not match the key {key!r}: which group the sample "
                "belongs to is not known; change the pattern so that it matches every key"
            )
        group = match[1]
        if group not in inside:
            inside[group] = low <= group_word(group) < high
        chosen[place] = inside[group]
    if not chosen.any():
        raise SourceError(
            f"split {split!r} has no sample: none of the {len(inside):,} groups that "
            f"group = {pattern!r} makes of {len(indices):,} keys falls there; choose a larger "
            "part, or a pattern that makes more groups"
        )
    return np.flatnonzero(chosen).astype(np.int64)
