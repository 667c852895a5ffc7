"""The processes of the local engine by number, and those of them that wait for the fork server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from loaderd.engine.base import EngineStatus, ForkServerStatus, ProcessStatus
from loaderd.engine.fork_server import ForkServer, ForkServerListener
from loaderd.engine.messages import RemoteSeat, Setup
from loaderd.engine.oom import OomWatch
from loaderd.engine.process_state import ProcessState
from loaderd.engine.scoreboard import Scoreboard
from loaderd.engine.worker_listener import WorkerListener
from loaderd.engine.worker_process import WorkerProcess
from loaderd.system import processes
from loaderd.system.logs import WriteLog
from loaderd.system.loop import Loop, Timer

FIRST_PROBE = 1 << 40  # probing workers have numbers from here on, which no scheduler's worker has
SPARE_PLACES = 16  # beyond twice the workers: stand-ins for those that cannot be killed
PLACE_S = 1.0  # from one look for a free place to the next
WATCH_S = 1.0  # from one look at the fork server to the next, while a process waits for it
NEW_FORK_SERVER_S = 5.0  # what the processes of a dead fork server get to die


class ProcessTable:
    """Workers and probing workers, from the wish for one until its end, and their fork server.

    A number is in use from the wish on, a place on the status board while there is the process. The
    next fork server starts when no process is left that the last one forked.

    Attributes:
        children: The processes by number; what waits for its time or a place is not among them.
        fork_server: What they are forked from.
    """

    def __init__(
        self,
        loop: Loop,
        make_fork_server: Callable[[ForkServerListener], ForkServer],
        *,
        num_workers: int,
        num_streams: int,
        gone: Callable[[WorkerProcess], object],
        oom: OomWatch,
        log: WriteLog,
        boot_s: float,
    ) -> None:
        """Start nothing yet.

        Args:
            loop: Calls whatever is here.
            make_fork_server: Makes it for this listener.
            num_workers: Workers at a time.
            num_streams: Streams that may be opened at a time.
            gone: Called with a process that has ended, before its listener is told.
            oom: Says whether a process was killed for memory.
            log: Its log.
            boot_s: What a process gets to become ready.
        """
        self._loop = loop
        self._gone = gone
        self._oom = oom
        self._log = log
        self._boot_s = boot_s
        self._worker_places = 2 * num_workers + SPARE_PLACES
        self._board = Scoreboard(self._worker_places + num_streams + SPARE_PLACES)
        self.children: dict[int, WorkerProcess] = {}
        self._delayed: dict[int, Timer] = {}
        # of a dead fork server: a new one is started when they are dead
        self._awaited: set[WorkerProcess] = set()
        self._awaiting: Timer | None = None
        self._watching: Timer | None = None  # the fork server
        self._held_up: set[WorkerProcess] = set()  # that wait, and know that it is stopped
        self.fork_server = make_fork_server(self)

    # -- wishes

    def later(self, number: int, delay_s: float, begin: Callable[[], object]) -> None:
        """Call begin() after delay_s; until then the number is in use.

        Raises ValueError for a number that is in use.
        """
        if self.is_delayed(number) or number in self.children:
            raise ValueError(f"worker {number} is there already")

        def now() -> None:
            del self._delayed[number]
            begin()

        self._delayed[number] = self._loop.later(delay_s, now)

    def is_delayed(self, number: int) -> bool:
        """Whether a number waits for its time, or for a place."""
        return number in self._delayed

    def cancel(self, number: int) -> None:
        """A number that is delayed is no longer wanted."""
        self._delayed.pop(number).cancel()

    def begin(
        self,
        number: int,
        name: str,
        listener: WorkerListener,
        setup: Setup,
        seat: RemoteSeat | None = None,
    ) -> None:
        """Have a process forked as soon as there are a place and a fork server for it.

        Args:
            number: Its number.
            name: As the log calls it.
            listener: Who is told of it.
            setup: What it is told first.
            seat: Of the worker on another host that it stands for.
        """
        place = self._free_place(probing=number >= FIRST_PROBE)
        if place is None:
            # So many cannot be killed that their stand-ins have no place: wait for one of them.
            self.later(number, PLACE_S, lambda: self.begin(number, name, listener, setup, seat))
            return
        child = WorkerProcess(
            self._loop,
            self._board,
            self.fork_server,
            replace(setup, place=place),
            number,
            name,
            listener=listener,
            gone=self._terminated,
            log=self._log,
            seat=seat,
        )
        self.children[number] = child
        if self.fork_server.ready:
            child.fork(self._boot_s)
        elif not self._awaited:
            self.fork_server.ensure()
        if self._watching is None:
            self._watching = self._loop.later(0.0, self._watch_fork_server)

    def _free_place(self, *, probing: bool) -> int | None:
        taken = {child.place for child in self.children.values()}
        low, high = (
            (self._worker_places, self._board.lines) if probing else (0, self._worker_places)
        )
        return next((place for place in range(low, high) if place not in taken), None)

    # -- looking

    def doing(self) -> list[str]:
        """What the fork server and each booting process do, and for how long, in lines."""
        now_s = self._loop.now_s()
        busy: list[tuple[str, str, float]] = []
        if self.fork_server.doing:
            busy.append(("the fork server", self.fork_server.doing, self.fork_server.doing_s))
        for child in self.children.values():
            if child.state == ProcessState.BOOTING and child.doing:
                busy.append((child.name, child.doing, child.doing_s))
        return [f"{name} has been {doing} for {now_s - at_s:.0f} s" for name, doing, at_s in busy]

    def status(self) -> EngineStatus:
        """The processes that there are."""
        known = {number: _status_of(child) for number, child in self.children.items()}
        fork_server = self.fork_server
        return EngineStatus(
            fork_server=ForkServerStatus(
                fork_server.pid, fork_server.ready, bool(fork_server.stopped)
            ),
            probes=tuple(process for number, process in known.items() if number >= FIRST_PROBE),
            workers={number: process for number, process in known.items() if number < FIRST_PROBE},
        )

    def close(self, timeout_s: float) -> None:
        """Kill and reap every process, now; the fork server and each child get timeout_s to die."""
        for timer in (*self._delayed.values(), self._awaiting, self._watching):
            if timer is not None:
                timer.cancel()
        self._delayed.clear()
        self.fork_server.close(timeout_s)
        for child in self.children.values():
            child.terminate(timeout_s)
        self.children.clear()
        self._board.close()

    # -- what the fork server says

    def fork_server_ready(self) -> None:
        """Those that have waited for it are forked."""
        for child in self._in_state(ProcessState.WAITING):
            child.fork(self._boot_s)

    def fork_server_does(self, doing: str) -> None:
        """Those that wait for it learn what it does."""
        for child in self._in_state(ProcessState.WAITING):
            child.waits(f"waiting for the fork server, which is {doing},")

    def forked(self, worker: int, pid: int, pidfd: int) -> None:
        """A process has been forked."""
        self.children[worker].forked(pid, pidfd)

    def not_forked(self, worker: int, text: str) -> None:
        """A process could not be forked."""
        self.children[worker].not_forked(text)

    def ended(self, worker: int, status: int) -> None:
        """The wait status of a process, which may be forgotten already."""
        child = self.children.get(worker)
        if child is not None:
            child.ended(
                status,
                out_of_memory=processes.was_killed(status) and self._oom.rose(self._loop.now_s()),
            )

    def fork_server_died(self) -> None:
        """Its processes die with it; then there is a new one."""
        self._awaited = {
            child
            for child in self.children.values()
            if child.alive or child.state == ProcessState.DEAD
        }
        self._awaiting = self._loop.later(NEW_FORK_SERVER_S, self._wait_no_longer)
        for child in tuple(self.children.values()):
            child.fork_server_died()
        self._new_fork_server()

    def fork_server_failed(self, text: str) -> None:
        """Those that wait for it wait in vain."""
        for child in self._in_state(ProcessState.WAITING):
            child.start_failed(text)

    # -- inside

    def _in_state(self, *states: ProcessState) -> list[WorkerProcess]:
        return [child for child in self.children.values() if child.state in states]

    def _watch_fork_server(self) -> None:
        """Tell those that wait for the fork server if it is stopped, and when it no longer is."""
        stopped = self.fork_server.stopped
        waiting = self._in_state(ProcessState.WAITING, ProcessState.FORKING)
        for child in waiting:
            if bool(stopped) != (child in self._held_up):
                self._held_up ^= {child}
                child.waits(f"waiting: {stopped}," if stopped else "")
        self._held_up &= set(waiting)
        self._watching = self._loop.later(WATCH_S, self._watch_fork_server) if waiting else None

    def _terminated(self, child: WorkerProcess) -> None:
        """A process is gone: before anybody is told, nothing here knows it any longer."""
        del self.children[child.worker]
        self._gone(child)
        if child in self._awaited:
            self._awaited.discard(child)
            self._new_fork_server()

    def _new_fork_server(self) -> None:
        if self._awaiting is not None and not self._awaited:
            self._awaiting.cancel()
            self._awaiting = None
            if self._in_state(ProcessState.WAITING):
                self.fork_server.ensure()

    def _wait_no_longer(self) -> None:
        names = ", ".join(sorted(child.name for child in self._awaited))
        text = f"{names} cannot be killed; a new fork server is started anyway"
        self._log("warning", "worker_unkillable", text)
        self._awaited = set()
        self._new_fork_server()


def _status_of(child: WorkerProcess) -> ProcessStatus:
    anon_bytes = processes.anonymous_bytes(child.pid) if child.alive and child.pid else 0
    return ProcessStatus(
        child.name, child.pid, child.state.value, child.place, anon_bytes, child.node
    )
