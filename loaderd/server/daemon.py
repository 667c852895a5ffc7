"""The daemon: what it is made of, how it starts, what is done about each action, how it ends."""

from __future__ import annotations

import functools
import gc
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from loaderd.config.load import Config
from loaderd.core import actions
from loaderd.core.class_names import disagreement
from loaderd.core.events import Drain, Event, ProgressReceived, StreamOpened, WorkerReady
from loaderd.core.scheduler import Scheduler, StreamRules
from loaderd.data import native_library
from loaderd.engine.base import MakeEngine
from loaderd.engine.messages import OpenError, StreamInfo
from loaderd.server import status
from loaderd.server.admission import OpenedStream, check_protocol
from loaderd.server.dispatcher import ActionDispatcher, ActionHandlers
from loaderd.server.readiness import ReadinessPipe
from loaderd.server.sessions import SessionRegistry
from loaderd.server.startup import StartupReporter
from loaderd.system import file_limits, resource_limits, systemd
from loaderd.system.control_socket import ControlListener, Peer
from loaderd.system.http import PROMETHEUS, HttpServer, Page, parse_address
from loaderd.system.lockfile import AlreadyServed, CannotServe, LockFile, prepare_folder
from loaderd.system.logs import Log, QuarantineLog, stderr_sink
from loaderd.system.loop import Loop, Timer
from loaderd.system.memfd import SegmentStore
from loaderd.system.peer_credentials import PeerGate
from loaderd.system.zmq_router import MessageRouter
from loaderd_wire import paths
from loaderd_wire.errors import LoaderdError, StreamFailedError
from loaderd_wire.hints import few
from loaderd_wire.messages import Ask, Hello, Report

EMBEDDED_FIRST_S = 30.0  # an embedded daemon that nobody has come to
EMBEDDED_LAST_S = 2.0  # after its last control socket closed
NOTICEABLE_S = 0.1  # a turn as long as this is a warning
ALONE_S = 0.5  # for running jobs to end, in a drain without trainers
EXIT_DRAINED, EXIT_NO_START, EXIT_FAULT = 0, 3, 4  # what Daemon.run returns
STARTING, SERVING, DRAINING = "starting", "ready", "draining"


@dataclass(frozen=True, slots=True)
class StartOptions:
    """What the command line says beside the config.

    first_stream: the one that is opened at the start, each other when it is asked for; "" to open all at the start.
    embedded: a Loader started us: leave 2 s after the last control socket closed, or 30 s after "ready" without one; before it 2 s after
    nobody waits on ready_fd or to be admitted any more.
    ready_fd: a pipe on which "ready" is written when the daemon serves, or the lines that say why it can't; then it is closed.
    """

    first_stream: str = ""
    embedded: bool = False
    ready_fd: int | None = None
    log_format: str = "text"
    log_level: str = "info"


