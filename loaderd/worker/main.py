"""A worker's life.

It boots user code, then takes orders from the engine, one at a time, until told to leave or killed.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace

from loaderd.config.stream import StreamConfig
from loaderd.core.jobs import Job
from loaderd.data.errors import SourceError, user_traceback
from loaderd.data.user_code import build
from loaderd.data.user_modules import import_all, imported, put_first
from loaderd.engine.channel import Channel, ChannelClosed
from loaderd.engine.messages import (
    Doing,
    Leave,
    MapSegment,
    NewModules,
    NoteLine,
    Probe,
    SegmentUnmapped,
    Setup,
    StreamInfo,
    UnmapSegment,
    UseStream,
    WorkerBooted,
    WorkerFault,
)
from loaderd.engine.scoreboard import StatusLine
from loaderd.system.resource_limits import reset_affinity
from loaderd.worker import generator_watch, process_setup
from loaderd.worker.imports import Imports
from loaderd.worker.job_runner import JobRunner
from loaderd.worker.makers import makers_of
from loaderd.worker.probe import probe_staged
from loaderd.worker.segments import MappedSegment
from loaderd.worker.streams import OpenStreams
from loaderd_wire.errors import ProtocolError
from loaderd_wire.plain_text import plain

MAX_TEXT = 60_000
FAULT_EXIT = 70  # exit code of a worker that has said why


def run(parent: int, sock: int, board: int, line: int, output: int, dump: int) -> int:
    """Be a worker until the end; returns the exit code.

    The descriptors are used up. `parent`: pid of the fork server.
    """
    process_setup.become_worker(parent, output, dump)
    channel = Channel(socket.socket(fileno=sock), blocking=True)
    process_setup.disarm_children(channel.sock)
    own = os.getpid()
    try:
        stamps = StatusLine(board, line)
        os.close(board)
        WorkerMain(channel, stamps).run()
    except ChannelClosed:
        return 0
    except BaseException as error:  # noqa: BLE001 - the top-level handler: whatever it is, it is told and ends this process alone
        if os.getpid() == own:
            _confess(channel, error)
        return FAULT_EXIT
    finally:
        process_setup.flush_output()
    return 0


def _confess(channel: Channel, error: BaseException) -> None:
    if isinstance(error, SourceError):
        text = f"{error}\n{error.traceback}"
    else:
        text = f"{type(error).__name__}: {error}\n{user_traceback(error) or _own_traceback(error)}"
    try:
        channel.send(WorkerFault(plain(text).strip()[:MAX_TEXT]))
    except (ChannelClosed, ProtocolError):
        return  # the exit code has to do


def _own_traceback(error: BaseException) -> str:
    import traceback

    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


class WorkerMain:
    """Orders in, answers out, on one channel.

    Raises ChannelClosed when the engine is gone, and whatever ends the worker.
    """

    def __init__(self, channel: Channel, line: StatusLine) -> None:
        self._channel = channel
        self._line = line
        self._mapped: dict[int, MappedSegment] = {}

    def run(self) -> None:
        """Obey orders until Leave comes or the engine closes the channel."""
        setup = self._channel.receive()
        if setup is None or not isinstance(setup[0], Setup):
            raise ProtocolError("the first message to a worker must be Setup")
        self._boot(setup[0])
        self._channel.send(WorkerBooted())
        while (received := self._channel.receive()) is not None:
            order, fds = received
            if isinstance(order, Leave):
                return
            self._obey(order, fds)
            process_setup.flush_output()

    def _boot(self, setup: Setup) -> None:
        """Import all user code and call `init`; what fails is told before the worker is ready."""
        self._plans = {plan.name: plan for plan in map(StreamConfig.from_json, setup.plans)}
        put_first(setup.folder)
        generator_watch.install()
        for plan in self._plans.values():
            try:
                import_all([plan], "", lambda text: self._channel.send(Doing(text)))
            except SourceError:
                if not setup.lenient:
                    raise
        import_all([], setup.init, lambda text: self._channel.send(Doing(text)))
        self._imported = imported(setup.folder)
        self._imported.look()
        process_setup.pin_native_threads()
        process_setup.tell_torch(setup.place, setup.num_workers, 0, None)
        if setup.init:
            self._channel.send(Doing(f"calling init, {setup.init}"))
            build(setup.init, "init", setup.place)
            process_setup.pin_native_threads()
        if setup.reset_affinity:  # what was imported may have pinned this process
            reset_affinity()
        self._open_streams = OpenStreams(
            list(self._plans.values()), setup.place, setup.num_workers, pictures=setup.pictures
        )
        self._runner = JobRunner(self._open_streams, self._mapped, self._line)
        Imports(self._line, self._open_streams.torch_came).watch()

    def _obey(self, order: object, fds: list[int]) -> None:
        if isinstance(order, Job):
            done = self._runner.run(order)
            new = self._imported.news()
            # told first: rows that were made by other code than those of other workers are not to
            # be delivered
            if new:
                self._channel.send(NewModules(new))
            self._channel.send(done)
            self._line.idle()
            for text in self._open_streams.notes():
                self._channel.send(NoteLine(plain(text)))
        elif isinstance(order, MapSegment):
            self._mapped[order.segment.segment] = MappedSegment(order, fds[0])
            os.close(fds[0])
        elif isinstance(order, UnmapSegment):
            mapped = self._mapped.pop(order.segment, None)
            if mapped is not None:
                mapped.close()
            self._channel.send(SegmentUnmapped(order.segment))
        elif isinstance(order, UseStream):
            self._open_streams.use(order)
        elif isinstance(order, Probe):
            plan = StreamConfig.from_json(order.plan) if order.plan else self._plans[order.stream]
            found = probe_staged(self._open_streams, self._line, plan, self._imported)
            if order.compare and isinstance(found, StreamInfo):
                makers = makers_of(self._open_streams.get(order.stream), self._line)
                found = replace(found, makers=makers)
            self._channel.send(found)
        else:
            raise ProtocolError(f"a worker does not know what to do with {order!r:.100}")


def main(argv: list[str]) -> int:
    """Be a worker in an interpreter of its own.

    Args:
        argv: One JSON list, the first six arguments of `run`.
    """
    return run(*json.loads(argv[0]))
