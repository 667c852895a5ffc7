"""One worker process as the engine sees it, from the wish for it until its wait status is known."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from loaderd.core.jobs import Job, Stage, unstamp
from loaderd.engine.channel import ChannelClosed
from loaderd.engine.fork_server import ForkServer
from loaderd.engine.messages import (
    Doing,
    Leave,
    RemoteEnded,
    RemoteSeat,
    Setup,
    WorkerBooted,
    WorkerFault,
)
from loaderd.engine.process_state import ProcessState
from loaderd.engine.scoreboard import Scoreboard
from loaderd.engine.worker_exit import ExitReason, WorkerExit
from loaderd.engine.worker_listener import WorkerListener
from loaderd.engine.worker_pipes import WorkerPipes
from loaderd.system import address_space, processes
from loaderd.system.file_limits import spare
from loaderd.system.logs import WriteLog
from loaderd.system.loop import Loop, Timer
from loaderd_wire.errors import ProtocolError

RECENT_S = 2.0  # a dump that is younger when its worker is killed was made for that
DUMP_S = 0.3  # what a worker gets to write its stacks before it is killed
LEAVE_S = 5.0  # what a worker gets to end when it is told to
# that a start needs: socket pair, pipe, stack dump, copies of four on their way out, the pidfd,
# some to spare
FORK_FDS = 12
STATUS_S = 2.0  # what the fork server gets to tell how a dead worker ended


class WorkerProcess:
    """Owns socket, pidfd, output pipe and stack dump of a worker.

    Attributes:
        worker: Its number, also towards the fork server.
        name: As the log calls it.
        place: As in Setup, and its line on the scoreboard.
        state: What has become of it.
        pid: 0 until it has been forked.
        jobs: Sent and not answered, by number; it runs the first one.
        was_ready: It has said that it is ready.
        used: Streams that it has been told of.
        other_code: What it has imported that is not what others have, in words; "" for nothing.
        doing: What it does before it is ready; "" for nothing long.
        doing_s: Since when.
        remote: It stands for a worker on another host.
        reached: It has reached the other hosts.
        node: Name of the host where it is ready, if it stands for one elsewhere; "" else.
    """

    def __init__(
        self,
        loop: Loop,
        board: Scoreboard,
        fork_server: ForkServer,
        setup: Setup,
        worker: int,
        name: str,
        *,
        listener: WorkerListener,
        gone: Callable[[WorkerProcess], None],
        log: WriteLog,
        seat: RemoteSeat | None = None,
    ) -> None:
        """Wait for `fork`.

        Args:
            loop: Calls whatever is here.
            board: Where it says what it is doing.
            fork_server: What forks it.
            setup: What it is told first.
            worker: Its number.
            name: As the log calls it.
            listener: Who is told.
            gone: Called just before the listener is told of its death.
            log: Its log.
            seat: Of the worker on another host that it stands for.
        """
        self._loop = loop
        self._board = board
        self._fork_server = fork_server
        self._setup = setup
        self._listener = listener
        self._gone = gone
        self._log = log
        self.worker = worker
        self.place = setup.place
        self.name = name
        self.state = ProcessState.WAITING
        self.pid = 0
        self.jobs: dict[int, Job] = {}
        self.was_ready = False
        self.used: set[str] = set()
        self.other_code = ""  # what it has imported that is not what others have
        self.doing = ""
        self.doing_s = 0.0
        self._seat = seat
        self.remote, self.reached, self.node = seat is not None, False, ""
        self._session = 0
        self._pidfd = -1
        self._pipes: WorkerPipes | None = None
        self._timers: list[Timer] = []
        self._boot_s = 0.0
        self._boot_timer: Timer | None = None
        self._reason = ExitReason(remote=self.remote)
        board.clear(self.place)

    @property
    def alive(self) -> bool:
        """It may be writing: neither dead nor still to be born."""
        return self.state in (ProcessState.FORKING, ProcessState.BOOTING, ProcessState.READY)

    def look(self) -> tuple[int, str]:
        """(word, key) of its line on the scoreboard."""
        return self._board.read(self.place)

    # -- orders

    def fork(self, boot_s: float) -> None:
        """Ask the fork server, which is ready, for the process."""
        if not spare(FORK_FDS):
            self._loop.soon(lambda: self._end(False, "not started: out of file descriptors", ""))
            return
        pipes = self._pipes = WorkerPipes(self._loop, self.worker, self._log, self._label)
        self._loop.watch(pipes.channel.fileno(), self._readable)
        self.state = ProcessState.FORKING
        with pipes.its_ends() as (sock, output, stacks):
            fds = (sock, self._board.fd, output, stacks)
            cluster = self._seat.address if self._seat is not None else ""
            self._fork_server.fork(self.worker, self.place, fds, cluster=cluster)
        self.send(self._setup)
        self._boot_s = boot_s
        self._await_boot()
        if self._seat is not None:
            self.send(self._seat)
            self.used = {each.info.stream for each in self._seat.streams}

    def forked(self, pid: int, pidfd: int) -> None:
        """It is process `pid`; the pidfd is ours from now on."""
        self.pid, self._pidfd, self._session = pid, pidfd, self._fork_server.pid
        self.state = ProcessState.BOOTING
        self._await_boot()
        self._loop.watch(pidfd, self._dead)
        if self._reason.killed:
            processes.send_signal(pidfd, signal.SIGKILL)
        elif self.was_ready:
            self._ready()

    def send(self, message: object, fds: tuple[int, ...] = ()) -> None:
        """Give it an order; never waits.

        One that does not listen any longer is killed, or is dead.
        """
        if self._pipes is None:
            return
        channel = self._pipes.channel
        try:
            channel.send(message, fds)
        except ChannelClosed:
            self._unresponsive("it closed its socket")
            return
        if channel.unsent:
            self._loop.watch(channel.fileno(), self._readable, write=True)

    def dump(self, then: Callable[[str], object] | None = None) -> None:
        """Have it write its stacks; they come with its death.

        Args:
            then: Called once with them, "" where it cannot do that (yet).
        """
        dump = self._pipes.dump if self._pipes else None
        if (
            dump is None
            or self._pidfd < 0
            or self.state not in (ProcessState.BOOTING, ProcessState.READY)
            or not dump.ask(self.pid, self._pidfd)
        ):
            if then is not None:
                self._loop.soon(lambda: then(""))
        elif then is not None:

            def told(stack: str) -> None:
                # what it may write when it crashes, later, has nothing to do with this
                if not self._reason.killed:
                    dump.forget()
                then(stack)

            dump.await_text(told)

    def kill(self, why: str, *, own_fault: bool = False) -> None:
        """SIGKILL, as soon as a dump that was asked for has had its time. Idempotent."""
        if self.state in (ProcessState.DEAD, ProcessState.GONE) or self._reason.killed:
            return
        self._reason.killed, self._reason.own_fault = why, own_fault
        dump = self._pipes.dump if self._pipes else None
        asked_s = dump.asked_s if dump else None
        if dump and asked_s is not None and self._loop.now_s() - asked_s < RECENT_S:
            dump.remember()  # it goes with the death, whoever has seen it before
        if self.state == ProcessState.WAITING:
            self._loop.soon(lambda: self._end(False, "never started", ""))
        elif self._pidfd >= 0:
            wait_s = 0.0 if asked_s is None else asked_s + DUMP_S - self._loop.now_s()
            self._timers.append(self._loop.later(wait_s, self._kill_now))

    def leave(self) -> None:
        """Ask it to end when it has done what it was told before."""
        self._reason.told_to_leave = True
        self.send(Leave())
        self._timers.append(self._loop.later(LEAVE_S, lambda: self.kill("it did not exit")))

    # -- events

    def waits(self, what: str) -> None:
        """What it waits for, as in Doing; "" for nothing to speak of."""
        self._listener.worker_does(self, what)

    def not_forked(self, text: str) -> None:
        """The fork server could not make it."""
        self._end(False, text, "")

    def start_failed(self, text: str) -> None:
        """There will be no fork server to make it."""
        self._end(True, text, text)

    def fork_server_died(self) -> None:
        """The fork server is dead. The kernel kills what it had forked; to be sure, so do we."""
        if self.state == ProcessState.FORKING:
            # No pidfd has come, and no order but Setup has gone out: whatever process there was has
            # nothing to write to.
            self._end(False, "the fork server died while it started this worker", "")
        elif self.state in (ProcessState.BOOTING, ProcessState.READY):
            processes.send_signal(self._pidfd, signal.SIGKILL)
        elif self.state == ProcessState.DEAD:
            self.ended(processes.reap_adopted(self.pid))

    def ended(self, status: int | None, *, out_of_memory: bool = False) -> None:
        """Its wait status, None: it cannot be learnt."""
        if self.state != ProcessState.DEAD:
            return
        own, cause = self._reason.judge(status, out_of_memory=out_of_memory)
        boot = ""
        if not self.was_ready and (own or self._reason.last_words):
            printed = self._pipes.last_lines() if self._pipes else ""
            boot = self._reason.last_words or (
                f"the worker could not start: {cause}{address_space.hint()}"
                f"{f'; it printed: {printed}' if printed else ''}"
            )
        self._end(own, cause, boot)

    # -- inside

    def _label(self) -> str:
        word, key = self.look()
        _, _, stage = unstamp(word)
        return f"{self.name} [{key}]" if key and stage != Stage.IDLE else self.name

    def _await_boot(self) -> None:
        if self._boot_timer is not None:
            self._boot_timer.cancel()
        # One that stands for a worker elsewhere has its own limits: a node may have to be bought.
        if not self.remote or self.state == ProcessState.FORKING:
            self._boot_timer = self._loop.later(self._boot_s, self._boots_too_long)

    def _boots_too_long(self) -> None:
        if self.state == ProcessState.FORKING and self._fork_server.stopped:
            self._await_boot()  # there is no process yet that could be late
        elif not self.was_ready and self.alive:
            self.dump()
            doing = (
                f", {self.doing} for {self._loop.now_s() - self.doing_s:.0f} s"
                if self.doing
                else ""
            )
            self.kill(f"it was not ready after {self._boot_s:g} s{doing}", own_fault=True)

    def _kill_now(self) -> None:
        if self._pidfd >= 0:
            processes.send_signal(self._pidfd, signal.SIGKILL)

    def _unresponsive(self, why: str) -> None:
        """Its socket is of no use any longer, although we did not close it."""
        if self._pipes is not None:
            self._loop.unwatch(self._pipes.channel.fileno())
        # Its pidfd may be a moment behind: only who is alive after that has closed it himself.
        if (
            self._pidfd >= 0
            and not processes.ended(self._pidfd)
            and not self._reason.told_to_leave
            and not self._reason.last_words
        ):
            self._timers.append(self._loop.later(0.5, lambda: self.kill(why, own_fault=True)))

    def _readable(self, *, all_of_it: bool = False) -> None:
        if self._pipes is None:
            return
        channel = self._pipes.channel
        try:
            if channel.unsent:
                channel.flush()
                if not channel.unsent:
                    self._loop.watch(channel.fileno(), self._readable)
            # One message a turn: there seldom are more, and to see that there are none would cost a
            # system call.
            while self._pipes is not None and (received := channel.receive()) is not None:
                self._hear(received[0])
                if not all_of_it:
                    break
        except ChannelClosed:
            self._unresponsive("it closed its socket")
        except ProtocolError as error:
            self._loop.unwatch(channel.fileno())
            text = f"{self.name} sent an invalid message and is killed: {error}"
            self._log("error", "worker_invalid", text, worker=self.worker)
            self.kill(f"it sent an invalid message: {error}", own_fault=True)

    def _hear(self, message: object) -> None:
        if isinstance(message, WorkerFault):
            self._reason.last_words = message.text
        elif isinstance(message, RemoteEnded) and self.remote:
            self._reason.remote_end = message.status, message.out_of_memory
        elif isinstance(message, Doing) and not self.was_ready:
            self.doing, self.doing_s = message.text, self._loop.now_s()
            self.reached = self.reached or message.reached
            self._listener.worker_does(self, message.text)
        elif isinstance(message, WorkerBooted):
            if self.was_ready:
                raise ProtocolError("a second Ready")
            self.was_ready, self.node = True, message.node if self.remote else ""
            # Its first words can overtake the fork server's: then the pidfd has not come yet.
            if self.state == ProcessState.BOOTING:
                self._ready()
        elif not self.was_ready:
            raise ProtocolError(f"{message!r:.60} before Ready")
        else:
            self._listener.worker_reported(self, message)

    def _ready(self) -> None:
        self.state = ProcessState.READY
        if self._boot_timer is not None:
            self._boot_timer.cancel()
        self._listener.worker_ready(self)

    def _dead(self) -> None:
        """Its pidfd is readable: it will never write again."""
        self._loop.unwatch(self._pidfd)
        self._readable(all_of_it=True)  # what it had said before
        self.state = ProcessState.DEAD
        if self._fork_server.pid == self._session and self._fork_server.ready:
            # Not reaped before we say so: its number still is its group's.
            processes.kill_unreaped_group(self.pid)
            self._fork_server.reap(self.worker)
            self._timers.append(self._loop.later(STATUS_S, lambda: self.ended(None)))
        else:
            processes.kill_group(self.pid, self._session)
            self.ended(processes.reap_adopted(self.pid))

    def _end(self, own: bool, cause: str, boot: str) -> None:
        if self.state == ProcessState.GONE:
            return
        word, key = self.look()
        written = self._pipes.dump.text() if self._pipes else ""
        stack = written or (self._reason.last_words if not boot else "")
        if boot and written:
            boot = f"{boot}\n{written}"
        self.close()
        self._gone(self)
        self._listener.worker_died(self, WorkerExit(own, cause, word, key, stack, boot))

    def terminate(self, timeout_s: float) -> None:
        """Kill it and what it started, and wait for its end; nobody is told."""
        if self._pidfd >= 0:
            processes.send_signal(self._pidfd, signal.SIGKILL)
            processes.ended(self._pidfd, timeout_s)
            processes.kill_group(self.pid, self._session)
        self.close()

    def close(self) -> None:
        """Give back everything; the process itself is left to its fate. Idempotent."""
        self.state = ProcessState.GONE
        for timer in (*self._timers, self._boot_timer):
            if timer is not None:
                timer.cancel()
        if self._pipes is not None:
            self._loop.unwatch(self._pipes.channel.fileno())
            self._pipes.close()
            self._pipes = None
        if self._pidfd >= 0:
            self._loop.unwatch(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
