"""What a daemon logs before it serves: of itself, and of each stream that it has opened."""

from __future__ import annotations

import platform

from loaderd import __version__
from loaderd.config.load import Config
from loaderd.data import native_library
from loaderd.server.admission import OpenedStream
from loaderd.server.pool_limits import PoolLimits
from loaderd.server.status import copies_of, copies_told
from loaderd.system import resource_limits
from loaderd.system.logs import WriteLog
from loaderd_wire.hints import counted, few

MOST_FIELDS = 8  # that are named


def tell_start(log: WriteLog, config: Config, limits: PoolLimits, memory: int) -> None:
    """Log what is served, by which version, and with how many workers and bytes.

    Args:
        log: The log.
        config: What is served.
        limits: Of the workers.
        memory: Limit of all segments together, in bytes.
    """
    native = native_library.present()
    workers = counted(limits.start, "worker") + (
        f" (up to {limits.most})" if limits.most > limits.start else ""
    )
    log(
        "info",
        "banner",
        f"loaderd {__version__} on Python {platform.python_version()}: config "
        f"{config.path or '(none)'}, streams {few([each.name for each in config.streams])}, "
        f"{workers}, {resource_limits.size(memory)} for batches, "
        f"{native_library.described(native)}",
        version=__version__,
        config=config.path,
        workers=limits.start,
        memory=memory,
    )


def tell_stream(log: WriteLog, name: str, stream: OpenedStream) -> None:
    """Log what opening a stream has found.

    Args:
        log: The log.
        name: Of the stream.
        stream: What was found, and where it is read.
    """
    found = stream.facts
    copies = copies_told(copies_of(stream.plan))
    fields = [
        f"{spec.name} {spec.dtype[1:]} {list(spec.shape)}" if spec.kind == "array" else spec.name
        for spec in found.specs
    ]
    more = f" and {len(fields) - MOST_FIELDS} more" if len(fields) > MOST_FIELDS else ""
    log(
        "info",
        "stream_opened",
        f"stream {name!r}: {found.samples:,} samples of {found.total:,}, layout {found.layout}, "
        f"fields {', '.join(fields[:MOST_FIELDS])}{more}{', ' if copies else ''}{copies}",
        stream=name,
        samples=found.samples,
    )
