"""The local engine: workers on this host, forked from the fork server, that run the scheduler's
jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from loaderd.config.schema import WorkersConfig
from loaderd.config.stream import StreamConfig
from loaderd.core.events import (
    Event,
    StackDumped,
    WorkerBooting,
    WorkerDied,
    WorkerDone,
    WorkerObservation,
    WorkerPoll,
    WorkerReady,
)
from loaderd.core.jobs import Done, Job, JobKind
from loaderd.engine.base import EngineStatus, ForkServerStatus, ProcessStatus
from loaderd.engine.fork_server import ForkServer
from loaderd.engine.launch import Launched
from loaderd.engine.messages import (
    MapSegment,
    NewModules,
    NoteLine,
    OpenError,
    SegmentUnmapped,
    Setup,
    StreamInfo,
)
from loaderd.engine.oom import OomWatch
from loaderd.engine.output_capture import Log
from loaderd.engine.probing import Prober
from loaderd.engine.scoreboard import Scoreboard
from loaderd.engine.segment_refs import SegmentTable
from loaderd.engine.stream_table import StreamTable
from loaderd.engine.worker_exit import LEFT, WorkerExit
from loaderd.engine.worker_observer import WorkerObserver
from loaderd.engine.worker_process import ProcessState, WorkerListener, WorkerProcess
from loaderd.system import processes
from loaderd.system.loop import Loop, Timer
from loaderd.system.modules import Modules
from loaderd_wire.errors import ProtocolError
from loaderd_wire.messages import Segment
from loaderd_wire.records import quick
from loaderd_wire.slots import FieldSpec

__all__ = ["LocalEngine", "OpenError", "StreamInfo"]

FIRST_PROBE = 1 << 40  # probing workers have numbers from here on, which no scheduler's worker has
SPARE_PLACES = 16  # beyond twice the workers: stand-ins for those that cannot be killed
BOOT_S = 120.0
PLACE_S = 1.0
TEMPLATE_S = 1.0  # from one look at the fork server to the next, while somebody waits for it
NEW_TEMPLATE_S = 5.0
CLOSE_S = 5.0
MAX_NOTED = 256  # lines of workers; user code may have got hold of a worker's socket

_worker_done = quick(WorkerDone)


class LocalEngine:
    """The engine of one host, as `MakeEngine` says.

    boot_s: for a worker or fork server to get ready. ahead: a fork server for these streams that
    has been started already.
    """

    def __init__(
        self,
        loop: Loop,
        streams: Sequence[StreamConfig],
        config: WorkersConfig,
        *,
        late: Sequence[StreamConfig] = (),
        num_workers: int,
        folder: str = "",
        emit: Callable[[Event], object],
        log: Log,
        oom_kills: Callable[[], int] = lambda: 0,
        boot_s: float = BOOT_S,
        ahead: Launched | None = None,
    ) -> None:
        self._loop = loop
        self._emit = emit
        self._log = log
        self._sample_timeout_s = config.sample_timeout_s
        self._boot_s = boot_s
        self._num_workers = num_workers
        self._streams = StreamTable(streams, late)
        self._setup = Setup((), folder, config.init or "", num_workers, 0, "none")
        self._served = False  # a worker has been ready
        self._worker_places = 2 * num_workers + SPARE_PLACES
        self._board = Scoreboard(self._worker_places + len(self._streams) + SPARE_PLACES)
        self._fork_server = ForkServer(
            loop,
            (*streams, *late),
            self._ahead_of_all(),
            config.start_method,
            self,
            log,
            boot_s=boot_s,
            ahead=ahead,
        )
        self._segments = SegmentTable()
        # scheduler's workers and probes, until they are gone
        self._children: dict[int, WorkerProcess] = {}
        self._delayed: dict[int, Timer] = {}
        # of a dead fork server: a new one is started when they are dead
        self._awaited: set[WorkerProcess] = set()
        self._awaiting: Timer | None = None
        self._watching: Timer | None = None  # the fork server
        # workers that wait for it and have been told that it is stopped
        self._held_up: set[int] = set()
        self._probers: list[Prober] = []  # that have no answer yet
        self._next_probe = FIRST_PROBE
        self._observer = WorkerObserver(loop)
        self._oom = OomWatch(oom_kills)
        self._modules = Modules(folder)
        self._noted: set[str] = set()  # what workers have noted, each told once
        self._closed = False

    # -- the scheduler's actions

    def start(self, worker: int, delay_s: float) -> None:
        """Start worker `worker` not before delay_s from now. Answer: WorkerReady or WorkerDied."""
        if self._closed:
            return
        if worker in self._children or worker in self._delayed:
            raise ValueError(f"worker {worker} is there already")
        self._delayed[worker] = self._loop.later(delay_s, lambda: self._start(worker))

    def send(self, worker: int, job: Job) -> None:
        """Hand a job to a worker that is ready; its stream is opened, its segment added.

        Answer: WorkerDone or WorkerDied.
        """
        if self._closed:
            return
        child = self._children[worker]
        if job.stream not in child.used:
            child.used.add(job.stream)
            child.send(self._streams.order(job.stream))
        if job.kind != JobKind.TRIAL:
            self._segments.give(job.segment, child)
        child.jobs[job.job] = job
        self._oom.look(self._loop.now_s())
        child.send(job)

    def dump(self, worker: int) -> None:
        """Have a worker write its stacks, or the fork server that it waits for.

        Answer: StackDumped, unless it is dead already or dies before.
        """
        child = self._children.get(worker)
        if child is not None:
            (self._fork_server if child.state == ProcessState.WAITING else child).dump(
                lambda stack: self._emit(StackDumped(worker, stack))
            )

    def kill(self, worker: int, why: str) -> None:
        """Kill a worker, in whatever state it is.

        Answer: WorkerDied, unless it has been given already.
        """
        if worker in self._delayed:
            self._delayed.pop(worker).cancel()
            self._loop.soon(
                lambda: self._emit(
                    WorkerDied(
                        worker,
                        False,
                        f"never started: {why}",
                        WorkerObservation(worker, 0, "", False, 0),
                        "",
                        "",
                    )
                )
            )
        elif worker in self._children:
            self._children[worker].kill(why)

    def retire(self, worker: int) -> None:
        """Ask a worker to end. Answer: WorkerDied."""
        if self._closed:
            return
        if worker in self._delayed or self._children[worker].state in (
            ProcessState.WAITING,
            ProcessState.FORKING,
            ProcessState.BOOTING,
        ):
            self.kill(worker, "retired")
        else:
            self._children[worker].leave()

    # -- streams and segments

    def open(self, stream: str, done: Callable[[StreamInfo | OpenError], None]) -> None:
        """Find out what a stream is, in a worker of its own; done() is called from the loop."""

        def found(answer: StreamInfo | OpenError) -> None:
            if isinstance(answer, StreamInfo):
                if self._streams.opened(answer):
                    self._fork_server.setup = self._ahead_of_all()
                # they have known it as something else if it is opened anew
                for child in self._children.values():
                    child.used.discard(stream)
                self._modules.add(answer.code)
            self._probers.remove(prober)
            done(answer)

        name = f"probe of stream {stream!r}"

        def begin() -> None:
            number = self._next_probe
            self._next_probe += 1
            self._begin(number, prober, name, (self._streams.plan(stream),))

        def again(cause: str) -> None:
            self._log("warning", f"{name} has ended: {cause}; another one is started")
            begin()

        prober = Prober(self._loop, stream, self._sample_timeout_s, found, again)
        self._probers.append(prober)
        begin()

    def add_segment(
        self, segment: Segment, stream: str, fields: tuple[FieldSpec, ...], rows: int, fd: int
    ) -> None:
        """Jobs may name this segment from now on.

        fields: what its slots hold, in order; rows: of one slot. fd is the caller's, to be kept
        open until `drop_segment` is done.
        """
        self._segments.add(MapSegment(segment, fields, rows, self._streams.collated(stream)), fd)

    def drop_segment(self, segment: int, done: Callable[[], object]) -> None:
        """No job names it from now on; done() when the last worker has unmapped it, perhaps at
        once.
        """
        if self._closed:
            done()
            return
        self._segments.drop(segment, done)

    def edited(self) -> list[str]:
        """Files of the users' code, below the config's folder, that no longer say what was
        imported.
        """
        return self._modules.edited()

    # -- looking

    def look(self) -> WorkerPoll:
        """Every worker that has a job: what its line on the scoreboard says, whether it is stopped,
        now and then its memory.
        """
        self._oom.look(self._loop.now_s())
        return self._observer.look(self._children.values())

    def doing(self) -> list[str]:
        """What each of those that are not ready does, for how long: the fork server, workers, and
        probes until they have an answer.
        """
        now_s = self._loop.now_s()
        if self._fork_server.stopped:
            return [self._fork_server.stopped]
        lines = (
            [
                f"the fork server has been {self._fork_server.doing} for "
                f"{now_s - self._fork_server.doing_s:.0f} s"
            ]
            if self._fork_server.doing
            else []
        )
        for child in self._children.values():
            if child.state == ProcessState.BOOTING and child.doing:
                lines.append(
                    f"{child.name} has been {child.doing} for {now_s - child.doing_s:.0f} s"
                )
        return lines + [line for prober in self._probers for line in prober.doing(now_s)]

    def status(self) -> EngineStatus:
        known = {number: _status_of(child) for number, child in self._children.items()}
        return EngineStatus(
            fork_server=ForkServerStatus(
                self._fork_server.pid, self._fork_server.ready, bool(self._fork_server.stopped)
            ),
            probes=tuple(process for number, process in known.items() if number >= FIRST_PROBE),
            workers={number: process for number, process in known.items() if number < FIRST_PROBE},
        )

    def close(self) -> None:
        """Kill and reap everything, now.

        Only a process in disk sleep may outlive this, with nothing of ours but its mappings.
        Idempotent.
        """
        if self._closed:
            return
        self._closed = True
        for timer in (*self._delayed.values(), self._awaiting, self._watching):
            if timer is not None:
                timer.cancel()
        self._delayed.clear()
        self._fork_server.close(CLOSE_S)
        for child in self._children.values():
            child.terminate(CLOSE_S)
        self._children.clear()
        self._segments.close()
        self._board.close()

    # -- what the fork server says

    def fork_server_ready(self) -> None:
        for child in tuple(self._children.values()):
            if child.state == ProcessState.WAITING:
                child.fork(self._boot_s)

    def fork_server_does(self, doing: str) -> None:
        for child in self._children.values():
            if child.state == ProcessState.WAITING and child.worker < FIRST_PROBE:
                self._emit(
                    WorkerBooting(child.worker, f"waiting for the fork server, which is {doing},")
                )

    def forked(self, worker: int, pid: int, pidfd: int) -> None:
        self._children[worker].forked(pid, pidfd)

    def not_forked(self, worker: int, text: str) -> None:
        self._children[worker].not_forked(text)

    def ended(self, worker: int, status: int) -> None:
        child = self._children.get(worker)
        if child is not None:
            child.ended(
                status,
                out_of_memory=processes.was_killed(status) and self._oom.rose(self._loop.now_s()),
            )

    def fork_server_died(self) -> None:
        self._awaited = {
            child
            for child in self._children.values()
            if child.alive or child.state == ProcessState.DEAD
        }
        self._awaiting = self._loop.later(NEW_TEMPLATE_S, self._wait_no_longer)
        for child in tuple(self._children.values()):
            child.fork_server_died()
        self._new_fork_server()

    def fork_server_failed(self, text: str) -> None:
        for child in tuple(self._children.values()):
            if child.state == ProcessState.WAITING:
                child.start_failed(text)

    # -- what workers say

    def worker_ready(self, child: WorkerProcess) -> None:
        self._served = True
        self._emit(WorkerReady(child.worker))

    def worker_does(self, child: WorkerProcess, doing: str) -> None:
        self._emit(WorkerBooting(child.worker, doing))

    def worker_reported(self, child: WorkerProcess, message: object) -> None:
        first = next(iter(child.jobs.values()), None)
        if isinstance(message, Done) and first is not None and answers(message, first):
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
        elif not (
            isinstance(message, SegmentUnmapped) and self._segments.unmapped(message.segment, child)
        ):
            raise ProtocolError(f"{message!r:.100} while it does {first}")

    def _note(self, text: str) -> None:
        if text not in self._noted and len(self._noted) < MAX_NOTED:
            self._noted.add(text)
            self._log("warning", text)

    def worker_died(self, child: WorkerProcess, death: WorkerExit) -> None:
        seen = WorkerObservation(child.worker, death.word, death.key, False, 0)
        # what could not start is told by whoever wanted it
        if not death.boot and death.cause != LEFT:
            at = f", at sample {death.key!r}" if death.word and death.key else ""
            self._log("warning", f"{child.name} (pid {child.pid}) has ended: {death.cause}{at}")
        self._emit(WorkerDied(child.worker, death.own, death.cause, seen, death.stack, death.boot))

    # -- inside

    def _start(self, worker: int) -> None:
        del self._delayed[worker]
        self._begin(worker, self, f"worker {worker}", self._ahead_of_all().plans)

    def _ahead_of_all(self) -> Setup:
        """What a fork server is told: the user code of all streams that are served."""
        return replace(self._setup, plans=self._streams.plans_ahead())

    def _begin(
        self, number: int, listener: WorkerListener, name: str, plans: tuple[str, ...]
    ) -> None:
        """Start a process that imports the user code of these plans before it is ready."""
        probing = number >= FIRST_PROBE
        taken = {child.place for child in self._children.values()}
        places = (
            range(self._worker_places, self._board.lines) if probing else range(self._worker_places)
        )
        place = next((place for place in places if place not in taken), None)
        if place is None:
            # So many cannot be killed that their stand-ins have no place: wait for one of them.
            timer = self._loop.later(
                PLACE_S,
                lambda: (self._delayed.pop(number), self._begin(number, listener, name, plans)),
            )
            self._delayed[number] = timer
            return
        setup = replace(self._setup, plans=plans, place=place, lenient=self._served and not probing)
        child = WorkerProcess(
            self._loop,
            self._board,
            self._fork_server,
            setup,
            number,
            name,
            listener=listener,
            gone=self._terminated,
            log=self._log,
        )
        self._children[number] = child
        if self._fork_server.ready:
            child.fork(self._boot_s)
        elif not self._awaited:
            self._fork_server.ensure()
        if self._watching is None:
            self._watching = self._loop.later(0.0, self._watch_fork_server)

    def _watch_fork_server(self) -> None:
        """As long as somebody waits for the fork server: tell whoever waits if it is stopped, and
        when it is not any longer.
        """
        stopped = self._fork_server.stopped
        waiting = [
            child
            for child in self._children.values()
            if child.state in (ProcessState.WAITING, ProcessState.FORKING)
        ]
        for child in waiting:
            if child.worker < FIRST_PROBE and bool(stopped) != (child.worker in self._held_up):
                self._held_up ^= {child.worker}
                self._emit(WorkerBooting(child.worker, f"waiting: {stopped}," if stopped else ""))
        self._held_up &= {child.worker for child in waiting}
        self._watching = self._loop.later(TEMPLATE_S, self._watch_fork_server) if waiting else None

    def _terminated(self, child: WorkerProcess) -> None:
        """A worker is gone: before anybody is told, nothing here knows it any longer."""
        del self._children[child.worker]
        self._observer.forget(child.worker)
        self._segments.died(child)
        if child in self._awaited:
            self._awaited.discard(child)
            self._new_fork_server()

    def _new_fork_server(self) -> None:
        if self._awaiting is not None and not self._awaited:
            self._awaiting.cancel()
            self._awaiting = None
            if any(child.state == ProcessState.WAITING for child in self._children.values()):
                self._fork_server.ensure()

    def _wait_no_longer(self) -> None:
        names = ", ".join(sorted(child.name for child in self._awaited))
        self._log("warning", f"{names} cannot be killed; a new fork server is started anyway")
        self._awaited = set()
        self._new_fork_server()


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


def _status_of(child: WorkerProcess) -> ProcessStatus:
    anon_bytes = processes.anonymous_bytes(child.pid) if child.alive and child.pid else 0
    return ProcessStatus(child.name, child.pid, child.state.value, child.place, anon_bytes)