class Daemon:
    """Serves the streams of a config until it drains. root: where proc and cgroups are found."""

    def __init__(
        self,
        config: Config,
        options: StartOptions,
        *,
        make_engine: MakeEngine,
        env: Mapping[str, str] = os.environ,
        root: str = "/",
        stderr: int = 2,
    ) -> None:
        self._config = config
        self._options = options
        self._plans = config.streams
        self._make_engine = make_engine
        self._env = env
        self._root = root
        self._stderr = stderr
        self._state = STARTING
        self._code = EXIT_DRAINED
        self._streams: dict[str, OpenedStream] = {}
        self._opening: set[str] = set()
        self._faults: dict[str, str] = {}  # of the streams that could not be opened when they were last asked for
        self._idle_timer: Timer | None = None
        number = config.workers.num_workers
        self._workers = number if isinstance(number, int) else resource_limits.own_cpu_count()
        self._begun = False  # workers are being started

    def run(self) -> int:
        """From start to end, in the main thread. Returns EXIT_DRAINED, EXIT_NO_START or EXIT_FAULT."""
        with Loop(on_slow=self._slow) as self._loop:
            self._starter = ReadinessPipe(self._loop, self._options.ready_fd, self._starter_left)
            ours = self._config.daemon.socket + paths.LOG if self._options.embedded else ""
            self._log = Log(stderr_sink(self._loop, self._stderr, path=ours), form=self._options.log_format, level=self._options.log_level)
            try:
                with ExitStack() as stack:
                    self._open(stack)
                    self._loop.run()
            except CannotServe as error:
                usual = self._options.embedded and isinstance(error, AlreadyServed)  # of eight ranks that start one at once
                self._cannot_serve(str(error), "info" if usual else "error")
            except Exception:  # noqa: BLE001  the rim: a fault of ours is reported and ends the process
                self._log("error", "the daemon has failed:\n" + traceback.format_exc())
                self._code = EXIT_FAULT
            finally:
                self._starter.tell("")
                self._log.close()
        return self._code

    def _slow(self, spent_s: float, text: str) -> None:
        level = "warning" if spent_s >= NOTICEABLE_S else "info"
        self._log("debug" if self._state == STARTING else level, text)  # before "ready" nobody waits for an answer

    # -- start

    def _open(self, stack: ExitStack) -> None:
        """Bind at once, so that clients can be told to wait; then have every stream opened. Raises CannotServe."""
        s, loop = self._config.daemon, self._loop
        too_long = paths.too_long(s.socket)
        if too_long:
            raise CannotServe(too_long)
        gate = PeerGate.here(s.allow_uids)
        prepare_folder(s.socket, uid=gate.own, default=self._config.default_socket, others=gate.open)
        limit = file_limits.raise_limit()
        most = file_limits.sessions_that_fit(limit, file_limits.in_use() + file_limits.A_WORKER * self._workers)
        if most == 0:
            raise CannotServe(f"RLIMIT_NOFILE is {limit}, which leaves room for no session; raise the hard limit (ulimit -Hn)")
        # Whoever sees its connection end may start a successor at once: the lock is free by then.
        connections = stack.enter_context(ExitStack())
        stack.enter_context(LockFile(s.socket))
        if self._options.embedded:
            self._log("info", f"{paths.LOG_BEGINS}: pid {os.getpid()}")
            stack.callback(self._remove_files)
        self._quarantine = QuarantineLog(s.quarantine)
        stack.callback(self._quarantine.close)
        self._segments = SegmentStore(loop)
        stack.callback(self._segments.close)
        self._registry = SessionRegistry(
            loop,
            self._segments,
            config_path=self._config.path,
            names=[plan.name for plan in self._plans],
            wanted=self._want,
            life=f"{os.getpid()}-{os.urandom(4).hex()}",
            memory=s.memory if s.memory is not None else resource_limits.free_bytes(self._root) // 2,
            most=most,
            step=self.step,
            emptied=self._no_sessions,
            outdated=self._drain if self._options.embedded else None,
            log=self._log,
            rooms=lambda: resource_limits.rooms(self._root),
        )
        try:
            self._listen(stack, connections, gate)
        except OSError as error:
            raise CannotServe(f"{s.socket}: {error.strerror or error}; set another [daemon] socket") from None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.on_signal(number, functools.partial(self._signalled, number))
        for number in (signal.SIGUSR1, signal.SIGUSR2):  # what a scheduler sends to all of a job, for the trainer to save its state
            loop.on_signal(number, functools.partial(self._log, "info", f"{number.name} is the trainer's affair: nothing is done"))
        first = [plan for plan in self._plans if self._options.first_stream in ("", plan.name)]
        self._pool = self._make_engine(
            loop,
            first,
            self._config.workers,
            late=[plan for plan in self._plans if plan not in first],
            num_workers=self._workers,
            folder=self._config.folder,
            emit=self.step,
            log=self._log,
            oom_kills=lambda: resource_limits.oom_kills(self._root),
        )
        stack.callback(self._pool.close)
        self._registry.pool = self._pool
        self._dispatcher = self._new_dispatcher()
        for plan in first:
            self._want(plan.name)

    def _listen(self, stack: ExitStack, connections: ExitStack, gate: PeerGate) -> None:
        s, loop, registry = self._config.daemon, self._loop, self._registry
        self._control = ControlListener(loop, s.socket, gate=gate, on_message=self._first_words, on_end=self._gone, log=self._log)
        connections.callback(self._control.close)
        stack.callback(self._control.stop_listening)
        self._messages = MessageRouter(
            loop,
            s.socket + paths.MESSAGES,
            mode=gate.mode,
            uids=gate.uids if gate.open else (),
            on_progress=lambda session, progress: self.step(ProgressReceived(session, progress)),
            log=self._log,
        )
        stack.callback(self._messages.close)
        registry.control, registry.messages = self._control, self._messages
        if s.metrics:
            pages = {"/metrics": self._metrics_page, "/healthz": self._health_page, "/readyz": self._ready_page}
            try:
                stack.callback(HttpServer(loop, parse_address(s.metrics), pages).close)
            except (OSError, ValueError) as error:
                raise CannotServe(f"metrics = {s.metrics!r}: {error}; set another [daemon] metrics") from None

    def _want(self, name: str) -> None:
        """Have a stream opened, unless it is on its way."""
        if name in self._opening:
            return
        if not self._opening:
            self._startup = StartupReporter(self._loop, self._pool.doing, self._log)
            self._registry.progress = self._startup.text
        self._opening.add(name)
        self._startup.opens(self._opening)
        self._faults.pop(name, None)
        self._pool.open(name, functools.partial(self._opened, name))

    def _opened(self, name: str, found: StreamInfo | OpenError) -> None:
        self._opening.discard(name)
        if isinstance(found, OpenError):
            self._faults[name] = f"{found.text}\n{found.traceback}".strip()
        else:
            self._streams[name] = OpenedStream(next(plan for plan in self._plans if plan.name == name), found)
            for text in found.warnings:
                self._log("warning", f"stream {name!r}: {text}")
        if self._begun:
            self._opened_late(name)
        elif not self._opening:
            differ = self._disagreement()
            if self._faults or differ:
                self._cannot_serve(status.stream_faults(self._faults) or differ)
            else:
                self._begin()

    def _opened_late(self, name: str) -> None:
        """It was asked for when others were being served already, whose affair it is not if it can't be opened."""
        if self._opening:
            self._startup.opens(self._opening)
        else:
            self._startup.end()
        differ = "" if name in self._faults else self._disagreement()
        if differ:
            del self._streams[name]
            self._faults[name] = differ
        if name in self._faults:
            text = status.stream_faults({name: self._faults[name]})
            self._log("error", text)
            self._registry.not_opened(name, StreamFailedError(text))
        else:
            self._log("info", f"stream {status.stream_counts([(name, self._streams[name].facts.samples)])} is open")
            self.step(StreamOpened(self._rules(name)))
            self._registry.opened(name)

    def _disagreement(self) -> str:
        # As the config has them: the order in which they were opened is chance.
        return disagreement({p.name: self._streams[p.name].facts.classes for p in self._plans if p.name in self._streams})

    def _rules(self, name: str) -> StreamRules:
        stream = self._streams[name]
        return StreamRules(name, stream.plan.on_error, stream.facts.collated, stream.facts.samples)

    def _new_dispatcher(self) -> ActionDispatcher:
        workers, registry = self._config.workers, self._registry
        scheduler = Scheduler(
            (),
            workers=self._workers,
            sample_timeout_s=workers.sample_timeout_s,
            worker_memory=workers.worker_memory or 0,
            index_of=self._index_of,
        )
        handlers = ActionHandlers(
            engine=self._pool,
            send_message=self._messages.send,
            grow=registry.grow,
            drop=registry.drop,
            quarantine=self._set_aside,
            stream_broken=registry.stream_broken,
            cannot_boot=self._cannot_serve,
            log=self._log,
        )
        return ActionDispatcher(scheduler, handlers, self._loop, self._await_worker)

    def _begin(self) -> None:
        self._startup.what = "starting workers"
        self._begun = True
        for name in self._streams:
            self.step(StreamOpened(self._rules(name)))
        self._dispatcher.begin()

    def _await_worker(self, event: Event, made: list[actions.Action]) -> None:
        if isinstance(event, WorkerReady):
            self._dispatcher.on_event = None
            self._serve()

    def _set_aside(self, action: actions.Quarantine) -> None:
        sample = action.sample
        facts = {name: getattr(sample, name) for name in sample.__slots__}
        self._quarantine.add({"stream": action.stream, "epoch": action.epoch, **facts})
        self._log("warning", f"stream {action.stream!r}, epoch {action.epoch}: {sample.line()}")
        trouble = self._quarantine.trouble()
        if trouble:
            self._log("error", trouble)

    def _serve(self) -> None:
        self._state = SERVING
        self._startup.end()
        gc.freeze()  # a full collection would look through all modules: 10 ms in which nobody is answered
        socket = self._config.daemon.socket
        # As the config has them: the order in which they were opened is chance.
        streams = status.stream_counts((p.name, self._streams[p.name].facts.samples) for p in self._plans if p.name in self._streams)
        unopened = [plan.name for plan in self._plans if plan.name not in self._streams]
        streams += f"; {few(unopened)} when asked for" if unopened else ""
        facts = {"socket": socket, "workers": self._workers} if self._options.log_format == "json" else {}
        self._log.say("info", f"ready: {socket}; streams {streams}; {self._workers} workers", facts)
        for text in (
            *resource_limits.too_many(self._config.workers.num_workers, resource_limits.own_cpu_count()),
            *native_library.warnings(),
        ):
            self._log("warning", text)
        self._starter.tell("ready")
        systemd.notify("READY=1", self._env)
        self._registry.open(self._streams)
        if self._options.embedded:
            self._leave_when_alone(EMBEDDED_FIRST_S)

    # -- events

    def step(self, event: Event) -> None:
        """Something has happened."""
        self._dispatcher.step(event)

    def _index_of(self, stream: str, seed: int, epoch: int, position: int, candidate: int) -> int:
        from loaderd.core.order import Order  # and with it numpy: nobody asks before a sample has hung or killed its worker

        opened = self._streams[stream]
        plan = opened.plan
        return Order(opened.facts.total, plan.split, plan.split_by, plan.shuffle).candidate(seed, epoch, position, candidate)

    # -- clients

    def _first_words(self, peer: Peer, message: Hello | Ask) -> None:
        if self._state == DRAINING:
            self._control.drop(peer)  # it sees EOF before an answer, and looks for a successor
        elif isinstance(message, Hello):
            self._registry.hello(peer, message)
        else:
            self._asked(peer, message)

    def _asked(self, peer: Peer, ask: Ask) -> None:
        try:
            check_protocol(ask.protocol)
        except LoaderdError as error:
            self._control.reject(peer, type(error).__name__, str(error))
            return
        if ask.what == "status":
            self._control.send(peer, Report(status.to_json(self.picture())))
            self._control.finish(peer)
        elif ask.what == "drain":
            self._control.send(
                peer, Report(status.to_json({"state": DRAINING, "pid": os.getpid(), "drain_s": self._config.daemon.drain_s}))
            )
            self._drain(f"asked to by {peer}")
        else:
            self._control.reject(peer, "ProtocolError", f"nobody knows what {ask.what!r} is; ask for status or drain")

    def _gone(self, peer: Peer) -> None:
        self._registry.gone(peer)
        if self._options.embedded and not self._starter.waits and not self._users():
            self._leave_when_alone(EMBEDDED_LAST_S)

    def _starter_left(self) -> None:
        """Before "ready", and others may have come meanwhile."""
        if self._options.embedded:
            self._leave_when_alone(EMBEDDED_LAST_S)

    def _no_sessions(self) -> None:
        if self._config.daemon.exit_when_idle_s > 0 and self._state == SERVING:
            self._arm_idle(self._config.daemon.exit_when_idle_s, self._idle)

    def _idle(self) -> None:
        if not self._registry.pendings:
            self._drain(f"no trainer for {self._config.daemon.exit_when_idle_s:g} s")

    def _leave_when_alone(self, delay_s: float) -> None:
        self._arm_idle(delay_s, self._alone)

    def _alone(self) -> None:
        if not self._control.peers:
            self._drain("the last user has gone")
        elif not self._users():
            self._leave_when_alone(EMBEDDED_LAST_S)  # somebody has just come and will speak, or be dropped

    def _users(self) -> bool:
        """Whether there is a connection whose end will be told to `_gone`."""
        return any(peer.spoken for peer in self._control.peers)

    def _arm_idle(self, delay_s: float, then: Callable[[], None]) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = self._loop.later(delay_s, then)

    # -- what it looks like

    def picture(self) -> dict[str, Any]:
        """The state as plain data, for `status`."""
        s, segments = self._config.daemon, self._segments
        return {
            "state": self._state,
            "doing": self._registry.progress() if self._state == STARTING or self._opening else "",
            "failed": self._registry.all_broken,
            **status.installed(),
            "socket": s.socket,
            "config": self._config.path,
            "turns": self._loop.turns,
            "lost_s": round(self._loop.lost_s, 3),
            "cpu_s": round(time.process_time(), 3),  # between two pictures: what scheduling and announcing the batches in between cost
            **status.merged(self._dispatcher.picture(), self._registry.picture(), self._seen_streams(), self._pool.picture()),
            "memory": {"limit": self._registry.memory, "segments": segments.live_bytes},
            "quarantine": {"path": s.quarantine, "count": self._quarantine.count, "tail": list(self._quarantine.tail)},
            "garbage": self._messages.garbage,
            "errors": list(self._log.errors),
        }

    def _seen_streams(self) -> dict[str, dict[str, Any]]:
        """Every stream as the config has it, and what was found where it has been opened."""
        return {plan.name: status.stream(plan, self._streams.get(plan.name), self._faults.get(plan.name, "")) for plan in self._plans}

    def _metrics_page(self) -> Page:
        return Page(200, status.prometheus(status.numbers(self.picture())), PROMETHEUS)

    def _health_page(self) -> Page:
        return Page(503, "every stream has failed\n") if self._registry.all_broken else Page(200, "ok\n")

    def _ready_page(self) -> Page:
        ready = self._state == SERVING and not self._registry.all_broken
        return Page(200 if ready else 503, f"{'failed' if self._registry.all_broken else self._state}\n")

    # -- end

    def _signalled(self, number: int) -> None:
        if self._state == DRAINING:
            self._loop.stop()
        else:
            self._drain(signal.Signals(number).name)

    def _drain(self, why: str) -> None:
        """Start nothing new, tell everybody, leave as soon as nothing is being made, within drain_s at the latest."""
        if self._state == DRAINING:
            return
        started, self._state = self._state, DRAINING
        self._log("info", f"draining: {why}")
        systemd.notify("STOPPING=1", self._env)
        self._control.stop_listening()
        # What is still made for nobody is not waited for long: it may be what hangs.
        patience_s = self._config.daemon.drain_s if self._registry.pendings else min(self._config.daemon.drain_s, ALONE_S)
        self._registry.close("drained")
        if started == STARTING:
            self._loop.stop()
            return
        self._loop.later(patience_s, self._loop.stop)
        self._loop.before_sleep(self._leave_if_done)
        self.step(Drain())

    def _leave_if_done(self) -> bool:
        done = self._dispatcher.idle and not self._messages.waiting
        if done:
            self._loop.stop()
        return done

    def _cannot_serve(self, why: str, level: str = "error") -> None:
        """Before "ready": the process ends with the reason."""
        self._log(level, why)
        self._starter.tell(why)
        self._code = EXIT_NO_START
        self._loop.stop()

    def _remove_files(self) -> None:
        """An embedded daemon leaves its log where something went wrong, and else nothing but what the config gives a name."""
        for path in paths.embedded_files(self._config.daemon.socket, self._config.daemon.quarantine) if self._code == EXIT_DRAINED else ():
            with suppress(FileNotFoundError):
                os.unlink(path)
