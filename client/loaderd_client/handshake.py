"""From a source to an admitted session: find or start the daemon, say hello, wait."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from loaderd_client import file_limits, fork_safety
from loaderd_client.closing import Closing
from loaderd_client.control_socket import ControlSocket
from loaderd_client.embedded import EmbeddedStart
from loaderd_client.endpoint import Endpoint
from loaderd_client.log import warn
from loaderd_client.signals import Held
from loaderd_client.wait import PING_S, Wait, WaitLimits
from loaderd_wire import messages as m
from loaderd_wire.errors import (
    DaemonGoneError,
    LoaderdError,
    ProtocolError,
    RefusedError,
    StallError,
    StreamFailedError,
    from_name,
)

# between two looks for a socket; there is nothing to wait on where no socket is
FIRST_PAUSE_S, LAST_PAUSE_S = 0.02, 0.5
ANSWER_S = 0.05
STARTS = 5  # of a first daemon, before it is given up that each is killed
STARTING_NAP_S = 0.1  # the longest between two looks for the socket of a daemon that starts


@dataclass(slots=True)
class AdmittedSession:
    """fd: the first segment's memory; whoever takes this over closes it."""

    path: str
    control: ControlSocket
    welcome: m.Welcome
    fd: int

    def close(self) -> None:
        self.control.close()
        os.close(self.fd)


