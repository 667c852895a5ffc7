"""The three phases of a daemon's life, one after the other: it opens, serves, drains.

What is told to the daemon is told to its phase.
"""

from __future__ import annotations

import gc
import os
import signal
from typing import Protocol

from loaderd.core.actions import Action
from loaderd.core.events import Drain, Event, StackWanted, StreamOpened, WorkerReady
from loaderd.data import native_library
from loaderd.server import banner, status
from loaderd.server.admission import check_protocol
from loaderd.server.parts import Parts
from loaderd.server.status_report import DaemonStatus, DrainStatus
from loaderd.system import systemd
from loaderd.system.control_socket import Peer
from loaderd.system.logs import Log
from loaderd_wire.errors import LoaderdError, StreamFailedError
from loaderd_wire.hints import counted, few
from loaderd_wire.messages import Ask, Hello, Report

NOTICEABLE_S = 0.1  # a turn as long as this is a warning
ALONE_S = 0.5  # for running jobs to end, in a drain without trainers


class PhaseOwner(Protocol):
    """Whose phases these are."""

    def enter(self, phase: Phase, /) -> None:
        """From now on this one is told of everything, first of all that it begins."""
        ...

    def opened(self) -> None:
        """Its streams are open, and a worker is ready."""
        ...

    def takeover(self, peer: Peer, /) -> None:
        """A successor asks for the socket."""
        ...

    def fail(self, why: str, /) -> None:
        """It can't serve: the process ends with the reason."""
        ...

    def status(self) -> DaemonStatus:
        """All that it tells about itself."""
        ...


class Phase(Protocol):
    """One part of a daemon's life: it is told of everything meanwhile.

    Attributes:
        name: For `status`.
    """

    name: str

    def begin(self) -> None:
        """Once, when the daemon has entered it."""
        ...

    def hello(self, peer: Peer, hello: Hello) -> None:
        """A client wants a session."""
        ...

    def ask(self, peer: Peer, ask: Ask) -> None:
        """Somebody asks for the status or for a drain."""
        ...

    def left(self, peer: Peer) -> None:
        """A connection has ended."""
        ...

    def starter_left(self) -> None:
        """Whoever started the daemon does not wait for it any longer."""
        ...

    def sessions_ended(self) -> None:
        """The last session has."""
        ...

    def stream_answered(self, name: str) -> None:
        """A stream that was wanted is open, or can't be."""
        ...

    def slow_turn(self, spent_s: float, text: str) -> None:
        """A turn of the loop took so long; `text` is for the log."""
        ...

    def drain(self, why: str) -> None:
        """The daemon is to end."""
        ...

    def signalled(self, number: int) -> None:
        """A signal that asks for the end has come."""
        ...


def log_slow_turn(log: Log, spent_s: float, text: str) -> None:
    """Log a slow turn of the loop; as a warning from NOTICEABLE_S on."""
    level = "warning" if spent_s >= NOTICEABLE_S else "info"
    log(level, "slow_turn", text, seconds=round(spent_s, 3))


class _Accepting:
    """What opening and serving have in common.

    Clients are heard, and the daemon goes when nobody uses it.
    """

    def __init__(self, daemon: PhaseOwner, parts: Parts) -> None:
        self._daemon = daemon
        self._parts = parts

    def hello(self, peer: Peer, hello: Hello) -> None:
        self._parts.admission.hello(peer, hello)

    def ask(self, peer: Peer, ask: Ask) -> None:
        control = self._parts.control
        try:
            check_protocol(ask.protocol)
        except LoaderdError as error:
            control.reject(peer, type(error).__name__, str(error))
            return
        if ask.what == "status":
            control.send(peer, Report(self._daemon.status().to_json()))
            control.finish(peer)
        elif ask.what == "drain":
            control.send(
                peer, Report(DrainStatus(os.getpid(), self._parts.config.daemon.drain_s).to_json())
            )
            self.drain(f"requested by {peer}")
        elif ask.what == "takeover":
            self._daemon.takeover(peer)
        elif (worker := ask.what.removeprefix("stack ")).isdecimal():
            self._parts.dispatcher.step(StackWanted(int(worker[:9])))
            control.send(peer, Report("{}"))
            control.finish(peer)
        else:
            control.reject(
                peer,
                "ProtocolError",
                f"unknown command {ask.what!r}; commands are status, drain, takeover and stack N",
            )

    def left(self, peer: Peer) -> None:
        self._parts.admission.gone(peer)
        if not self._parts.ready_pipe.waits:
            self._parts.idle.connection_ended()

    def starter_left(self) -> None:
        self._parts.idle.connection_ended()

    def drain(self, why: str) -> None:
        self._daemon.enter(Draining(self._parts, why, at_work=isinstance(self, Serving)))

    def signalled(self, number: int) -> None:
        self.drain(signal.Signals(number).name)


class Opening(_Accepting):
    """Streams are opened, then workers are started. Clients are told to wait."""

    name = "starting"

    def begin(self) -> None:
        """Have the streams opened that are not left until they are asked for."""
        self._parts.dispatcher.on_event = self._await_worker
        for name in self._parts.catalog.names:
            if self._parts.options.first_stream in ("", name):
                self._parts.catalog.want(name)

    def stream_answered(self, name: str) -> None:
        """Once the last has answered, start workers, or end the process if one failed."""
        catalog, dispatcher = self._parts.catalog, self._parts.dispatcher
        if catalog.opening:
            return
        why = status.stream_faults(catalog.faults) or catalog.disagreement()
        if why:
            self._daemon.fail(why)
            return
        self._parts.startup.waits_for("starting workers")
        for each in catalog.opened:
            dispatcher.step(StreamOpened(catalog.rules(each)))
        dispatcher.begin()

    def sessions_ended(self) -> None:
        """There has been none."""

    def slow_turn(self, spent_s: float, text: str) -> None:
        """Log it at level debug: nobody waits for an answer yet."""
        self._parts.log("debug", "slow_turn", text, seconds=round(spent_s, 3))

    def _await_worker(self, event: Event, made: list[Action]) -> None:
        if isinstance(event, WorkerReady):
            self._parts.dispatcher.on_event = None
            self._daemon.opened()


