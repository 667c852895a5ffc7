"""A stream opened as the daemon opens it, where the order of its epochs is read from its samples.

The samples of a check are made in the stored order, for which no weights and no lengths are read.
"""

from __future__ import annotations

from collections.abc import Callable

from loaderd.cli.check.local_run import LocalRun
from loaderd.config.load import Config
from loaderd.config.stream import StreamConfig
from loaderd.data.errors import SourceError
from loaderd.data.stream_order import stream_order
from loaderd.engine.messages import OpenError, StreamInfo
from loaderd.system.loop import Loop


def not_opened(config: Config, plan: StreamConfig, *, say: Callable[[str, str], None]) -> list[str]:
    """Why no trainer can be served with the weights or the lengths of a stream.

    Args:
        config: The config.
        plan: The stream.
        say: Takes (level, text) of the log.

    Returns:
        One text, or none where the stream can be opened or has neither weights nor lengths.
    """
    if not any(each.weights or each.bucket_by for each in (plan, *plan.sources)):
        return []
    opened: list[StreamInfo | OpenError] = []
    with Loop() as loop:

        def on_open(found: StreamInfo | OpenError) -> None:
            opened.append(found)
            loop.stop()

        with LocalRun(loop, config, plan, 1, on_open=on_open, say=say):
            loop.run()
    for found in opened:
        if isinstance(found, OpenError):
            return [found.text]
        try:
            stream_order(plan, found)
        except (ValueError, SourceError) as error:
            return [str(error)]
    return []
