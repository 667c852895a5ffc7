"""Whether a trainer shares its batches, and for how long they are kept for others. Pure."""

from __future__ import annotations

from loaderd.config.stream import StreamConfig
from loaderd_wire.errors import ConfigError

ASKED = ("", "yes", "no")


def share_window(shared: str, prefetch: int, plan: StreamConfig) -> int:
    """A batch is kept for trainers that will want it as one of their next so many.

    Args:
        shared: What a trainer asks for; "" for what the stream says.
        prefetch: Its prefetch.
        plan: The stream.

    Returns:
        0 if it shares its batches with no other.

    Raises:
        ConfigError: It asks for something else.
    """
    if shared not in ASKED:
        raise ConfigError(f"shared = {shared!r}: use {', '.join(map(repr, ASKED))}")
    wanted = plan.share if shared == "" else shared == "yes"
    return (plan.share_window or 2 * prefetch) if wanted else 0
