"""The local engine: workers on this host, forked from the fork server."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from loaderd.config.schema import WorkersConfig
from loaderd.config.stream import StreamConfig
from loaderd.core.events import Event, StackDumped, WorkerDied, WorkerObservation, WorkerPoll
from loaderd.core.jobs import Job, JobKind
from loaderd.engine.base import EngineStatus
from loaderd.engine.fork_server import ForkServer
from loaderd.engine.launch import Launched
from loaderd.engine.messages import MapSegment, OpenError, RemoteSeat, Setup, StreamInfo
from loaderd.engine.oom import OomWatch
from loaderd.engine.probing import Prober
from loaderd.engine.process_state import ProcessState
from loaderd.engine.process_table import FIRST_PROBE, ProcessTable
from loaderd.engine.segment_refs import SegmentTable
from loaderd.engine.stream_table import StreamTable
from loaderd.engine.worker_events import WorkerEvents
from loaderd.engine.worker_observer import WorkerObserver
from loaderd.engine.worker_process import WorkerProcess
from loaderd.system.logs import WriteLog
from loaderd.system.loop import Loop
from loaderd.system.modules import Modules
from loaderd_wire.messages import Segment
from loaderd_wire.slots import FieldSpec

__all__ = ["LocalEngine", "OpenError", "StreamInfo"]

BOOT_S = 120.0
CLOSE_S = 5.0


class LocalEngine:
    """The engine of one host, as `Engine` says, made as `MakeEngine` says."""

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
        log: WriteLog,
        oom_kills: Callable[[], int] = lambda: 0,
        pictures: bool = False,
        boot_s: float = BOOT_S,
        ahead: Launched | None = None,
    ) -> None:
        """Start no process yet.

        Args:
            loop: As `MakeEngine` says, and so are those that follow.
            streams: See there.
            config: See there.
            late: See there.
            num_workers: See there.
            folder: See there.
            emit: See there.
            log: See there.
            oom_kills: See there.
            pictures: See there.
            boot_s: What a worker or fork server gets to become ready.
            ahead: A fork server for these streams that has been started already.
        """
        self._loop = loop
        self._emit = emit
        self._log = log
        self._sample_timeout_s = config.sample_timeout_s
        self._ray = config.ray
        self._user_code = bool(config.init) or any(
            plan.has_user_code() for plan in (*streams, *late)
        )
        remote = config.ray.num_workers if config.ray else 0
        num_workers += remote
        self._streams = StreamTable(streams, late, stages=bool(config.ray and config.ray.stage))
        self._setup = Setup(
            (),
            folder,
            config.init or "",
            num_workers,
            0,
            "none",
            reset_affinity=config.reset_affinity,
            pictures=pictures,
        )
        self._segments = SegmentTable()
        self._modules = Modules(folder)
        self._events = WorkerEvents(self._streams, self._segments, self._modules, emit, log)
        self._oom = OomWatch(oom_kills)
        self._processes = ProcessTable(
            loop,
            lambda listener: ForkServer(
                loop,
                (*streams, *late),
                self._ahead_of_all(),
                config.start_method,
                listener,
                log,
                boot_s=boot_s,
                ahead=ahead,
            ),
            num_workers=num_workers,
            num_streams=len(self._streams),
            gone=self._forget,
            oom=self._oom,
            log=log,
            boot_s=boot_s,
        )
        self._probers: list[Prober] = []  # that have no answer yet
        self._next_probe = FIRST_PROBE
        self._observer = WorkerObserver(loop)
        self._closed = False

    # -- the scheduler's actions

    def start(self, worker: int, delay_s: float, remote: bool = False) -> None:
        """Start worker `worker` not before delay_s from now. Answer: WorkerReady or WorkerDied."""
        if self._closed:
            return
        self._processes.later(worker, delay_s, lambda: self._start(worker, remote))

    def send(self, worker: int, job: Job) -> None:
        """Hand a job to a worker that is ready; its stream is opened, its segment added.

        Answer: WorkerDone or WorkerDied.
        """
        if self._closed:
            return
        child = self._processes.children[worker]
        if job.stream not in child.used:
            child.used.add(job.stream)
            streams = self._streams
            child.send((streams.remote if child.remote else streams.order)(job.stream))
        if job.kind != JobKind.TRIAL:
            self._segments.give(job.segment, child)
        child.jobs[job.job] = job
        self._oom.look(self._loop.now_s())
        child.send(job)

    def dump(self, worker: int) -> None:
        """Have a worker write its stacks, or the fork server that it waits for.

        Answer: StackDumped, unless it is dead already or dies before.
        """
        child = self._processes.children.get(worker)
        if child is not None:
            waits = child.state == ProcessState.WAITING
            (self._processes.fork_server if waits else child).dump(
                lambda stack: self._emit(StackDumped(worker, stack))
            )

    def kill(self, worker: int, why: str) -> None:
        """Kill a worker, in whatever state it is.

        Answer: WorkerDied, unless it has been given already.
        """
        if self._processes.is_delayed(worker):
            self._processes.cancel(worker)
            never = WorkerDied(
                worker,
                False,
                f"never started: {why}",
                WorkerObservation(worker, 0, "", False, 0),
                "",
                "",
            )
            self._loop.soon(lambda: self._emit(never))
        elif worker in self._processes.children:
            self._processes.children[worker].kill(why)

    def retire(self, worker: int) -> None:
        """Ask a worker to end. Answer: WorkerDied."""
        if self._closed:
            return
        if self._processes.is_delayed(worker) or self._processes.children[worker].state in (
            ProcessState.WAITING,
            ProcessState.FORKING,
            ProcessState.BOOTING,
        ):
            self.kill(worker, "retired")
        else:
            self._processes.children[worker].leave()

    # -- streams and segments

    def open(self, stream: str, done: Callable[[StreamInfo | OpenError], None]) -> None:
        """Find out what a stream is, in a worker of its own; done() is called from the loop."""

        def found(answer: StreamInfo | OpenError) -> None:
            if isinstance(answer, StreamInfo):
                if self._streams.opened(answer):
                    self._processes.fork_server.setup = self._ahead_of_all()
                # they have known it as something else if it is opened anew
                for child in self._processes.children.values():
                    child.used.discard(stream)
                self._modules.add(answer.code)
            self._probers.remove(prober)
            done(answer)

        name = f"probe of stream {stream!r}"

        def begin() -> None:
            number = self._next_probe
            self._next_probe += 1
            setup = replace(self._setup, plans=(self._streams.plan(stream),))
            self._processes.begin(number, name, prober, setup)

        def again(cause: str) -> None:
            text = f"{name} has ended: {cause}; another one is started"
            self._log("warning", "probe_ended", text, stream=stream, cause=cause)
            begin()

        prober = Prober(
            self._loop,
            stream,
            self._sample_timeout_s,
            found,
            again,
            compare=self._ray is not None,
        )
        self._probers.append(prober)
        begin()

    def add_segment(
        self, segment: Segment, stream: str, fields: tuple[FieldSpec, ...], rows: int, fd: int
    ) -> None:
        """Jobs may name this segment from now on.

        Args:
            segment: Where its slots lie.
            stream: Whose batches it is for.
            fields: What its slots hold, in order.
            rows: Of one slot.
            fd: The caller's, to be kept open until `drop_segment` is done.
        """
        self._segments.add(MapSegment(segment, fields, rows, self._streams.collated(stream)), fd)

    def drop_segment(self, segment: int, done: Callable[[], object]) -> None:
        """No job names this segment from now on.

        Args:
            segment: Its number.
            done: Called when the last worker has unmapped it, perhaps at once.
        """
        if self._closed:
            done()
            return
        self._segments.drop(segment, done)

    def edited(self) -> list[str]:
        """Files of the user's code, below the config's folder, that changed after their import."""
        return self._modules.edited()

    # -- looking

    def look(self) -> WorkerPoll:
        """Look at every worker that has a job.

        Returns:
            What its line on the scoreboard says, whether it is stopped, now and then its memory.
        """
        self._oom.look(self._loop.now_s())
        return self._observer.look(self._processes.children.values())

    def doing(self) -> list[str]:
        """What each process that is not ready does, and for how long.

        These are the fork server, workers, and probes until they have an answer.
        """
        if stopped := self._processes.fork_server.stopped:
            return [stopped]
        now_s = self._loop.now_s()
        opening = [line for prober in self._probers for line in prober.doing(now_s)]
        return self._processes.doing() + opening

    def status(self) -> EngineStatus:
        """The processes that there are now."""
        return self._processes.status()

    def close(self) -> None:
        """Kill and reap everything, now.

        Only a process in disk sleep may outlive this, with nothing of ours but its mappings.
        Idempotent.
        """
        if self._closed:
            return
        self._closed = True
        self._processes.close(CLOSE_S)
        self._segments.close()

    # -- inside

    def _start(self, worker: int, remote: bool) -> None:
        setup = replace(self._ahead_of_all(), lenient=self._events.served)
        seat = self._seat() if remote else None
        name = f"{'remote ' if remote else ''}worker {worker}"
        self._processes.begin(worker, name, self._events, setup, seat)

    def _seat(self) -> RemoteSeat:
        """What a worker on another host is to do, as far as that is known now."""
        assert self._ray is not None
        return RemoteSeat(
            self._ray.address,
            json.dumps(self._ray.resources),
            self._setup.folder if self._user_code else "",
            self._sample_timeout_s,
            self._streams.all_remote(),
        )

    def _ahead_of_all(self) -> Setup:
        """What a fork server is told: the user code of all streams that are served."""
        return replace(self._setup, plans=self._streams.plans_ahead())

    def _forget(self, child: WorkerProcess) -> None:
        """A worker is gone."""
        self._observer.forget(child.worker)
        self._segments.died(child)