class Handshake:
    """One attempt to get a session, with limits of its own.

    What a signal handler raises comes out of `run` only while it waits. `run` called again goes on
    where it was.
    """

    def __init__(
        self,
        source: Endpoint,
        limits: WaitLimits,
        hello: Callable[[], m.Hello],
        lost: str,
        meanwhile: Callable[[], object],
        closing: Closing,
    ) -> None:
        """Prepare; `run` connects.

        Args:
            source: Where the daemon is.
            limits: How long to wait.
            hello: Makes the first message, anew for each try: the size of the held memory in it
                changes.
            lost: Why the last daemon is gone; "" if there was none.
            meanwhile: Called again and again while a daemon is waited for: work that needs none.
            closing: Ends the waits.
        """
        self._source = source
        self._limits = limits
        self._hello = hello
        self._lost = lost
        # a daemon that served; its successors are waited for as long as reconnect_s says
        self._had = bool(lost)
        self._killed = 0  # daemons of ours, before they were ready
        self._meanwhile = meanwhile
        self._closing = closing
        self.path = ""  # of the socket, once it was looked for
        self.started = False  # no daemon was ready to serve: one was started, or waited for
        self._short = ""  # of file descriptors, and so nobody was looked for
        self._wait = Wait(time.monotonic(), limits)
        self._alone = Wait(time.monotonic(), limits)  # since a daemon was last heard starting
        self._doing = ""  # what the daemon said last that it is doing
        self._unanswered = False  # the last connection was closed without a word
        self._nap_s = FIRST_PAUSE_S
        self._control: ControlSocket | None = None  # to which the hello has been said
        self._starting: EmbeddedStart | None = None
        self._admitted: AdmittedSession | None = None
        self.lost = False  # in a forked child: another process's
        fork_safety.watch(self)

    def run(self) -> None:
        """Until `take` has something.

        Raises what the daemon rejects with; DaemonGoneError if none is there within reconnect_s;
        StallError if it starts for over timeout_s.
        """
        for wait in (self._wait, self._alone):
            wait.resume(time.monotonic())
        try:
            while self._admitted is None or self._starting is not None:
                self._turn()
        except LoaderdError:
            self.close()
            raise
        finally:
            for wait in (self._wait, self._alone):
                wait.turn(time.monotonic())

    def take(self) -> AdmittedSession:
        """Whoever asks has it from now on."""
        admitted, self._admitted = self._admitted, None
        assert admitted is not None
        return admitted

    def shut(self) -> None:
        """From any thread: a wait of `run` ends."""
        for waited in (self._control, self._starting):
            if waited is not None:
                waited.shut()

    def close(self) -> None:
        if self._admitted is not None:
            self._admitted.close()
        if self._control is not None:
            self._control.close()
        if self._starting is not None:
            self._starting.close()
        self._admitted = self._control = self._starting = None

    def lose(self) -> None:
        self.lost = True
        self.close()

    def _turn(self) -> None:
        """Does what can be done now, and sleeps until there is more."""
        if self._closing.done:
            raise LoaderdError("closed while it waited for the daemon")
        with Held():
            if self._control is None and self._admitted is None:
                self._reach()
        if self._control is not None:
            self._await_answer(self._control)
        elif self._starting is not None:
            self._await_start(self._starting)
        if self._control is None and self._starting is None and self._admitted is None:
            self._nobody()
            self._use_the_wait()
            self._nap()

    def _reach(self) -> None:
        """Says hello to whoever is there; where nobody is, a daemon of one's own is started."""
        self._short = file_limits.shortage(file_limits.A_SESSION + file_limits.SPARE)
        if self._short:
            if not self._lost:
                raise RefusedError(self._short)
            return  # who had a session once waits for its place
        self.path = self.path or self._source.find()
        control = ControlSocket.connect(self.path)
        if control is not None:
            control.send(self._hello())
            self._control, self._doing = control, ""
            return
        self._unanswered, self.started = False, True
        if self._source.config and self._starting is None:
            self._starting, self._nap_s = (
                EmbeddedStart(self._source.config, self.path, self._hello().stream),
                FIRST_PAUSE_S,
            )

    def _await_answer(self, control: ControlSocket) -> None:
        pause_s = self._pause_s(self._limits.timeout_s)
        # one that is ready answers at once
        if self._doing or not control.wait(min(ANSWER_S, pause_s)):
            self._use_the_wait()
            control.wait(pause_s)
        with Held():
            self._hear(control)
        if self._control is not None:
            doing = f"is starting: {self._doing}" if self._doing else "does not answer"
            what = (
                f"the daemon at {self.path} {doing}"
                if self._starting is None
                else self._story(self._starting)
            )
            self._look(self._limits.timeout_s, what, StallError)

    def _hear(self, control: ControlSocket) -> None:
        messages = control.receive()
        for number, message in enumerate(messages):
            if isinstance(message, m.Welcome):
                control.unread = messages[number + 1 :]
                self._admitted, self._control = (
                    AdmittedSession(self.path, control, message, control.take_fd()),
                    None,
                )
                return
            if isinstance(message, m.Rejected):
                raise from_name(message.error, message.text)
            if isinstance(message, m.Starting):
                self._doing, self.started = message.text, True
                self._alone = Wait(time.monotonic(), self._limits)
            elif not isinstance(message, m.Bye):
                raise ProtocolError(f"the daemon answered a hello with {type(message).__name__}")
        if control.ended:
            control.close()
            self._control = None
            if self._starting is None:  # else that says why
                self._unanswered = not self._doing
                # its successor may be on its way
                self._lost = self._lost or "it left before it answered"

    def _await_start(self, starting: EmbeddedStart) -> None:
        """It listens before it serves, and is connected to as soon as it does."""
        pause_s = self._pause_s(self._limits.timeout_s)
        starting.wait(pause_s if self._admitted else min(self._nap_s, pause_s))
        self._nap_s = min(self._nap_s * 2, STARTING_NAP_S)
        with Held():
            starting.hear()
            if starting.serves:
                self._end_start()
        if starting.ended:
            error = starting.error()
            self._end_start()
            self._start_again(error, starting.signal)
        elif not starting.serves:
            self._look(self._limits.timeout_s, self._story(starting), StallError)

    def _start_again(self, error: LoaderdError, signal: str) -> None:
        """Of a daemon that has ended before it was ready: the next one may live where a signal has
        ended this one. Else raises the error.
        """
        if not signal:
            raise error
        self._killed += 1
        if not self._had and self._killed == STARTS:
            what, *log = str(error).splitlines()
            raise StreamFailedError(
                "\n".join([f"{what}, as were the {STARTS - 1} that were started before it", *log])
            )
        self._lost = f"{str(error).splitlines()[0]}, start {self._killed}"
        if not self._had and self._killed == 1:
            warn(
                "the embedded daemon was ended by %s before it was ready; starting another one",
                signal,
            )

    def _story(self, starting: EmbeddedStart) -> str:
        newest = f", which ends with: {starting.newest}" if starting.newest else ""
        return f"the embedded daemon starts; its log is {self.path}.log{newest}"

    def _end_start(self) -> None:
        if self._starting is not None:
            self._starting.close()
        self._starting, self._nap_s = None, FIRST_PAUSE_S

    def _use_the_wait(self) -> None:
        """What this takes counts as no waiting; all that came before it does."""
        waits = self._wait, self._alone
        for wait in waits:
            wait.turn(time.monotonic())
        self._meanwhile()
        for wait in waits:
            wait.resume(time.monotonic())

    def _nobody(self) -> None:
        last = f" (the last one: {self._lost})" if self._lost else ""
        self._alone.turn(time.monotonic())
        limit_s = (
            0.0
            if self._alone.over(self._limits.reconnect_s)
            else max(self._limits.timeout_s, self._limits.reconnect_s)
        )
        how = "" if self._source.config else "; start one: loaderd serve CONFIG"
        if self._short:
            self._look(limit_s, f"{self._short}{last}", RefusedError)
        elif self._unanswered:
            what = (
                f"the daemon at {self.path} closes each connection without an answer; its log "
                "may say why"
            )
            self._look(limit_s, what, DaemonGoneError)
        else:
            self._look(limit_s, f"no daemon is at {self.path}{last}{how}", DaemonGoneError)

    def _nap(self) -> None:
        self._closing.sleep(self._nap_s)
        self._nap_s = min(self._nap_s * 2, LAST_PAUSE_S)

    def _look(self, limit_s: float, what: str, error: type[LoaderdError]) -> None:
        self._wait.turn(time.monotonic())
        if self._wait.over(limit_s):
            raise error(f"waited {self._wait.waited_s:.0f} s: {what}")
        if self._wait.warning_due():
            warn("waiting for %.0f s: %s", self._wait.waited_s, what)

    def _pause_s(self, limit_s: float) -> float:
        return min(self._wait.pause_s(limit_s), PING_S)
