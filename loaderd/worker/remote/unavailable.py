"""What becomes of a proxy where Ray is installed, and cannot be imported."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from typing import NoReturn

from loaderd.engine.channel import Channel, ChannelClosed
from loaderd.engine.messages import WorkerFault
from loaderd.worker.main import FAULT_EXIT


def main(argv: list[str], error: Exception) -> NoReturn:
    """Say why, and end as one that was killed from outside: no sample is the cause.

    Args:
        argv: Of the proxy.
        error: What the import raised.
    """
    channel = Channel(socket.socket(fileno=json.loads(argv[0])[1]), blocking=True)
    why = " ".join(f"{type(error).__name__}: {error}".split())
    with contextlib.suppress(ChannelClosed):
        channel.send(WorkerFault(f"Ray cannot be imported: {why}"))
    os.kill(os.getpid(), signal.SIGKILL)
    os._exit(FAULT_EXIT)
