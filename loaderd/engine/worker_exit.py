"""How a worker ended, and why."""

from __future__ import annotations

import os
from dataclasses import dataclass

from loaderd.system import processes

LEFT = "exited when asked to"  # a cause of death


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """How a worker ended.

    Attributes:
        own: As in WorkerDied.
        cause: As in WorkerDied.
        word: Its last word on the status board.
        key: Name of its last sample.
        stack: As in WorkerDied.
        boot: As in WorkerDied.
    """

    own: bool
    cause: str
    word: int
    key: str
    stack: str
    boot: str


@dataclass(slots=True)
class ExitReason:
    """What is known of why a worker will end, while it lives.

    Attributes:
        killed: Why we have killed it; "" if we have not.
        own_fault: Whether that was its own doing.
        told_to_leave: It was asked to end.
        last_words: The fault that it has told of; "" for none.
        remote: It stands for a worker on another host.
        remote_end: How that one has ended, if it has: its wait status, and whether its host has
            killed somebody for memory.
    """

    killed: str = ""
    own_fault: bool = False
    told_to_leave: bool = False
    last_words: str = ""
    remote: bool = False
    remote_end: tuple[int, bool] | None = None

    def judge(self, status: int | None, *, out_of_memory: bool) -> tuple[bool, str]:
        """Why it has ended.

        Args:
            status: Its wait status; None: it cannot be learnt.
            out_of_memory: The kernel killed somebody because memory was short.

        Returns:
            (whether it ended of its own doing, the cause).
        """
        if self.killed and processes.was_killed(status):
            return self.own_fault, f"killed: {self.killed}"
        if self.remote_end is not None:
            status, out_of_memory = self.remote_end
        how = processes.ending(status, out_of_memory=out_of_memory)
        if self.told_to_leave and status is not None and os.WIFEXITED(status):
            return False, LEFT
        words = self.last_words.partition("\n")[0]
        if self.remote and self.remote_end is None:  # its worker is lost: no sample is the cause
            return False, words or f"the process that stands for it here has ended: {how.cause}"
        if words:
            return how.own, f"{how.cause}: {words}"
        return how.own, how.cause
