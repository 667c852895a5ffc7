"""The daemon's process: what it is made of, how it is put together, how it ends."""

from __future__ import annotations

import functools
import os
import signal
import time
import traceback
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any

from loaderd.config.load import Config
from loaderd.core.actions import Quarantine as SetAside
from loaderd.core.events import Event, ProgressReceived
from loaderd.core.scheduler import Scheduler
from loaderd.engine.base import Engine, MakeEngine
from loaderd.idle_exit import IdleExit
from loaderd.phases import Opening, Parts, Phase, Serving
from loaderd.server import status as report
from loaderd.server.dispatcher import ActionDispatcher, ActionHandlers
from loaderd.server.readiness import ReadinessPipe
from loaderd.server.sessions import SessionRegistry
from loaderd.server.startup import StartupReporter
from loaderd.start_options import EXIT_DRAINED, EXIT_FAULT, EXIT_NO_START, StartOptions
from loaderd.stream_catalog import StreamCatalog
from loaderd.system import file_limits, resource_limits
from loaderd.system.control_socket import ControlListener, Peer
from loaderd.system.http import PROMETHEUS, HttpServer, Page, parse_address
from loaderd.system.lockfile import AlreadyServed, CannotServe, LockFile, prepare_folder
from loaderd.system.logs import Log, QuarantineLog, stderr_sink
from loaderd.system.loop import Loop
from loaderd.system.memfd import SegmentStore
from loaderd.system.peer_credentials import PeerGate
from loaderd.system.zmq_router import MessageRouter
from loaderd_wire import paths
from loaderd_wire.messages import Ask, Hello, Progress


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
        self._make_engine = make_engine
        self._env = env
        self._root = root
        self._stderr = stderr

    def run(self) -> int:
        """From start to end, in the main thread. Returns EXIT_DRAINED, EXIT_NO_START or EXIT_FAULT."""
        options = self._options
        with Loop() as loop:
            starter = ReadinessPipe(loop, options.ready_fd)
            ours = self._config.daemon.socket + paths.LOG if options.embedded else ""
            log = Log(stderr_sink(loop, self._stderr, path=ours), form=options.log_format, level=options.log_level)
            try:
                with ExitStack() as stack:
                    running = Running(self._config, options, loop, log, starter, stack, self._make_engine, env=self._env, root=self._root)
                    loop.run()
                return running.code
            except CannotServe as error:
                usual = options.embedded and isinstance(error, AlreadyServed)  # of eight ranks that start one at once
                log("info" if usual else "error", str(error))
                starter.tell(str(error))
                return EXIT_NO_START
            except Exception:  # noqa: BLE001  the top-level handler: a fault of ours is reported and ends the process
                log("error", "the daemon has failed:\n" + traceback.format_exc())
                return EXIT_FAULT
            finally:
                starter.tell("")
                log.close()


