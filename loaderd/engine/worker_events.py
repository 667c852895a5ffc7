"""What the scheduler's workers say, as the scheduler's events."""

from __future__ import annotations

from collections.abc import Callable

from loaderd.core.events import (
    Event,
    WorkerBooting,
    WorkerDied,
    WorkerDone,
    WorkerObservation,
    WorkerReady,
)
from loaderd.core.jobs import Done, Job
from loaderd.engine.messages import NewModules, NoteLine, SegmentUnmapped
from loaderd.engine.segment_refs import SegmentTable
from loaderd.engine.stream_table import StreamTable
from loaderd.engine.worker_exit import LEFT, WorkerExit
from loaderd.engine.worker_process import WorkerProcess
from loaderd.system.logs import WriteLog
from loaderd.system.modules import Modules
from loaderd_wire.errors import ProtocolError
from loaderd_wire.records import quick

MAX_NOTED = 256  # lines of workers; user code may have got hold of a worker's socket

_worker_done = quick(WorkerDone)


class WorkerEvents:
    """The listener of all workers but the probing ones.

    Attributes:
        served: A worker has been ready.
    """

    def __init__(
        self,
        streams: StreamTable,
        segments: SegmentTable,
        modules: Modules,
        emit: Callable[[Event], object],
        log: WriteLog,
    ) -> None:
        self._streams = streams
        self._segments = segments
        self._modules = modules
        self._emit = emit
        self._log = log
        self._noted: set[str] = set()  # what workers have noted, each told once
        self.served = False

    def worker_ready(self, child: WorkerProcess) -> None:
        """A worker takes jobs from now on."""
        self.served = True
        self._emit(WorkerReady(child.worker))

    def worker_does(self, child: WorkerProcess, doing: str) -> None:
        """What a worker does, or waits for, before it is ready."""
        self._emit(WorkerBooting(child.worker, doing, child.reached))

    def worker_reported(self, child: WorkerProcess, message: object) -> None:
        """A worker has done a job, noted something, or let go of a segment.

        Raises ProtocolError for what nobody asked for.
        """
        first = next(iter(child.jobs.values()), None)
        if isinstance(message, Done) and first is not None and answers(message, first):
            if child.remote and child.other_code:
                return  # it is being killed: other workers make the rows
            del child.jobs[message.job]
            if child.other_code and self._streams.has_user_code(first.stream):
                self._emit(WorkerDone(child.worker, message, child.other_code))
            else:
                self._emit(_worker_done(child.worker, message))
        elif isinstance(message, NoteLine):
            self._note(message.text)
        elif isinstance(message, NewModules):
            for path in self._modules.add(message.modules):
                child.other_code = child.other_code or (
                    f"{path} was edited while the daemon runs: {child.name} has the new code, "
                    "the others the old"
                )
                self._note(child.other_code)
                if child.remote:
                    child.kill(child.other_code)
        elif not (
            isinstance(message, SegmentUnmapped) and self._segments.unmapped(message.segment, child)
        ):
            raise ProtocolError(f"{message!r:.100} while it does {first}")

    def worker_died(self, child: WorkerProcess, death: WorkerExit) -> None:
        """A worker has ended, or has not come to be."""
        seen = WorkerObservation(child.worker, death.word, death.key, False, 0)
        # what could not start is told by whoever wanted it
        if not death.boot and death.cause != LEFT:
            at = f", at sample {death.key!r}" if death.word and death.key else ""
            self._log(
                "warning",
                "worker_ended",
                f"{child.name} (pid {child.pid}) has ended: {death.cause}{at}",
                worker=child.worker,
                pid=child.pid,
                cause=death.cause,
            )
        self._emit(WorkerDied(child.worker, death.own, death.cause, seen, death.stack, death.boot))

    def _note(self, text: str) -> None:
        if text not in self._noted and len(self._noted) < MAX_NOTED:
            self._noted.add(text)
            self._log("warning", "worker_note", text)


def answers(done: Done, job: Job) -> bool:
    """Whether a worker can have answered so to this job: user code may have its socket."""
    if not done.bad and not done.replaced:
        return done.job == job.job
    rows = range(job.first, job.last)
    return (
        done.job == job.job
        and all(bad.row in rows for bad in done.bad)
        and all(row.row in rows for row in done.replaced)
    )
