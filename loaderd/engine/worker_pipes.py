"""What connects the engine with a worker: a socket, a pipe, and a file for stacks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from loaderd.engine.channel import Channel, pair
from loaderd.engine.output_capture import OutputCapture
from loaderd.engine.stack_dump import StackDump
from loaderd.system.logs import WriteLog
from loaderd.system.loop import Loop

MAX_STACK = 60_000


class WorkerPipes:
    """The engine's ends, from before the worker is forked until it is forgotten.

    Attributes:
        channel: For messages; whoever watches it ends that before `close`.
        dump: The stacks that it writes.
    """

    def __init__(self, loop: Loop, worker: int, log: WriteLog, label: Callable[[], str]) -> None:
        """Make both ends of each.

        Args:
            loop: Calls whatever is here.
            worker: Its number.
            log: Takes what it prints.
            label: Returns what stands before each line that it prints.
        """
        ours, self._its = pair()
        read, self._write = os.pipe2(os.O_CLOEXEC)
        stacks = os.memfd_create(f"loaderd-stack-{worker}", os.MFD_CLOEXEC)
        self.dump = StackDump(loop, stacks, MAX_STACK)
        self._output = OutputCapture(loop, read, log, label)
        self.channel = Channel(ours, blocking=False, takes_fds=False)

    @contextmanager
    def its_ends(self) -> Iterator[tuple[int, int, int]]:
        """The worker's ends, to be sent to whoever makes it; closed here afterwards.

        Yields:
            Descriptors of (its socket, its output, its stacks).
        """
        try:
            yield self._its.fileno(), self._write, self.dump.fd
        finally:
            self._its.close()
            os.close(self._write)

    def last_lines(self) -> str:
        """What a worker that is dead had printed last; "" for nothing."""
        self._output.close()
        return " | ".join(self._output.tail)

    def close(self) -> None:
        """Close the engine's ends; what it had printed is logged."""
        self.channel.close()
        self._output.close()
        self.dump.close()