class Running:
    """A daemon that listens. It binds at once, so that clients can be told to wait.

    stack: takes what is to be closed at the end. code: of the end of the process. Raises CannotServe.
    """

    def __init__(
        self,
        config: Config,
        options: StartOptions,
        loop: Loop,
        log: Log,
        starter: ReadinessPipe,
        stack: ExitStack,
        make_engine: MakeEngine,
        *,
        env: Mapping[str, str],
        root: str,
    ) -> None:
        self.code = EXIT_DRAINED
        self._log = log
        self._starter = starter
        self._loop = loop
        number = config.workers.num_workers
        num_workers = number if isinstance(number, int) else resource_limits.own_cpu_count()
        gate, most = claim(config, num_workers)
        # Whoever sees its connection end may start a successor at once: the lock is free by then.
        connections = stack.enter_context(ExitStack())
        stack.enter_context(LockFile(config.daemon.socket))
        if options.embedded:
            log("info", f"{paths.LOG_BEGINS}: pid {os.getpid()}")
            stack.push(functools.partial(self._remove_files, config))
        self._quarantine = QuarantineLog(config.daemon.quarantine)
        stack.callback(self._quarantine.close)
        segments = SegmentStore(loop)
        stack.callback(segments.close)
        control, messages = self._listen(config, gate, stack, connections)
        engine = self._new_engine(config, options, num_workers, make_engine, root)
        stack.callback(engine.close)
        startup = StartupReporter(loop, engine.doing, log)
        catalog = StreamCatalog(config.streams, engine, startup, answered=self._stream_answered, log=log)
        registry = SessionRegistry(
            loop,
            control,
            messages,
            segments,
            engine,
            config_path=config.path,
            names=catalog.names,
            wanted=catalog.want,
            progress=startup.text,
            life=f"{os.getpid()}-{os.urandom(4).hex()}",
            memory=config.daemon.memory if config.daemon.memory is not None else resource_limits.free_bytes(root) // 2,
            most=most,
            step=self._step,
            emptied=self._sessions_ended,
            outdated=self._drain if options.embedded else None,
            log=log,
            rooms=lambda: resource_limits.rooms(root),
        )
        self._dispatcher = self._new_dispatcher(config, num_workers, engine, messages, registry, catalog)
        idle = IdleExit(loop, control, options.embedded, config.daemon.exit_when_idle_s, leave=self._drain)
        self._parts = Parts(
            config, options, num_workers, env, loop, log, starter, startup, control, messages, segments, engine, registry, catalog,
            self._dispatcher, self._quarantine, idle,
        )  # fmt: skip
        self._watch()
        self._phase: Phase = Opening(self, self._parts)
        self._phase.begin()

    # -- what it is made of

    def _listen(self, config: Config, gate: PeerGate, stack: ExitStack, connections: ExitStack) -> tuple[ControlListener, MessageRouter]:
        loop, daemon = self._loop, config.daemon
        try:
            control = ControlListener(loop, daemon.socket, gate=gate, on_message=self._first_words, on_end=self._left, log=self._log)
            connections.callback(control.close)
            stack.callback(control.stop_listening)
            uids = gate.uids if gate.open else ()
            path = daemon.socket + paths.MESSAGES
            messages = MessageRouter(loop, path, mode=gate.mode, uids=uids, on_progress=self._progress, log=self._log)
            stack.callback(messages.close)
        except OSError as error:
            raise CannotServe(f"{daemon.socket}: {error.strerror or error}; set another [daemon] socket") from None
        if daemon.metrics:
            pages = {"/metrics": self._metrics_page, "/healthz": self._health_page, "/readyz": self._ready_page}
            try:
                stack.callback(HttpServer(loop, parse_address(daemon.metrics), pages).close)
            except (OSError, ValueError) as error:
                raise CannotServe(f"metrics = {daemon.metrics!r}: {error}; set another [daemon] metrics") from None
        return control, messages

    def _new_engine(self, config: Config, options: StartOptions, num_workers: int, make_engine: MakeEngine, root: str) -> Engine:
        first = [plan for plan in config.streams if options.first_stream in ("", plan.name)]
        return make_engine(
            self._loop,
            first,
            config.workers,
            late=[plan for plan in config.streams if plan not in first],
            num_workers=num_workers,
            folder=config.folder,
            emit=self._step,
            log=self._log,
            oom_kills=lambda: resource_limits.oom_kills(root),
        )

    def _new_dispatcher(
        self, config: Config, num_workers: int, engine: Engine, messages: MessageRouter, registry: SessionRegistry, catalog: StreamCatalog
    ) -> ActionDispatcher:
        scheduler = Scheduler(
            (),
            workers=num_workers,
            sample_timeout_s=config.workers.sample_timeout_s,
            worker_memory=config.workers.worker_memory or 0,
            index_of=catalog.index_of,
        )
        handlers = ActionHandlers(
            engine=engine,
            send_message=messages.send,
            grow=registry.grow,
            drop=registry.drop,
            quarantine=self._set_aside,
            stream_broken=registry.stream_broken,
            cannot_boot=self.fail,
            log=self._log,
        )
        return ActionDispatcher(scheduler, handlers, self._loop)

    def _watch(self) -> None:
        """Signals, slow turns, and whoever started the daemon."""
        loop = self._loop
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.on_signal(number, functools.partial(self._signalled, number))
        for number in (signal.SIGUSR1, signal.SIGUSR2):  # what a scheduler sends to all of a job, for the trainer to save its state
            loop.on_signal(number, functools.partial(self._log, "info", f"{number.name} is the trainer's affair: nothing is done"))
        loop.on_slow = lambda spent_s, text: self._phase.slow_turn(spent_s, text)
        self._starter.watch(lambda: self._phase.starter_left())

    # -- what its phase needs of it

    def enter(self, phase: Phase) -> None:
        self._phase = phase
        phase.begin()

    def fail(self, why: str) -> None:
        self._log("error", why)
        self._starter.tell(why)
        self.code = EXIT_NO_START
        self._loop.stop()

    def status(self) -> str:
        return report.to_json(self.picture())

    # -- what it is told

    def _step(self, event: Event) -> None:
        self._dispatcher.step(event)

    def _progress(self, session: int, progress: Progress) -> None:
        self._dispatcher.step(ProgressReceived(session, progress))

    def _first_words(self, peer: Peer, message: Hello | Ask) -> None:
        if isinstance(message, Hello):
            self._phase.hello(peer, message)
        else:
            self._phase.ask(peer, message)

    def _left(self, peer: Peer) -> None:
        self._phase.left(peer)

    def _sessions_ended(self) -> None:
        self._phase.sessions_ended()

    def _stream_answered(self, name: str) -> None:
        self._phase.stream_answered(name)

    def _drain(self, why: str) -> None:
        self._phase.drain(why)

    def _signalled(self, number: int) -> None:
        self._phase.signalled(number)

    def _set_aside(self, action: SetAside) -> None:
        sample = action.sample
        facts = {name: getattr(sample, name) for name in sample.__slots__}
        self._quarantine.add({"stream": action.stream, "epoch": action.epoch, **facts})
        self._log("warning", f"stream {action.stream!r}, epoch {action.epoch}: {sample.line()}")
        trouble = self._quarantine.trouble()
        if trouble:
            self._log("error", trouble)

    # -- what it looks like

    def picture(self) -> dict[str, Any]:
        """The state as plain data, for `status`."""
        parts = self._parts
        registry, daemon = parts.registry, parts.config.daemon
        return {
            "state": self._phase.name,
            "doing": parts.startup.text(),
            "failed": registry.all_broken,
            **report.installed(),
            "socket": daemon.socket,
            "config": parts.config.path,
            "turns": self._loop.turns,
            "lost_s": round(self._loop.lost_s, 3),
            "cpu_s": round(time.process_time(), 3),  # between two pictures: what scheduling and announcing the batches in between cost
            **report.merged(self._dispatcher.picture(), registry.picture(), parts.catalog.picture(), parts.engine.picture()),
            "memory": {"limit": registry.memory, "segments": parts.segments.live_bytes},
            "quarantine": {"path": daemon.quarantine, "count": self._quarantine.count, "tail": list(self._quarantine.tail)},
            "garbage": parts.messages.garbage,
            "errors": list(self._log.errors),
        }

    def _metrics_page(self) -> Page:
        return Page(200, report.prometheus(report.numbers(self.picture())), PROMETHEUS)

    def _health_page(self) -> Page:
        return Page(503, "every stream has failed\n") if self._parts.registry.all_broken else Page(200, "ok\n")

    def _ready_page(self) -> Page:
        failed = self._parts.registry.all_broken
        ready = isinstance(self._phase, Serving) and not failed
        return Page(200 if ready else 503, f"{'failed' if failed else self._phase.name}\n")

    # -- the end

    def _remove_files(
        self, config: Config, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """An embedded daemon leaves its log where something went wrong, and else nothing but what the config gives a name."""
        if error is None and self.code == EXIT_DRAINED:
            for path in paths.embedded_files(config.daemon.socket, config.daemon.quarantine):
                with suppress(FileNotFoundError):
                    os.unlink(path)


def claim(config: Config, num_workers: int) -> tuple[PeerGate, int]:
    """(who may attach, sessions that the descriptors suffice for), once the socket's folder is there. Raises CannotServe."""
    daemon = config.daemon
    too_long = paths.too_long(daemon.socket)
    if too_long:
        raise CannotServe(too_long)
    gate = PeerGate.here(daemon.allow_uids)
    prepare_folder(daemon.socket, uid=gate.own, default=config.default_socket, others=gate.open)
    limit = file_limits.raise_limit()
    most = file_limits.sessions_that_fit(limit, file_limits.in_use() + file_limits.A_WORKER * num_workers)
    if most == 0:
        raise CannotServe(f"RLIMIT_NOFILE is {limit}, which leaves room for no session; raise the hard limit (ulimit -Hn)")
    return gate, most
