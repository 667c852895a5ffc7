"""Which user code the streams need, and where it is looked for first."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from loaderd.config.stream import StreamConfig
from loaderd.data.user_code import find
from loaderd.system.modules import Imported

_imported: Imported | None = None  # a fork goes on with that of its parent


def put_first(folder: str) -> None:
    """Make `folder` the first place where imports look."""
    if folder and (not sys.path or sys.path[0] != folder):
        sys.path.insert(0, folder)


def imported(folder: str) -> Imported:
    """What this process has imported from below the config's folder."""
    global _imported
    if _imported is None or _imported.folder != folder:
        _imported = Imported(folder)
    return _imported


def import_all(plans: list[StreamConfig], init: str, tell: Callable[[str], object]) -> None:
    """Import all user code of these plans, and `init` if that is not "".

    Args:
        plans: Streams.
        init: "pkg.module:function" or "".
        tell: Called with a text before each import that is not done yet.

    Raises:
        SourceError: Something cannot be imported.
    """
    for name, what, place in [*_entries(plans), *([(init, "init", "[workers]")] if init else [])]:
        module = name.partition(":")[0]
        if module not in sys.modules:
            tell(f"importing {module} ({what} of {place})")
        find(name, what)


def _entries(plans: list[StreamConfig]) -> Iterator[tuple[str, str, str]]:
    """("pkg.module:name", the setting that names it, whose setting that is) of all user code."""
    for plan in [each for whole in plans for each in (*whole.sources, whole)]:
        place = f"stream {plan.name!r}"
        if plan.dataset is not None:
            yield plan.dataset, "dataset", place
        if ":" in plan.layout:
            yield plan.layout, "layout", place
        if ":" in plan.collate:
            yield plan.collate, "collate", place
        for step in plan.transforms:
            if step.call is not None:
                yield step.call, "call", place
