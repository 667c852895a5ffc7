"""Calls of the actor on another host: each has a limit, and meanwhile is seen what it does."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from loaderd.engine.scoreboard import StatusLine
from loaderd.system.processes import DUMP_SIGNAL
from loaderd.system.ray_cluster import Actor, RayError, told_plainly
from loaderd.worker.remote.node_worker import Look

LOOK_S = 0.1  # from one look at what the worker does to the next
RARELY_S = 10.0  # the same while it has nothing to do
SILENT_S = 10.0  # after which an actor that answers no look is given up


class Lost(Exception):
    """The worker on the other host is of no use any longer; str() says why, in one line."""


class Calls:
    """Calls of one actor, and looks at its worker for as long as somebody waits for it.

    Attributes:
        word: The worker's word on the status board, as of the last look.
        moved_s: When that was first seen, by `time.monotonic`.
        tell: Called with what the worker does before it is ready.
    """

    def __init__(
        self,
        actor: Actor,
        line: StatusLine,
        output: int,
        dump: int,
        tell: Callable[[str], object],
    ) -> None:
        """Begin without calls.

        Args:
            actor: The actor.
            line: Where the worker's word is written down.
            output: Where what it prints is written to.
            dump: Where its stacks are written to, when DUMP_SIGNAL asks for them.
            tell: See there.
        """
        self._actor = actor
        self._line = line
        self._output = output
        self._dump = dump
        self.tell = tell
        self.word, self.moved_s = 0, time.monotonic()
        self._doing = ""
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._look: tuple[float, Future[Any]] | None = None
        self._looked_s = 0.0
        self._stacks: Future[Any] | None = None
        self._stacks_wanted = False
        signal.signal(DUMP_SIGNAL, self._on_signal)

    def begin(self, method: str, *args: Any) -> Future[Any]:
        """Call a method; `wait` returns when it is done."""
        with told_plainly():
            return self.woken(self._actor.call(method, *args))

    def result(self, future: Future[Any], quiet_s: float, what: str) -> Any:
        """Wait for a call.

        Args:
            future: The call.
            quiet_s: For how long the worker may do the same meanwhile; 0: for ever, without a look.
            what: For the error.

        Raises:
            Lost: It failed, or took too long.
        """
        self.moved_s = time.monotonic()
        while not future.done():
            self.wait(-1, looks=quiet_s > 0)
            if quiet_s and time.monotonic() - self.moved_s > quiet_s:
                raise Lost(f"{what} takes longer than {quiet_s:g} s")
        return self.value(future)

    def value(self, future: Future[Any]) -> Any:
        """What a call has returned. Raises Lost where it failed."""
        try:
            with told_plainly():
                return future.result(0)
        except RayError as error:
            raise Lost(str(error)) from None

    def wait(self, fd: int, *, looks: bool = True, rarely: bool = False) -> bool:
        """Wait for a descriptor, a call, or the time of the next look.

        Args:
            fd: The descriptor; -1 for none.
            looks: Look at the worker meanwhile. Else there may be nothing to wait for but those.
            rarely: Where it does not look: ask once in RARELY_S whether the worker is there.

        Returns:
            Whether the descriptor is readable.

        Raises:
            Lost: The actor does not answer any longer.
        """
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if fd >= 0:
            poll.register(fd, select.POLLIN)
        busy = looks or self._look is not None or self._stacks is not None
        found = dict(poll.poll((LOOK_S if busy else RARELY_S) * 1e3 if busy or rarely else None))
        if not found and not busy:
            self.look()
        if self._wake in found:
            os.eventfd_read(self._wake)
        self._see(again=looks)
        return fd in found

    def _see(self, *, again: bool) -> None:
        """Take in the last look, and begin the next one if it is time."""
        now_s = time.monotonic()
        if self._look is not None:
            begun_s, look = self._look
            if look.done():
                self._look = None
                self._take(self.value(look), at_work=again)
            elif now_s - begun_s > SILENT_S:
                raise Lost(f"it has not answered for {SILENT_S:g} s")
        if again and self._look is None and now_s - self._looked_s >= LOOK_S:
            self.look()
        if self._stacks is not None and self._stacks.done():
            os.write(self._dump, str(self.value(self._stacks)).encode("utf-8", "replace"))
            self._stacks = None
        if self._stacks_wanted:
            self._stacks_wanted = False
            self._stacks = self.woken(self._actor.call("stack"))

    def look(self) -> None:
        """Begin a look, unless one is under way."""
        if self._look is None:
            self._looked_s = time.monotonic()
            self._look = self._looked_s, self.woken(self._actor.call("look"))

    def _take(self, look: Look, *, at_work: bool) -> None:
        self.show(look.output)
        if look.word != self.word or look.doing != self._doing:
            self.moved_s = time.monotonic()
        self.word = look.word
        if at_work:
            self._line.copy(look.word, look.key)
        if look.doing != self._doing:
            self._doing = look.doing
            self.tell(look.doing)

    def show(self, output: bytes) -> None:
        """Print what the worker has printed."""
        if output:
            os.write(self._output, output)

    def woken(self, future: Future[Any]) -> Future[Any]:
        """Have `wait` return when this is done. Returns it."""
        future.add_done_callback(lambda _: os.eventfd_write(self._wake, 1))
        return future

    def close(self) -> None:
        """Wait for nothing any longer."""
        os.close(self._wake)

    def _on_signal(self, number: int, frame: object) -> None:
        self._stacks_wanted = True
        os.eventfd_write(self._wake, 1)
