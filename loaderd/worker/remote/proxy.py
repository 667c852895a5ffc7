"""The process that stands for a worker on another host.

To the engine it is a worker. It has an actor on another node of a Ray cluster start the real one,
hands it the jobs, copies what comes back into the slots, and ends as that ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import traceback
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from loaderd.core.jobs import Done, Job, JobKind
from loaderd.engine.channel import Channel, ChannelClosed
from loaderd.engine.launch import ENVIRONMENT
from loaderd.engine.messages import (
    ORDERS,
    Doing,
    Leave,
    MapSegment,
    OpenError,
    Probe,
    RemoteEnded,
    RemoteSeat,
    RemoteStream,
    SegmentUnmapped,
    Setup,
    UnmapSegment,
    WorkerBooted,
    WorkerFault,
)
from loaderd.engine.scoreboard import StatusLine
from loaderd.engine.stream_table import use_of
from loaderd.system import ray_cluster
from loaderd.system.ray_address import CLIENT
from loaderd.system.ray_cluster import Actor, RayError
from loaderd.worker import process_setup
from loaderd.worker.job_runner import move_up
from loaderd.worker.main import FAULT_EXIT, MAX_TEXT
from loaderd.worker.makers import own_code
from loaderd.worker.remote.calls import Calls, Lost
from loaderd.worker.remote.child import Death
from loaderd.worker.remote.comparison import difference
from loaderd.worker.remote.node_worker import Answer, NodeWorker
from loaderd.worker.remote.rows import spans
from loaderd.worker.segments import MappedSegment
from loaderd_wire.errors import ProtocolError

CONNECT_S = 45.0  # to become a part of the cluster
HOST_S = 60.0  # for the actor to answer first: it imports loaderd
BOOT_S = 120.0  # for the worker to import the user's code
OPEN_FACTOR = 10  # as of a local worker: to open a dataset takes longer than a sample


def run(parent: int, sock: int, board: int, line: int, output: int, dump: int) -> int:
    """Be a proxy until the end; returns the exit code. The descriptors are used up."""
    process_setup.become_worker(parent, output, dump)
    channel = Channel(socket.socket(fileno=sock), blocking=True)
    stamps = StatusLine(board, line)
    os.close(board)
    # for what its worker prints; what Ray itself has to say of a node is in its own logs
    prints, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    for fd in (1, 2):
        os.dup2(nothing, fd)
    try:
        Proxy(channel, stamps, prints, dump).run()
    except ChannelClosed:
        return 0
    except (Lost, RayError) as error:
        _give_up(channel, str(error))
    except BaseException as error:  # noqa: BLE001 - the top-level handler: whatever Ray raises, no sample is the cause
        _give_up(channel, f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
    return 0


def _give_up(channel: Channel, why: str) -> NoReturn:
    """Say why, and end at once: without a word on how its worker ended, no sample is the cause."""
    with contextlib.suppress(ChannelClosed):
        channel.send(WorkerFault(why[:MAX_TEXT]))
    os._exit(FAULT_EXIT)


@dataclass(frozen=True, slots=True)
class _Sent:
    job: Job
    answer: Future[Any]


class Proxy:
    """Orders of the engine in, answers out; between the two, calls of the actor.

    Raises ChannelClosed when the engine is gone, Lost and RayError when the other host is.
    """

    def __init__(self, channel: Channel, line: StatusLine, output: int, dump: int) -> None:
        self._channel = channel
        self._line = line
        self._output = output
        self._dump = dump
        self._mapped: dict[int, MappedSegment] = {}
        self._sent: deque[_Sent] = deque()
        self._before: list[bytes] = []  # orders that go out with the next job
        self._host, self._ready = "", False

    def run(self) -> None:
        """Have the worker started, then obey orders until Leave comes."""
        setup, seat = self._receive()[0], self._receive()[0]
        if not isinstance(setup, Setup) or not isinstance(seat, RemoteSeat):
            raise ProtocolError("the first messages to a proxy must be Setup and RemoteSeat")
        try:
            self._boot(setup, seat)
            self._ready = True
            self._channel.send(WorkerBooted(self._host))
            while self._turn():
                pass
        except Lost as error:
            raise Lost(f"node {self._host}: {error}" if self._host else str(error)) from None

    def _boot(self, setup: Setup, seat: RemoteSeat) -> None:
        self._open_s = OPEN_FACTOR * seat.sample_timeout_s
        where = f"Ray at {seat.address}"
        self._channel.send(Doing(f"connecting to {where}"))
        with self._limit(CONNECT_S, f"{where} is not reachable: no answer in {CONNECT_S:g} s"):
            ray_cluster.connect(seat.address, seat.folder)
        process_setup.ignore_signals()  # Ray has handlers of its own
        resources = json.loads(seat.resources)
        room = f"waiting for {where} to find room for {ray_cluster.written(resources)}"
        self._channel.send(Doing(room, reached=True))
        actor = Actor(
            NodeWorker,
            resources,
            beside=("look", "stack"),
            elsewhere=not seat.address.startswith(CLIENT),  # else it is so anyway
        )
        process_setup.dump_no_stacks()
        calls = self._calls = Calls(actor, self._line, self._output, self._dump, self._tell)
        calls.result(calls.woken(actor.ready()), 0, "")
        self._host, code = calls.result(calls.begin("host"), HOST_S, "its first answer")
        if code != own_code():
            raise Lost("it is refused: it has another version of loaderd; install the same")
        settings = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        booted = calls.begin("boot", ORDERS.encode(setup), settings, bool(seat.folder))
        self._checked(calls.result(booted, BOOT_S, "its start"))
        for stream in seat.streams:
            self._open(stream)

    def _open(self, stream: RemoteStream) -> None:
        """Have the worker open a stream. Raises Lost if its samples would be others there."""
        name = stream.info.stream
        probe = ORDERS.encode(Probe(name, compare=True, plan=stream.plan))
        asked = self._calls.begin("ask", [*self._before, probe])
        self._before = []
        answer = self._checked(self._calls.result(asked, self._open_s, f"opening stream {name!r}"))
        found = ORDERS.decode(answer.messages[-1])
        if isinstance(found, OpenError):
            raise Lost(f"it is refused: stream {name!r} cannot be opened there: {found.text}")
        if text := difference(stream.info, found):
            raise Lost(f"it is refused: stream {name!r}: {text}")
        self._before.append(ORDERS.encode(use_of(found, stream.plan)))

    def _turn(self) -> bool:
        """Wait for an order or an answer, and deal with it. Returns False after Leave."""
        at_work = bool(self._sent)
        ordered = self._calls.wait(self._channel.fileno(), looks=at_work, rarely=not at_work)
        self._finish_first()
        if not ordered:
            return True
        order, fds = self._receive()
        if isinstance(order, Leave):
            return False
        self._obey(order, fds)
        return True

    def _obey(self, order: object, fds: list[int]) -> None:
        if isinstance(order, Job):
            calls = [*self._before, ORDERS.encode(order)]
            self._before = []
            self._sent.append(_Sent(order, self._calls.begin("ask", calls)))
        elif isinstance(order, MapSegment):
            self._mapped[order.segment.segment] = MappedSegment(order, fds[0])
            os.close(fds[0])
            self._before.append(ORDERS.encode(order))
        elif isinstance(order, UnmapSegment):
            mapped = self._mapped.pop(order.segment, None)
            if mapped is not None:
                mapped.close()
            self._before.append(ORDERS.encode(order))
            self._channel.send(SegmentUnmapped(order.segment))
            if not self._sent:  # nothing may come for long
                self._calls.begin("ask", self._before)
                self._before = []
        elif isinstance(order, RemoteStream):
            while self._sent:
                self._calls.wait(-1)
                self._finish_first()
            self._open(order)
        else:
            raise ProtocolError(f"a proxy does not know what to do with {order!r:.100}")

    def _finish(self, job: Job, answer: Answer) -> None:
        """Copy what a job has made into its slot, and tell the engine."""
        *others, done = map(ORDERS.decode, answer.messages)
        if not isinstance(done, Done) or done.job != job.job:
            raise Lost(f"its answer to job {job.job} is {done!r:.100}")
        if done.changed:
            raise Lost(f"its data is not what it was: {done.changed}")
        if job.kind != JobKind.TRIAL:
            slot = self._mapped[job.segment].slot(job.slot)
            where = spans(job, done, slot.layout, answer.body)
            if [size for _, size in where] != [len(each) for each in answer.rows]:
                raise Lost(f"its rows of job {job.job} have another size than these have here")
            if job.kind == JobKind.COMPACT:
                move_up(slot, job, np.frombuffer(answer.rows[0], np.int64))
            else:
                for (first, _), each in zip(where, answer.rows, strict=True):
                    slot.write(first, each)
        for message in others:
            if not isinstance(message, SegmentUnmapped):
                self._channel.send(message)
        self._channel.send(done)
        if not self._sent:
            self._line.idle()
            self._calls.look()  # for what it has printed

    def _finish_first(self) -> None:
        """Deal with the answers that have come, in the order of the jobs."""
        while self._sent and self._sent[0].answer.done():
            sent = self._sent.popleft()
            self._finish(sent.job, self._checked(self._calls.value(sent.answer)))

    def _checked(self, answer: Answer) -> Answer:
        """The answer of a worker that lives; else end as that has ended."""
        if answer.death is not None:
            self._die(answer.death, [ORDERS.decode(raw) for raw in answer.messages])
        return answer

    def _die(self, death: Death, said: list[object]) -> NoReturn:
        """End, and tell how the worker has ended, with its word on the board and its stacks."""
        self._calls.show(death.output)
        self._line.copy(death.word, death.key)
        if death.stack:
            os.write(self._dump, death.stack.encode("utf-8", "replace"))
        with contextlib.suppress(ChannelClosed):
            for each in said:
                if isinstance(each, WorkerFault):
                    self._channel.send(each)
            self._channel.send(RemoteEnded(death.status, death.out_of_memory))
        os._exit(FAULT_EXIT)

    def _receive(self) -> tuple[object, list[int]]:
        received = self._channel.receive()
        assert received is not None  # it blocks
        return received

    def _tell(self, doing: str) -> None:
        if doing and not self._ready:
            self._channel.send(Doing(f"{doing} on node {self._host}"))

    @contextlib.contextmanager
    def _limit(self, seconds: float, why: str) -> Iterator[None]:
        """Give up if what is done takes longer; it may not come back to Python."""
        timer = threading.Timer(seconds, _give_up, (self._channel, why))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def main(argv: list[str]) -> int:
    """Be a proxy in an interpreter of its own.

    Args:
        argv: One JSON list, the six arguments of `run`.
    """
    return run(*json.loads(argv[0]))