class Serving(_Accepting):
    """Clients get their sessions; streams that were left are opened when somebody asks for them."""

    name = "ready"

    def begin(self) -> None:
        """Tell whoever waits that it is ready, and give waiting clients their sessions."""
        parts = self._parts
        # a full collection would look through all modules: 10 ms in which nobody is answered
        gc.freeze()
        banner.tell_start(parts.log, parts.config, parts.limits, parts.budget.memory)
        for name, stream in parts.catalog.opened.items():
            banner.tell_stream(parts.log, name, stream)
        self._tell_ready()
        parts.startup.end()
        parts.ready_pipe.tell("ready")
        systemd.notify("READY=1", parts.env)
        parts.admission.open(parts.catalog.opened)
        parts.idle.await_first()

    def stream_answered(self, name: str) -> None:
        """Let its clients in, or refuse them with the reason; other streams are not concerned."""
        parts = self._parts
        catalog, admission = parts.catalog, parts.admission
        if not catalog.opening:
            parts.startup.end()
        if name not in catalog.faults and (differ := catalog.disagreement()):
            catalog.reject(name, differ)
        if name in catalog.faults:  # no affair of those that others are served to
            text = status.stream_faults({name: catalog.faults[name]})
            parts.log("error", "stream_failed", text, stream=name)
            admission.not_opened(name, StreamFailedError(text))
        else:
            banner.tell_stream(parts.log, name, catalog.opened[name])
            parts.dispatcher.step(StreamOpened(catalog.rules(name)))
            admission.opened(name)

    def sessions_ended(self) -> None:
        """Leave after exit_when_idle_s, unless a client comes."""
        self._parts.idle.sessions_ended(lambda: self._parts.registry.sessions)

    def slow_turn(self, spent_s: float, text: str) -> None:
        """Log it; as a warning from NOTICEABLE_S on."""
        log_slow_turn(self._parts.log, spent_s, text)

    def _tell_ready(self) -> None:
        parts = self._parts
        socket, catalog = parts.config.daemon.socket, parts.catalog
        unopened = [name for name in catalog.names if name not in catalog.opened]
        streams = catalog.counts() + (f"; {few(unopened)} not opened yet" if unopened else "")
        parts.log.say(
            "info",
            "ready",
            f"ready: {socket}; streams {streams}; {counted(parts.limits.start, 'worker')}",
            {"socket": socket, "workers": parts.limits.start},
        )
        for text in (*parts.limits.warnings, *native_library.warnings()):
            parts.log("warning", "start_warning", text)


class Leaving:
    """What a drain and a handover have in common: whoever comes is dropped, and looks elsewhere."""

    name = "draining"

    def __init__(self, parts: Parts) -> None:
        """Change nothing yet.

        Args:
            parts: What the daemon is made of.
        """
        self._parts = parts

    def hello(self, peer: Peer, hello: Hello) -> None:
        """Drop it: it sees EOF before an answer, and looks for a successor."""
        self._parts.control.drop(peer)

    def ask(self, peer: Peer, ask: Ask) -> None:
        """Drop it without an answer."""
        self._parts.control.drop(peer)

    def starter_left(self) -> None:
        """It leaves anyway."""

    def sessions_ended(self) -> None:
        """It leaves anyway."""

    def stream_answered(self, name: str) -> None:
        """Nobody will use it."""

    def slow_turn(self, spent_s: float, text: str) -> None:
        """Log it; as a warning from NOTICEABLE_S on."""
        log_slow_turn(self._parts.log, spent_s, text)

    def drain(self, why: str) -> None:
        """That is going on."""


class Draining(Leaving):
    """Nothing new is begun, and everybody has been told.

    The end comes when nothing is being made, within drain_s at the latest.
    """

    def __init__(self, parts: Parts, why: str, *, at_work: bool) -> None:
        """Change nothing yet.

        Args:
            parts: What the daemon is made of.
            why: For the log.
            at_work: Workers have been started.
        """
        super().__init__(parts)
        self._why = why
        self._at_work = at_work

    def begin(self) -> None:
        """Refuse whoever comes, tell who is there, and end once nothing is being made."""
        parts = self._parts
        loop, drain_s = parts.loop, parts.config.daemon.drain_s
        parts.log("info", "draining", f"draining: {self._why}")
        systemd.notify("STOPPING=1", parts.env)
        parts.control.stop_listening()
        # What is still made for nobody is not waited for long: it may be what hangs.
        patience_s = drain_s if parts.registry.sessions else min(drain_s, ALONE_S)
        parts.admission.close()
        parts.registry.close("drained")
        if not self._at_work:
            loop.stop()
            return
        loop.later(patience_s, loop.stop)
        loop.before_sleep(self._leave_if_done)
        parts.dispatcher.step(Drain())

    def left(self, peer: Peer) -> None:
        """Its session ends, if it had one."""
        self._parts.admission.gone(peer)

    def signalled(self, number: int) -> None:
        """End at once: this is the second one."""
        self._parts.loop.stop()

    def _leave_if_done(self) -> bool:
        done = self._parts.dispatcher.idle and not self._parts.messages.waiting
        if done:
            self._parts.loop.stop()
        return done
