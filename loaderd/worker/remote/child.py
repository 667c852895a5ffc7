"""A worker process on another host, as the actor there starts and ends it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from loaderd.core.jobs import unstamp
from loaderd.engine.channel import Channel, ChannelClosed, pair
from loaderd.engine.launch import BOOT, environment
from loaderd.engine.scoreboard import Scoreboard
from loaderd.system import processes, resource_limits

GONE_S = 2.0  # what a worker gets to end after it has closed its socket
STACK_S, STACK_LOOK_S = 0.25, 0.02  # for its stacks to come; from one look to the next
MAX_STACK = 60_000
# ends a group of processes when the other end of its standard input is closed without a word
GUARD = "exec 3<&0; (read -r _ <&3 || kill -s KILL -- -{group}) &"
MAX_OUTPUT = 64 << 10  # of what it prints, at once


@dataclass(frozen=True, slots=True)
class Death:
    """How a worker process has ended.

    Attributes:
        status: Its wait status.
        out_of_memory: The kernel has killed somebody on its host for memory meanwhile.
        word: Its last word on the status board.
        key: Of its last sample.
        stack: What it wrote of its stacks.
        output: What it had printed last.
    """

    status: int
    out_of_memory: bool
    word: int
    key: str
    stack: str
    output: bytes


class ChildWorker:
    """The process and what connects this one with it: a socket, a status board, a pipe, a file.

    It dies with the thread that made it, and what it has started dies with it, whoever is killed.

    Attributes:
        channel: For messages.
    """

    def __init__(self, settings: Mapping[str, str], paths: list[str]) -> None:
        """Start it.

        Args:
            settings: Of its environment, beside that of this process.
            paths: Where it looks for modules.
        """
        ours, its = pair()
        self.channel = Channel(ours, blocking=True, takes_fds=False)
        self._board = Scoreboard(1)
        self._output, output = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._output, False)
        self._stacks = os.memfd_create("loaderd-stack", os.MFD_CLOEXEC)
        self._death: Death | None = None
        self._oom_kills = resource_limits.oom_kills()
        with its:
            # copies: it closes them, and a number of ours must not be taken meanwhile
            fds = [os.dup(fd) for fd in (its.fileno(), self._board.fd, output, self._stacks)]
        os.close(output)
        sock, board, prints, dump = fds
        rest = json.dumps([os.getpid(), sock, board, 0, prints, dump])
        self._process = subprocess.Popen(
            [sys.executable, "-c", BOOT, json.dumps(paths), "worker", rest],
            stdin=subprocess.DEVNULL,
            pass_fds=fds,
            env={**environment(os.environ), **settings},
        )
        for fd in fds:
            os.close(fd)
        # Our child, and not reaped: this is its pidfd and no other's.
        self._pidfd = os.pidfd_open(self._process.pid)
        self._guard = self._guarded()

    def receive(self) -> object:
        """Wait for its next message.

        Raises:
            ChannelClosed: It has closed its socket, or is dead. A process that its C code has
                forked may still have the socket then.
        """
        poll = select.poll()
        for fd in (self.channel.fileno(), self._pidfd):
            poll.register(fd, select.POLLIN)
        if self._pidfd in dict(poll.poll()):
            self.channel.sock.setblocking(False)  # for what it had said before
        received = self.channel.receive()
        if received is None:
            raise ChannelClosed("it is dead")
        return received[0]

    def look(self) -> tuple[int, str]:
        """(word, key) of its line on the status board."""
        return self._board.read(0)

    def printed(self) -> bytes:
        """What it has printed since the last call."""
        try:
            return os.read(self._output, MAX_OUTPUT)
        except BlockingIOError:
            return b""

    def stack(self) -> str:
        """The stacks of its threads; "" if it cannot write them."""
        if not processes.catches(self._process.pid, processes.DUMP_SIGNAL):
            return ""
        os.ftruncate(self._stacks, 0)
        os.lseek(self._stacks, 0, os.SEEK_SET)
        processes.send_signal(self._pidfd, processes.DUMP_SIGNAL)
        end_s, text = time.monotonic() + STACK_S, ""
        while time.monotonic() < end_s:
            if processes.ended(self._pidfd, STACK_LOOK_S):
                break
            before, text = text, self._written()
            if text and text == before:
                break
        return text

    def death(self) -> Death:
        """Wait for its end, which it has begun by closing its socket. Kills it if it does not.

        Who asks again is told the same: its number may be another process's by then.
        """
        if self._death is None:
            self._death = self._end()
        return self._death

    def _end(self) -> Death:
        if not processes.ended(self._pidfd, GONE_S):
            processes.send_signal(self._pidfd, 9)
            processes.ended(self._pidfd, GONE_S)
        word, key = self.look()
        # Not reaped before: its number still is its group's.
        processes.kill_unreaped_group(self._process.pid)
        with contextlib.suppress(BrokenPipeError):  # somebody has killed it
            os.write(self._guard, b"\n")
        os.close(self._guard)
        code = self._process.wait(GONE_S)
        return Death(
            status=-code if code < 0 else code << 8,
            out_of_memory=resource_limits.oom_kills() > self._oom_kills,
            word=word,
            key=key if unstamp(word)[0] else "",
            stack=self._written(),
            output=self.printed(),
        )

    def _guarded(self) -> int:
        """Have a process end the worker's group should this process end first, as Ray ends actors.

        It is no child of this process, for Ray kills those.

        Returns:
            The descriptor on which it waits. A line says that there is nothing left to end.
        """
        told, guard = os.pipe2(os.O_CLOEXEC)
        subprocess.run(
            ["/bin/sh", "-c", GUARD.format(group=self._process.pid)],
            stdin=told,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            check=True,
        )
        os.close(told)
        return guard

    def _written(self) -> str:
        return os.pread(self._stacks, MAX_STACK, 0).decode("utf-8", "replace")
