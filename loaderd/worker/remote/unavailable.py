"""What becomes of a proxy that can be none: Ray cannot be imported, or nobody is at its address."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from typing import NoReturn

from loaderd.engine.channel import Channel, ChannelClosed
from loaderd.engine.messages import WorkerFault


def main(argv: list[str], error: Exception) -> NoReturn:
    """Say why it cannot be imported, and end.

    Args:
        argv: Of the proxy.
        error: What the import raised.
    """
    why = " ".join(f"{type(error).__name__}: {error}".split())
    give_up(json.loads(argv[0])[1], f"Ray cannot be imported: {why}")


def give_up(sock: int, why: str) -> NoReturn:
    """Say why, and end as one that was killed from outside: no sample is the cause.

    Args:
        sock: Descriptor of its socket.
        why: In one line.
    """
    channel = Channel(socket.socket(fileno=sock), blocking=True)
    with contextlib.suppress(ChannelClosed):
        channel.send(WorkerFault(why))
    os.kill(os.getpid(), signal.SIGKILL)
    os._exit(1)
