"""A daemon that listens: what it is made of, and how that is put together."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from types import TracebackType

from loaderd.core.events import Event, ProgressReceived
from loaderd.core.scheduler import Scheduler
from loaderd.core.verdict import Verdict
from loaderd.engine.base import Engine
from loaderd.server import process_duties
from loaderd.server.admission_control import AdmissionControl
from loaderd.server.bad_samples import BadSamples
from loaderd.server.dispatcher import ActionDispatcher, ActionHandlers
from loaderd.server.handover import Handover
from loaderd.server.idle_exit import IdleExit
from loaderd.server.listening import claim, hold_copies, listen, segment_budget
from loaderd.server.page.serving import PageServer, shows_samples
from loaderd.server.parts import Parts
from loaderd.server.phases import Opening, Phase, Serving
from loaderd.server.pool_limits import PoolLimits, pool_limits
from loaderd.server.readiness import ReadinessPipe
from loaderd.server.segment_budget import SegmentBudget
from loaderd.server.served_socket import ServedSocket
from loaderd.server.sessions import SessionRegistry
from loaderd.server.start_options import EXIT_DRAINED, EXIT_NO_START, DaemonSetup
from loaderd.server.startup import StartupReporter
from loaderd.server.status_pages import StatusPages
from loaderd.server.status_report import DaemonStatus
from loaderd.server.stream_catalog import StreamCatalog
from loaderd.server.takeover import TakingOver
from loaderd.server.verdict_reporter import VerdictReporter
from loaderd.system import resource_limits, systemd
from loaderd.system.control_socket import ControlListener, Peer
from loaderd.system.lockfile import AlreadyServed, LockFile
from loaderd.system.logs import Log
from loaderd.system.loop import Loop
from loaderd.system.peer_credentials import PeerGate
from loaderd.system.stderr import keep_named
from loaderd.system.zmq_router import MessageRouter
from loaderd_wire import paths
from loaderd_wire.messages import Ask, Hello, Progress


class Running:
    """A daemon that listens. It binds at once, so that clients can be told to wait.

    Attributes:
        code: Exit code of the process.
    """

    def __init__(
        self,
        setup: DaemonSetup,
        loop: Loop,
        log: Log,
        ready_pipe: ReadinessPipe,
        stack: ExitStack,
    ) -> None:
        """Put the daemon together and begin to open streams.

        Args:
            setup: What it was started with.
            loop: Its loop, which does not run yet.
            log: Its log.
            ready_pipe: Where whoever started it waits.
            stack: Takes what is to be closed at the end.

        Raises:
            CannotServe: The text says why.
        """
        self.code = EXIT_DRAINED
        self._setup = setup
        self._loop = loop
        self._log = log
        self._ready_pipe = ready_pipe
        config = setup.config
        self._reporter = VerdictReporter(
            loop, self._verdicts, log, lambda text: systemd.notify(text, setup.env)
        )
        limits = pool_limits(config, setup.root)
        # Whoever sees its connection end may start a successor at once: the lock is free by then.
        connections = stack.enter_context(ExitStack())
        gate, most, lock, locks = self._take_socket(limits.most, stack)
        self._bad_samples = BadSamples(config.daemon.quarantine, log)
        stack.callback(self._bad_samples.close)
        budget = segment_budget(loop, limits.memory, setup.root, stack)
        control, messages = listen(
            loop,
            config.daemon,
            gate,
            on_message=self._first_words,
            on_end=self._left,
            on_progress=self._progress,
            log=log,
            stack=stack,
            connections=connections,
            now=lock is not None,
        )
        engine = self._new_engine(limits.most)
        stack.callback(engine.close)
        parts = self._new_parts(limits, most, control, messages, budget, engine)
        self._dispatcher = parts.dispatcher
        self._parts = parts
        self._waits = lock is None  # for the daemon that serves the socket
        self._socket = ServedSocket(config.daemon.socket, lock, locks, control, messages)
        self._handover = Handover(self, parts, self._socket, gate.own)
        self._phase: Phase = Opening(self, parts)
        self._pages = StatusPages(parts, lambda: self._phase.name)
        self._page_server: PageServer | None = None
        if config.daemon.metrics:
            self._page_server = PageServer(
                config.daemon.metrics, parts, self._pages, self._bad_samples
            )
            stack.callback(self._page_server.close)
            if not self._waits:
                self._page_server.listen()
        self._watch()
        process_duties.take_up(loop, engine, setup.env)
        self._phase.begin()

    # -- what it is made of

    def _take_socket(
        self, num_workers: int, stack: ExitStack
    ) -> tuple[PeerGate, int, LockFile | None, ExitStack]:
        """Be the one daemon of the socket, or begin beside the one that is to hand it over.

        Returns:
            (who may attach, sessions that the file descriptors suffice for, the lock or None while
            another has it, what closes a lock).
        """
        config = self._setup.config
        gate, most = claim(config, num_workers)
        locks = stack.enter_context(ExitStack())
        lock = None
        try:
            lock = locks.enter_context(LockFile(config.daemon.socket))
        except AlreadyServed as served:
            if self._setup.options.embedded:
                raise
            if not self._setup.options.takeover:
                raise AlreadyServed(
                    f"{served}; end it with `loaderd drain`, or, if `loaderd serve` has started "
                    "it, follow it with `loaderd serve --takeover`"
                ) from None
        hold_copies(config.daemon, stack)
        if self._setup.options.embedded:
            with suppress(OSError):  # without a log it serves all the same
                keep_named(self._setup.stderr, config.daemon.socket + paths.LOG)
            self._log("info", "log_begins", f"{paths.LOG_BEGINS}: pid {os.getpid()}")
            stack.push(self._remove_files)
        return gate, most, lock, locks

    def _new_engine(self, num_workers: int) -> Engine:
        setup = self._setup
        config, options = setup.config, setup.options
        first = [stream for stream in config.streams if options.first_stream in ("", stream.name)]
        return setup.make_engine(
            self._loop,
            first,
            config.workers,
            late=[stream for stream in config.streams if stream not in first],
            num_workers=num_workers,
            folder=config.folder,
            emit=self._step,
            log=self._log,
            oom_kills=lambda: resource_limits.oom_kills(setup.root),
            pictures=shows_samples(config.daemon),
        )

    def _new_parts(
        self,
        limits: PoolLimits,
        most: int,
        control: ControlListener,
        messages: MessageRouter,
        budget: SegmentBudget,
        engine: Engine,
    ) -> Parts:
        """What works with sockets, memory and engine."""
        setup, loop, log = self._setup, self._loop, self._log
        config, options = setup.config, setup.options
        startup = StartupReporter(loop, engine.doing, log)
        catalog = StreamCatalog(
            config.streams, engine, startup, answered=self._stream_answered, log=log
        )
        registry = SessionRegistry(
            control,
            messages,
            budget,
            engine,
            life=f"{os.getpid()}-{os.urandom(4).hex()}",
            step=self._step,
            attached=self._session_attached,
            emptied=self._sessions_ended,
            log=log,
        )
        admission = self._new_admission(control, budget, registry, engine, catalog, startup, most)
        return Parts(
            config=config,
            options=options,
            limits=limits,
            env=setup.env,
            loop=loop,
            log=log,
            ready_pipe=self._ready_pipe,
            startup=startup,
            control=control,
            messages=messages,
            budget=budget,
            engine=engine,
            registry=registry,
            admission=admission,
            catalog=catalog,
            dispatcher=self._new_dispatcher(
                limits, engine, messages, registry, admission, catalog, budget
            ),
            quarantine=self._bad_samples.kept,
            idle=IdleExit(
                loop, control, options.embedded, config.daemon.exit_when_idle_s, leave=self._drain
            ),
        )

    def _new_admission(
        self,
        control: ControlListener,
        budget: SegmentBudget,
        registry: SessionRegistry,
        engine: Engine,
        catalog: StreamCatalog,
        startup: StartupReporter,
        most: int,
    ) -> AdmissionControl:
        return AdmissionControl(
            self._loop,
            control,
            budget,
            registry,
            config_path=self._setup.config.path,
            names=catalog.names,
            wanted=catalog.want,
            progress=startup.text,
            edited=engine.edited,
            outdated=self._drain if self._setup.options.embedded else None,
            most=most,
            log=self._log,
            replay=self._setup.options.replay,
        )

    def _new_dispatcher(
        self,
        limits: PoolLimits,
        engine: Engine,
        messages: MessageRouter,
        registry: SessionRegistry,
        admission: AdmissionControl,
        catalog: StreamCatalog,
        budget: SegmentBudget,
    ) -> ActionDispatcher:
        workers = self._setup.config.workers
        scheduler = Scheduler(
            (),
            workers=limits.start,
            remote_workers=workers.ray.num_workers if workers.ray else 0,
            most_workers=limits.most if workers.num_workers == "auto" else 0,
            sample_timeout_s=workers.sample_timeout_s,
            worker_memory=workers.worker_memory or 0,
            cpus=limits.cpus,
            all_cpus=limits.all_cpus,
            replay=self._setup.options.replay,
            index_of=catalog.index_of,
        )
        handlers = ActionHandlers(
            engine=engine,
            send_message=messages.send,
            grow=registry.grow,
            drop=registry.drop,
            quarantine=self._bad_samples.add,
            stream_broken=admission.stream_broken,
            cannot_boot=self.fail,
            log=self._log,
            free_bytes=budget.free_bytes,
        )
        return ActionDispatcher(scheduler, handlers, self._loop)

    def _watch(self) -> None:
        """Signals, slow turns, and whoever started the daemon."""
        loop = self._loop
        process_duties.watch_signals(loop, self._setup.options.embedded, self._signalled, self._log)
        loop.on_slow = lambda spent_s, text: self._phase.slow_turn(spent_s, text)
        self._ready_pipe.watch(lambda: self._phase.starter_left())

    # -- what its phase needs of it

    def enter(self, phase: Phase) -> None:
        """Make it the phase that is told of everything, then begin it."""
        self._phase = phase
        phase.begin()

    def opened(self) -> None:
        """Serve, or take the socket over first."""
        self.enter(
            TakingOver(self, self._parts, self._socket, self._alone)
            if self._waits
            else Serving(self, self._parts)
        )

    def takeover(self, peer: Peer) -> None:
        """Hand the socket over to a successor, if that can be."""
        self._handover.asked(peer, ready=isinstance(self._phase, Serving))

    def fail(self, why: str) -> None:
        """Log why, tell whoever waits for the start, and end with EXIT_NO_START."""
        self._log("error", "cannot_serve", why)
        self._ready_pipe.tell(why)
        self.code = EXIT_NO_START
        self._loop.stop()

    def status(self) -> DaemonStatus:
        """All that it tells about itself, as of now."""
        return self._pages.status()

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
        self._handover.left(peer)
        self._phase.left(peer)

    def _session_attached(self) -> None:
        self._reporter.session_attached()
        if self._page_server is not None:
            self._page_server.session_attached()

    def _alone(self) -> None:
        """The daemon before has ended: its address for metrics is free."""
        if self._page_server is not None:
            self._page_server.listen_when_free()

    def _verdicts(self) -> list[Verdict]:
        return self._dispatcher.verdicts()

    def _sessions_ended(self) -> None:
        self._phase.sessions_ended()

    def _stream_answered(self, name: str) -> None:
        self._phase.stream_answered(name)

    def _drain(self, why: str) -> None:
        self._phase.drain(why)

    def _signalled(self, number: int) -> None:
        self._phase.signalled(number)

    # -- the end

    def _remove_files(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """An embedded daemon leaves what the config names, and where it has failed its log."""
        if error is None and self.code == EXIT_DRAINED:
            daemon = self._setup.config.daemon
            for path in paths.embedded_files(daemon.socket, daemon.quarantine):
                with suppress(FileNotFoundError):
                    os.unlink(path)
