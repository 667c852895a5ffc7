"""From a source to an admitted session: find or start the daemon, say hello, wait while it starts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from loaderd_client.control import Control
from loaderd_client.embedded import Starting
from loaderd_client.source import Source
from loaderd_client.waiting import PING_S, Limits, Wait
from loaderd_wire import messages as m
from loaderd_wire.errors import DaemonGone, LoaderdError, ProtocolError, StallError, StreamFailed, from_name

LOG = logging.getLogger("loaderd_client")
FIRST_PAUSE_S, LAST_PAUSE_S = 0.02, 0.5  # between two looks for a socket; there is nothing to wait on where no socket is


@dataclass(slots=True)
class Admitted:
    """fd: the first segment's memory; whoever gets this closes it."""

    path: str
    control: Control
    welcome: m.Welcome
    fd: int


class Handshake:
    """One attempt to get a session, with its own patience.

    hello: made anew for each try, for what it says of held memory may change. lost: why the last daemon is gone, "" at first.
    meanwhile: what takes time and needs no daemon, done where one would be waited for; called again and again.
    """

    def __init__(self, source: Source, limits: Limits, hello: Callable[[], m.Hello], lost: str, meanwhile: Callable[[], object]) -> None:
        self._source = source
        self._limits = limits
        self._hello = hello
        self._lost = lost
        self._meanwhile = meanwhile
        self._path = source.find()
        self._wait = Wait(time.monotonic(), limits)
        self._alone = Wait(time.monotonic(), limits)  # since a daemon was last heard starting
        self._doing = ""  # what the daemon said last that it is doing

    def run(self) -> Admitted:
        """Raises what the daemon rejects with; DaemonGone if none is there within reconnect_s; StallError if it starts for over timeout_s."""
        pause_s = FIRST_PAUSE_S
        while True:
            control = Control.connect(self._path)
            if control is None and self._source.config:
                self._start()
                control = Control.connect(self._path)
            if control is not None:
                try:
                    admitted = self._admission(control)
                except BaseException:
                    control.close()
                    raise
                if admitted is not None:
                    return admitted
                control.close()  # its successor may be on its way
                self._lost = self._lost or "it left before it answered"
            self._nobody()
            self._use_the_wait()
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, LAST_PAUSE_S)

    def _start(self) -> None:
        with Starting(self._source.config, self._path) as starting:
            try:
                self._use_the_wait()
                while not starting.wait(self._pause_s(self._limits.timeout_s)):
                    newest = f", which ends with: {starting.newest}" if starting.newest else ""
                    self._look(self._limits.timeout_s, f"the embedded daemon starts; its log is {self._path}.log{newest}", StallError)
            except StreamFailed as error:
                if not (self._lost and starting.silent):
                    raise
                self._lost = str(error).splitlines()[0]  # a successor that was killed as well: the next one may live

    def _admission(self, control: Control) -> Admitted | None:
        """None if the daemon left without an answer."""
        self._doing = ""
        control.send(self._hello())
        self._use_the_wait()
        while not control.ended:
            control.wait(self._pause_s(self._limits.timeout_s))
            for message in control.receive():
                if isinstance(message, m.Welcome):
                    return Admitted(self._path, control, message, control.take_fd())
                if isinstance(message, m.Rejected):
                    raise self._rejected(message)
                if isinstance(message, m.Starting):
                    self._doing = message.text
                    self._alone = Wait(time.monotonic(), self._limits)
                elif not isinstance(message, m.Bye):
                    raise ProtocolError(f"the daemon answered a hello with {type(message).__name__}")
            doing = f"is starting: {self._doing}" if self._doing else "does not answer"
            self._look(self._limits.timeout_s, f"the daemon at {self._path} {doing}", StallError)
        return None

    def _use_the_wait(self) -> None:
        """What this takes counts as no waiting; all that came before it does."""
        waits = self._wait, self._alone
        for wait in waits:
            wait.turn(time.monotonic())
        self._meanwhile()
        for wait in waits:
            wait.resume(time.monotonic())

    def _rejected(self, message: m.Rejected) -> LoaderdError:
        return from_name(message.error, message.text)

    def _nobody(self) -> None:
        last = f" (the last one: {self._lost})" if self._lost else ""
        self._alone.turn(time.monotonic())
        limit_s = 0.0 if self._alone.over(self._limits.reconnect_s) else max(self._limits.timeout_s, self._limits.reconnect_s)
        how = "" if self._source.config else "; start one: loaderd serve CONFIG"
        self._look(limit_s, f"no daemon is at {self._path}{last}{how}", DaemonGone)

    def _look(self, limit_s: float, what: str, error: type[LoaderdError]) -> None:
        self._wait.turn(time.monotonic())
        if self._wait.over(limit_s):
            raise error(f"waited {self._wait.waited_s:.0f} s: {what}")
        if self._wait.warning_due():
            LOG.warning("loaderd: waiting for %.0f s: %s", self._wait.waited_s, what)

    def _pause_s(self, limit_s: float) -> float:
        return min(self._wait.pause_s(limit_s), PING_S)
