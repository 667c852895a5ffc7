"""The engine's side of the fork server.

It starts the process, tells it to fork and reap, and starts another when it dies.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from loaderd.config.stream import StreamConfig
from loaderd.engine.channel import Channel, ChannelClosed
from loaderd.engine.fork_server_starts import ForkServerStarts
from loaderd.engine.launch import Launched, launch
from loaderd.engine.messages import (
    ChildEnded,
    Doing,
    Fork,
    Forked,
    ForkServerReady,
    NotForked,
    Quit,
    Reap,
    Setup,
    WorkerFault,
)
from loaderd.engine.output_capture import OutputCapture
from loaderd.engine.stack_dump import StackDump
from loaderd.system import processes
from loaderd.system.file_limits import spare
from loaderd.system.logs import WriteLog
from loaderd.system.loop import Loop, Timer
from loaderd_wire.errors import ProtocolError

START_FDS = 17  # that a start needs
DUMP_S = 0.5  # what one that is not ready gets to write its stacks before it is killed
MAX_STACK = 16_000
NO_FDS_S = 1.0  # to the next try where there are none


class ForkServerListener(Protocol):
    """Who is told. Nothing here is called from inside a method of ForkServer."""

    def fork_server_ready(self) -> None:
        """It has booted: from now on workers can be started."""
        ...

    def forked(self, worker: int, pid: int, pidfd: int) -> None:
        """The pidfd is the listener's from now on."""
        ...

    def fork_server_does(self, doing: str) -> None:
        """What it is about to do before it is ready."""
        ...

    def not_forked(self, worker: int, text: str) -> None:
        """There is no process, and the text says why; `ended` is not called for it."""
        ...

    def ended(self, worker: int, status: int) -> None:
        """How a worker that was forked ended, as `os.waitpid` tells it."""
        ...

    def fork_server_died(self) -> None:
        """All that it still had to say has been told. Its workers get SIGKILL from the kernel."""
        ...

    def fork_server_failed(self, text: str) -> None:
        """It cannot be started; no further try is made until `ensure`."""
        ...


