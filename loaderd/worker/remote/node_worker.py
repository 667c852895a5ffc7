"""What Ray runs on another host: it starts a worker there, and hands it what its proxy sends.

It runs none of the user's code, so it answers at any time, whatever the worker does.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loaderd.config.stream import StreamConfig
from loaderd.core.jobs import Done, Job, JobKind
from loaderd.data.staging.folder import StageClaim
from loaderd.engine.channel import ChannelClosed
from loaderd.engine.messages import (
    ORDERS,
    Doing,
    MapSegment,
    OpenError,
    Probe,
    Setup,
    StreamInfo,
    UnmapSegment,
    WorkerBooted,
    WorkerFault,
)
from loaderd.system import ray_cluster
from loaderd.worker.makers import own_code
from loaderd.worker.remote.child import ChildWorker, Death
from loaderd.worker.remote.rows import body_used, spans
from loaderd_wire.slots import SlotLayout, slot_layout

ANSWERS = (WorkerBooted, StreamInfo, OpenError, Done)  # each ends what was asked for


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of some orders.

    Attributes:
        messages: What the worker has said, encoded, in order.
        body: Bytes of the slot's body that a collated batch takes.
        rows: The bytes that the job has written; see `rows.spans`.
        death: How the worker has ended; None if it lives.
    """

    messages: tuple[bytes, ...]
    body: int = 0
    rows: tuple[Any, ...] = ()
    death: Death | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """What the worker is doing.

    Attributes:
        word: Its word on the status board.
        key: Of the sample that it is at.
        doing: What it does before it is ready; "" for nothing long.
        output: What it has printed since the last look.
    """

    word: int
    key: str
    doing: str
    output: bytes


class _OwnSegment:
    """Memory for one slot of a segment of the daemon's host."""

    def __init__(self, order: MapSegment) -> None:
        segment = replace(order.segment, slots=1)
        self.order = replace(order, segment=segment)
        self.fd = os.memfd_create("loaderd-rows", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, segment.slot_bytes)
        self.map = mmap.mmap(self.fd, segment.slot_bytes)
        self.layout: SlotLayout = slot_layout(
            () if order.collated else order.fields,
            order.rows,
            tail_row_bytes=segment.tail_row_bytes,
            body_bytes=segment.body_bytes,
        )

    def close(self) -> None:
        os.close(self.fd)
        with contextlib.suppress(BufferError):  # an answer is on its way: it goes with that
            self.map.close()


class NodeWorker:
    """One worker on this host. `look` and `stack` may be called from another thread."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._child: ChildWorker | None = None
        self._segments: dict[int, _OwnSegment] = {}
        self._doing = ""
        self._claims: dict[str, StageClaim] = {}

    def host(self) -> tuple[str, str]:
        """(name of this host, a hash over the loaderd that is installed here)."""
        return socket.gethostname(), own_code()

    def boot(self, setup: bytes, settings: Mapping[str, str], travels: bool) -> Answer:
        """Start the worker and wait until it is ready.

        Args:
            setup: What it is told first.
            settings: Of its environment.
            travels: The user's code has come along, and lies in this process's folder.
        """
        order = ORDERS.decode(setup)
        assert isinstance(order, Setup)
        folder = os.getcwd() if travels else ""
        paths = [*([folder] if folder else []), *ray_cluster.paths()]
        self._child = ChildWorker(settings, paths)
        return self._exchange([replace(order, folder=folder)], asks=True)

    def ask(self, orders: Sequence[bytes]) -> Answer:
        """Hand on orders, and wait for the answer to the last one, if it is one that has any."""
        decoded = [ORDERS.decode(order) for order in orders]
        last = decoded[-1]
        if not isinstance(last, Job):
            return self._exchange(decoded, asks=isinstance(last, Probe))
        answer = self._exchange([*decoded[:-1], replace(last, slot=0)], asks=True)
        own = self._segments.get(last.segment)
        if answer.death is not None or own is None:
            return answer
        done = ORDERS.decode(answer.messages[-1])
        assert isinstance(done, Done)
        chunk = own.map[done.offset : done.offset + done.size]
        body = 0
        if last.kind == JobKind.BATCH and chunk:
            body = body_used([chunk], own.layout.body_offset)
        rows = tuple(
            np.frombuffer(own.map, np.uint8, size, first)
            for first, size in spans(last, done, own.layout, body)
        )
        return replace(answer, body=body, rows=rows)

    def look(self) -> Look:
        """What the worker is doing, and what it has printed."""
        if self._child is None:
            return Look(0, "", "", b"")
        return Look(*self._child.look(), self._doing, self._child.printed())

    def stack(self) -> str:
        """The stacks of the worker's threads; "" if it cannot write them."""
        return self._child.stack() if self._child is not None else ""

    def _exchange(self, orders: Sequence[object], *, asks: bool) -> Answer:
        """Send orders, and return what is said up to the answer, if they ask for one."""
        assert self._child is not None
        said = list[bytes]()
        try:
            for order in orders:
                self._send(order)
            while asks:
                message = self._child.receive()
                if isinstance(message, Doing):
                    self._doing = message.text
                    continue
                said.append(ORDERS.encode(message))
                if isinstance(message, ANSWERS):
                    break
        except ChannelClosed:
            said += self._last_words()
            return Answer(tuple(said), death=self._child.death())
        self._doing = ""
        return Answer(tuple(said))

    def _last_words(self) -> list[bytes]:
        """What the worker had said of its end, if it could not be sent any more orders."""
        assert self._child is not None
        words = list[bytes]()
        with contextlib.suppress(ChannelClosed):
            while True:
                message = self._child.receive()
                if isinstance(message, WorkerFault):
                    words.append(ORDERS.encode(message))
        return words

    def _send(self, order: object) -> None:
        assert self._child is not None
        channel = self._child.channel
        if isinstance(order, Probe):
            self._claim(order)
        if isinstance(order, MapSegment):
            own = self._segments[order.segment.segment] = _OwnSegment(order)
            channel.send(own.order, (own.fd,))
            return
        if isinstance(order, UnmapSegment):
            own = self._segments.pop(order.segment, None)
            if own is not None:
                own.close()
        channel.send(order)

    def _claim(self, probe: Probe) -> None:
        """Hold the copies of databases that the worker will make, for as long as this lives."""
        plan = StreamConfig.from_json(probe.plan)
        stage = plan.stage
        if stage is None or not any(each.lmdb or each.parts for each in (plan, *plan.sources)):
            return
        if stage.folder not in self._claims:
            os.makedirs(stage.folder, exist_ok=True)
            self._claims[stage.folder] = StageClaim(stage)
