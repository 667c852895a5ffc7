"""Lines for the trainer's user, by Python's logging."""

from __future__ import annotations

import logging

from loaderd_wire.errors import by_handler

LOG = logging.getLogger("loaderd_client")


def warn(text: str, *values: object) -> None:
    """Log a line for the user.

    Nothing that logging itself raises gets out, as it does where sys.stderr has been closed: a
    batch is worth more than a line.

    Args:
        text: Format of the line.
        *values: What goes into it.
    """
    try:
        LOG.warning(f"loaderd: {text}", *values)
    except (OSError, ValueError) as error:
        if by_handler(error, "logging") and by_handler(error, "traceback"):
            raise
