"""Whether a trainer shares its batches, and for how long they are kept for others. Pure."""

from __future__ import annotations

from loaderd.config.stream import StreamConfig
from loaderd_wire.errors import ConfigError
from loaderd_wire.messages import Hello

ASKED = ("stream", "yes", "no")
EARLIER = ""  # what a client asks for that cannot share


def share_window(hello: Hello, plan: StreamConfig) -> int:
    """A batch is kept for trainers that will want it as one of their next so many.

    Args:
        hello: What a trainer asks for.
        plan: The stream.

    Returns:
        0 if it shares its batches with no other.

    Raises:
        ConfigError: It asks for something else.
    """
    if hello.shared not in (*ASKED, EARLIER):
        raise ConfigError(f"shared = {hello.shared!r}: use {', '.join(map(repr, ASKED))}")
    wanted = plan.share if hello.shared == "stream" else hello.shared == "yes"
    return (plan.share_window or 2 * hello.prefetch) if wanted else 0
