"""Lines for the trainer's user, by Python's logging."""

from __future__ import annotations

import contextlib
import logging

from loaderd_client.signals import Carried, Unswallowed
from loaderd_wire.plain_text import plain

LOG = logging.getLogger("loaderd_client")


def warn(text: str, *values: object) -> None:
    """Log a line for the user.

    Nothing that logging itself raises gets out, as it does where sys.stderr has been closed: a
    batch is worth more than a line. What a signal's handler raises meanwhile gets out as it is.

    Args:
        text: Format of the line.
        *values: What goes into it; control characters of a text are shown as escapes.
    """
    shown = [plain(value) if isinstance(value, str) else value for value in values]
    try:
        with Unswallowed(), contextlib.suppress(OSError, ValueError):
            LOG.warning(f"loaderd: {text}", *shown)
        return
    except Carried as carried:
        error = carried.error
    raise error from error.__cause__
