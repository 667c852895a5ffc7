"""Who is told of a worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from loaderd.engine.worker_exit import WorkerExit

if TYPE_CHECKING:
    from loaderd.engine.worker_process import WorkerProcess


class WorkerListener(Protocol):
    """Who is told of a worker process."""

    def worker_does(self, child: WorkerProcess, doing: str) -> None:
        """As in Doing."""
        ...

    def worker_ready(self, child: WorkerProcess) -> None:
        """It has booted, and may be sent work."""
        ...

    def worker_reported(self, child: WorkerProcess, message: object) -> None:
        """An answer.

        Raises ProtocolError for one that nobody asked for; then the worker is killed.
        """
        ...

    def worker_died(self, child: WorkerProcess, death: WorkerExit) -> None:
        """Its pidfd has been readable; it owns nothing any longer."""
        ...
