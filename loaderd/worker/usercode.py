"""Which user code the streams need, and where it is looked for first."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from loaderd.data.plan import StreamPlan


def put_first(folder: str) -> None:
    """Make `folder` the first place where imports look."""
    if folder and (not sys.path or sys.path[0] != folder):
        sys.path.insert(0, folder)


def entries(plans: list[StreamPlan]) -> Iterator[tuple[str, str]]:
    """("pkg.module:name", the setting that names it) of all user code in these plans."""
    for plan in plans:
        if plan.dataset is not None:
            yield plan.dataset, "dataset"
        if ":" in plan.layout:
            yield plan.layout, "layout"
        if ":" in plan.collate:
            yield plan.collate, "collate"
        for step in plan.transforms:
            if step.call is not None:
                yield step.call, "call"