class ForkServer:
    """At most one fork server process.

    Attributes:
        setup: What the next one is told.
        ready: It can fork.
        doing: What it does until it is ready; "" for nothing long.
        doing_s: Since when.
    """

    def __init__(
        self,
        loop: Loop,
        plans: Sequence[StreamConfig],
        setup: Setup,
        start_method: str,
        listener: ForkServerListener,
        log: WriteLog,
        *,
        boot_s: float,
        ahead: Launched | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            loop: Calls whatever is here.
            plans: All streams.
            setup: What the first one is told.
            start_method: "forkserver" or "spawn".
            listener: Who is told.
            log: Its log.
            boot_s: What one gets to become ready.
            ahead: The first one, if it has been started already.
        """
        self._loop = loop
        self._plans = plans
        self.setup = setup
        self._spawn = start_method == "spawn"
        self._listener = listener
        self._log = log
        self._boot_s = boot_s
        self._ahead = ahead
        self._attempts = ForkServerStarts(spawn=self._spawn)
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._output: OutputCapture | None = None
        self._pidfd = -1
        self._timer: Timer | None = None
        self.ready = False
        self.doing = ""
        self.doing_s = 0.0
        self._dump: StackDump | None = None  # until it is ready

    @property
    def pid(self) -> int:
        """0 while there is none. Also the session of all workers that it forked."""
        return self._process.pid if self._process else 0

    @property
    def stopped(self) -> str:
        """What is to be said of a fork server that is stopped by a signal; "" if it is not.

        Until it goes on, no worker is started.
        """
        return (
            f"the fork server (pid {self.pid}) is stopped by a signal (T); continue it with SIGCONT"
            if self.pid and processes.stopped(self.pid)
            else ""
        )

    def ensure(self) -> None:
        """Start one if there is none, now or after a pause where the last ones came to nothing."""
        if self._process is None and self._timer is None:
            self._timer = self._loop.later(self._attempts.pause_s, self._start)

    def fork(
        self, worker: int, line: int, fds: tuple[int, int, int, int], *, cluster: str = ""
    ) -> None:
        """Ask for a worker; only while `ready`.

        Args:
            worker: Its number.
            line: Its line on the scoreboard.
            fds: Its socket, the scoreboard, its output, its stack dump. They stay the caller's.
            cluster: Address of the Ray cluster, if it stands for one on another host; "" else.
        """
        self._send(Fork(worker, line, cluster), fds)

    def dump(self, then: Callable[[str], object]) -> Timer:
        """Have one that is not ready yet write the stacks of its threads.

        Args:
            then: Called later with the stacks, "" where there are none.

        Returns:
            The timer of that call.
        """
        dump = self._dump
        if dump is not None and self._pidfd >= 0:
            # Another worker that waits may have asked: these signals queue, and each would write.
            asked_s = dump.asked_s
            if asked_s is None or self._loop.now_s() - asked_s >= DUMP_S:
                dump.ask(self.pid, self._pidfd)
        return self._loop.later(DUMP_S, lambda: then(dump.text().rstrip() if dump else ""))

    def reap(self, worker: int) -> None:
        """The worker is dead, its pidfd is held, its group has been killed."""
        self._send(Reap(worker))

    def close(self, timeout_s: float) -> None:
        """Have it kill and reap all that it has below it; then it is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._process is None:
            return
        self._send(Quit())
        # One that is still importing does not listen, and has no children.
        if not self.ready or not processes.ended(self._pidfd, timeout_s):
            processes.send_signal(self._pidfd, signal.SIGKILL)
        self._forget()

    def _start(self) -> None:
        self._timer = None
        if not spare(START_FDS):
            self._log(
                "warning",
                "fork_server_not_started",
                "no fork server can be started: out of file descriptors; the next try is in "
                f"{NO_FDS_S:g} s",
            )
            self._timer = self._loop.later(NO_FDS_S, self._start)
            return
        preload = self._attempts.preload
        ahead, self._ahead = self._ahead, None
        started = ahead.take() if ahead else self._launch(preload)
        self._process = started.process
        self._dump = StackDump(self._loop, started.dump, MAX_STACK)
        # Our child, and not reaped: this is its pidfd and no other's.
        self._pidfd = os.pidfd_open(self._process.pid)
        self._attempts.begin()
        self._output = OutputCapture(self._loop, started.output, self._log, lambda: "fork server")
        self._channel = Channel(started.socket, blocking=False)
        self._loop.watch(self._pidfd, self._died)
        self._loop.watch(self._channel.fileno(), self._readable)
        self._timer = self._loop.later(self._boot_s, self._too_slow)
        self._send(replace(self.setup, preload=preload))

    def _launch(self, preload: str) -> Launched:
        setup = self.setup
        return launch(self._plans, setup.init, setup.folder, preload=preload, spawn=self._spawn)

    def _send(self, message: object, fds: tuple[int, ...] = ()) -> None:
        if self._channel is None:
            return
        try:
            self._channel.send(message, fds)
        except ChannelClosed:
            return  # its pidfd will tell
        if self._channel.unsent:
            self._loop.watch(self._channel.fileno(), self._readable, write=True)

    def _too_slow(self) -> None:
        self._timer = None
        doing = (
            f", {self.doing} for {self._loop.now_s() - self.doing_s:.0f} s" if self.doing else ""
        )
        self._attempts.too_slow(f"it was not ready after {self._boot_s:g} s{doing}")

        def end(stack: str) -> None:
            self._timer = None
            self._attempts.fault += f"\n{stack}" if stack else ""
            processes.send_signal(self._pidfd, signal.SIGKILL)

        self._timer = self.dump(end)

    def _readable(self) -> None:
        if self._channel is None:
            return
        try:
            if self._channel.unsent:
                self._channel.flush()
                if not self._channel.unsent:
                    self._loop.watch(self._channel.fileno(), self._readable)
            while (received := self._channel.receive()) is not None:
                self._hear(*received)
                if self._channel is None:
                    return
        except ChannelClosed:
            self._loop.unwatch(self._channel.fileno())  # its pidfd will tell
        except ProtocolError as error:
            self._attempts.fault = f"it sent an invalid message: {error}"
            self._loop.unwatch(self._channel.fileno())
            processes.send_signal(self._pidfd, signal.SIGKILL)

    def _hear(self, message: object, fds: list[int]) -> None:
        if isinstance(message, Forked) and len(fds) == 1:
            self._listener.forked(message.worker, message.pid, fds[0])
            return
        for fd in fds:
            os.close(fd)
        if isinstance(message, ForkServerReady):
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._attempts.ready()
            self.ready, self.doing = True, ""
            self._close_dump()
            self._listener.fork_server_ready()
        elif isinstance(message, NotForked):
            self._listener.not_forked(message.worker, message.text)
        elif isinstance(message, ChildEnded):
            self._listener.ended(message.worker, message.status)
        elif isinstance(message, Doing) and not self.ready:
            self.doing, self.doing_s = message.text, self._loop.now_s()
            self._listener.fork_server_does(message.text)
        elif isinstance(message, WorkerFault):
            self._attempts.fault = message.text
        else:
            raise ProtocolError(f"{message!r:.100} with {len(fds)} descriptors")

    def _died(self) -> None:
        """Its pidfd is readable. What it had said before comes first."""
        self._readable()
        was_ready, pid = self.ready, self.pid
        status = self._forget()
        cause = processes.ending(status).cause if status is not None else "unknown"
        if was_ready:
            text = f"fork server {pid} died ({cause}); its workers die with it"
            self._log("warning", "fork_server_ended", text, pid=pid, cause=cause)
        else:
            level, text = self._attempts.failed(pid, cause)
            self._log(level, "fork_server_not_started", text, pid=pid, cause=cause)
            if self._attempts.hopeless:
                self._listener.fork_server_failed(
                    f"the fork server cannot start ({cause}): "
                    f"{self._attempts.fault or self._attempts.last_words}"
                )
        self._listener.fork_server_died()

    def _close_dump(self) -> None:
        if self._dump is not None:
            self._dump.close()
            self._dump = None

    def _forget(self) -> int | None:
        """Reap it and give back all that belonged to it.

        Returns:
            Its wait status; None if there is none.
        """
        if self._process is None:
            return None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._loop.unwatch(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        self._close_dump()
        if self._channel is not None:
            self._loop.unwatch(self._channel.fileno())
            self._channel.close()
            self._channel = None
        code = self._process.wait()
        if self._output is not None:
            self._output.close()
            self._attempts.last_words = " | ".join(self._output.tail)
            self._output = None
        self._process = None
        self.ready, self.doing = False, ""
        return -code if code < 0 else code << 8
