"""From a source to an admitted session: find or start the daemon, say hello, wait."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from loaderd_client import file_limits, fork_safety
from loaderd_client.closing import Closing
from loaderd_client.control_socket import ControlSocket
from loaderd_client.embedded import EmbeddedStart
from loaderd_client.endpoint import Endpoint
from loaderd_client.handshake_wait import HandshakeWait, Obstacle
from loaderd_client.signals import Held
from loaderd_client.start_attempts import StartAttempts
from loaderd_client.wait import WaitLimits
from loaderd_wire import messages as m
from loaderd_wire.errors import (
    DaemonGoneError,
    LoaderdError,
    ProtocolError,
    RefusedError,
    StallError,
    from_name,
)

# between two looks for a socket; there is nothing to wait on where no socket is
FIRST_PAUSE_S, LAST_PAUSE_S = 0.02, 0.5
ANSWER_S = 0.05
STARTING_NAP_S = 0.1  # the longest between two looks for the socket of a daemon that starts


@dataclass(slots=True)
class AdmittedSession:
    """What a daemon has answered a hello with, and the socket that it came by.

    Attributes:
        path: Of the socket.
        control: The connection.
        welcome: The answer.
        fd: The first segment's memory. Whoever takes this over closes it.
    """

    path: str
    control: ControlSocket
    welcome: m.Welcome
    fd: int

    def close(self) -> None:
        """Give the session up: close the socket and the memory."""
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
        self._hello = hello
        self._lost = lost
        self._attempts = StartAttempts(successor=bool(lost))
        self._meanwhile = meanwhile
        self._closing = closing
        self.path = ""  # of the socket, once it was looked for
        self.started = False  # no daemon was ready to serve: one was started, or waited for
        self._short = ""  # of file descriptors, and so nobody was looked for
        self._wait = HandshakeWait(limits)
        self._doing = ""  # what the daemon said last that it is doing
        self._unanswered = False  # the last connection was closed without a word
        self._unknown = False  # whether the daemon understands the hello, which had no answer
        self._nap_s = FIRST_PAUSE_S
        self._control: ControlSocket | None = None  # to which the hello has been said
        self._starting: EmbeddedStart | None = None
        self._admitted: AdmittedSession | None = None
        self.lost = False  # in a forked child: another process's
        fork_safety.watch(self)

    def run(self) -> None:
        """Wait until `take` has something.

        Raises:
            DaemonGoneError: No daemon was there within `reconnect_s`.
            StallError: It has been starting for longer than `timeout_s`.
            LoaderdError: What the daemon rejects the hello with.
        """
        self._wait.resume()
        try:
            while self._admitted is None or self._starting is not None:
                self._turn()
        except LoaderdError:
            self.close()
            raise
        finally:
            self._wait.turn()

    def take(self) -> AdmittedSession:
        """Hand over the admitted session."""
        admitted, self._admitted = self._admitted, None
        assert admitted is not None
        return admitted

    def shut(self) -> None:
        """End a wait of `run`, from any thread."""
        for waited in (self._control, self._starting):
            if waited is not None:
                waited.shut()

    def close(self) -> None:
        """Give up. A daemon that was started lives on."""
        if self._admitted is not None:
            self._admitted.close()
        if self._control is not None:
            self._control.close()
        if self._starting is not None:
            self._starting.close()
        self._admitted = self._control = self._starting = None

    def lose(self) -> None:
        """This process is a fork: its copies are closed."""
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
            self._wait.check_alone(self._absence())
            self._wait.use(self._meanwhile)
            self._closing.sleep(self._nap_s)
            self._nap_s = min(self._nap_s * 2, LAST_PAUSE_S)

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
            control.send(self._question())
            self._control, self._doing = control, ""
            return
        self._unanswered, self.started = False, True
        if self._source.config and self._starting is None:
            self._starting, self._nap_s = (
                EmbeddedStart(self._source.config, self.path, self._hello().stream),
                FIRST_PAUSE_S,
            )

    def _question(self) -> m.Hello | m.Ask:
        """What is said to a daemon.

        One of an earlier version hangs up on a hello that asks to share, before it looks at the
        version. An Ask it refuses with both versions.
        """
        hello = self._hello()
        asks = self._unknown and bool(hello.shared)
        self._unknown = not asks
        return m.Ask(m.PROTOCOL, "status") if asks else hello

    def _await_answer(self, control: ControlSocket) -> None:
        pause_s = self._wait.pause_s()
        # one that is ready answers at once
        if self._doing or not control.wait(min(ANSWER_S, pause_s)):
            self._wait.use(self._meanwhile)
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
            self._wait.check(Obstacle(what, StallError))

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
                self._wait.heard_starting()
            elif not isinstance(message, m.Bye) and (
                self._unknown or not isinstance(message, m.Report)
            ):
                raise ProtocolError(f"the daemon answered a hello with {type(message).__name__}")
        if control.ended:
            control.close()
            self._control = None
            if self._starting is None:  # else that says why
                self._unanswered = not self._doing
                self._unknown = self._unknown and self._unanswered
                # its successor may be on its way
                self._lost = self._lost or "it left before it answered"

    def _await_start(self, starting: EmbeddedStart) -> None:
        """It listens before it serves, and is connected to as soon as it does."""
        pause_s = self._wait.pause_s()
        starting.wait(pause_s if self._admitted else min(self._nap_s, pause_s))
        self._nap_s = min(self._nap_s * 2, STARTING_NAP_S)
        with Held():
            starting.hear()
            if starting.serves:
                self._end_start()
        if starting.ended:
            error = starting.error()
            self._end_start()
            self._lost = self._attempts.failed(error, starting.signal)
        elif not starting.serves:
            self._wait.check(Obstacle(self._story(starting), StallError))

    def _story(self, starting: EmbeddedStart) -> str:
        newest = f", which ends with: {starting.newest}" if starting.newest else ""
        return f"the embedded daemon starts; its log is {self.path}.log{newest}"

    def _end_start(self) -> None:
        if self._starting is not None:
            self._starting.close()
        self._starting, self._nap_s = None, FIRST_PAUSE_S

    def _absence(self) -> Obstacle:
        """Why nobody answers."""
        last = f" (the last one: {self._lost})" if self._lost else ""
        if self._short:
            return Obstacle(f"{self._short}{last}", RefusedError)
        if self._unanswered:
            return Obstacle(
                f"the daemon at {self.path} closes each connection without an answer; its log "
                "may say why",
                DaemonGoneError,
            )
        how = "" if self._source.config else "; start one: loaderd serve CONFIG"
        return Obstacle(f"no daemon is at {self.path}{last}{how}", DaemonGoneError)
