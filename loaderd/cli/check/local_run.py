"""A stream run without sockets: the scheduler, a pool of workers and one pretended trainer, all
behind a loop that is handed in.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from loaderd.config.load import Config
from loaderd.config.schema import WorkersConfig
from loaderd.config.stream import StreamConfig
from loaderd.core import actions
from loaderd.core.events import (
    Attach,
    Event,
    GrowFailed,
    ProgressReceived,
    SegmentGrown,
    WorkerDone,
)
from loaderd.core.jobs import Job, JobKind
from loaderd.core.order import Order
from loaderd.core.scheduler import Scheduler, StreamRules
from loaderd.engine.local import LocalEngine
from loaderd.engine.messages import OpenError, StreamInfo
from loaderd.server.admission import SPARE_SLOTS, OpenedStream, sized
from loaderd.server.dispatcher import ActionDispatcher, ActionHandlers
from loaderd.system import resource_limits
from loaderd.system.loop import Loop
from loaderd.system.memfd import SegmentStore
from loaderd_wire.errors import BadSample
from loaderd_wire.messages import Descriptor, Failure, Progress, Pulse, Released, Segment
from loaderd_wire.slices import EpochShape
from loaderd_wire.slot_reader import (
    SlotReader,
    array_description,
    field_names,
    stored_keys,
    text_values,
    unpack_chunks,
)
from loaderd_wire.slots import slot_layout

SESSION = 1
PREFETCH = 2

Say = Callable[[str, str], None]  # (level, text)


@dataclass(frozen=True, slots=True)
class BatchView:
    """A finished batch, valid until it is released.

    indices: of its rows. fields: name -> array over the rows, or list of str or bytes.

    keys: of the rows, None where the index is the key.
    """

    batch: Descriptor
    indices: np.ndarray
    fields: dict[str, Any]
    keys: list[str] | None


class LocalRun:
    """One engine that opens a stream; `begin` makes samples of it.

    Use as a context manager: no process survives it.

    on_open(StreamInfo | OpenError): called once.
    """

    def __init__(
        self,
        loop: Loop,
        config: Config,
        stream: StreamConfig,
        workers: int,
        *,
        on_open: Callable[[StreamInfo | OpenError], None],
        say: Say,
    ) -> None:
        self._loop = loop
        self._config = config
        self.stream = stream
        self._workers = workers
        self._on_open = on_open
        self._say = say
        # there is no worker yet of which anything could be told
        self._emit: Callable[[Event], object] = lambda event: None
        self._stack = ExitStack()
        self._engine = LocalEngine(
            loop,
            (stream,),
            config.workers,
            num_workers=workers,
            folder=config.folder,
            emit=lambda event: self._emit(event),
            log=say,
            oom_kills=resource_limits.oom_kills,
        )

    def __enter__(self) -> LocalRun:
        self._engine.open(self.stream.name, self._on_open)
        return self

    def __exit__(self, *error: object) -> None:
        self._engine.close()
        self._stack.close()

    def begin(
        self,
        facts: StreamInfo,
        order: Order,
        shape: EpochShape,
        *,
        start: int = 0,
        prefetch: int = PREFETCH,
        on_batch: Callable[[LocalSession, int], None],
        on_end: Callable[[str], None],
    ) -> LocalSession:
        """Make the samples at positions [start, shape.samples) of epoch 0, once, in order, skipping
        bad ones.

        on_batch(session, k): batch k is finished; `read` of the session shows it and `release`
        gives it back. on_end(text): it can't go on.
        """
        session = LocalSession(
            self._loop,
            self._engine,
            self._config.workers,
            self._workers,
            OpenedStream(self.stream, facts),
            order,
            shape,
            start=start,
            prefetch=prefetch,
            on_batch=on_batch,
            on_end=on_end,
            say=self._say,
        )
        self._stack.callback(session.close)
        self._emit = session.step
        session.begin()
        return session


class LocalSession:
    """A pretended trainer and the scheduler that serves it.

    Attributes:
        bad: The bad samples so far, by index.
        rows: That have been made.
        seconds: That workers spent on them, by stage.
    """

    def __init__(
        self,
        loop: Loop,
        engine: LocalEngine,
        config: WorkersConfig,
        workers: int,
        stream: OpenedStream,
        order: Order,
        shape: EpochShape,
        *,
        start: int,
        prefetch: int,
        on_batch: Callable[[LocalSession, int], None],
        on_end: Callable[[str], None],
        say: Say,
    ) -> None:
        self._loop = loop
        self._engine = engine
        self._stream = stream
        self._order = order
        self._shape = shape
        self._start = start
        self._prefetch = prefetch
        self._on_batch = on_batch
        self._on_end = on_end
        self._segments = SegmentStore(loop)
        self._jobs: dict[int, Job] = {}
        self._known: dict[int, tuple[Segment, mmap.mmap, list[int]]] = {}
        self._last_segment = 1
        self._batches: dict[int, Descriptor] = {}
        self._taken = 0
        self._seq = 0
        self.bad: dict[int, BadSample] = {}
        self.rows = 0
        self.seconds = {"read": 0.0, "decode": 0.0, "transform": 0.0, "write": 0.0}
        rules = StreamRules(
            stream.plan.name, stream.plan.on_error, stream.facts.collated, shape.samples
        )
        scheduler = Scheduler(
            (rules,),
            workers=workers,
            sample_timeout_s=config.sample_timeout_s,
            worker_memory=config.worker_memory or 0,
            index_of=self._index_of,
        )
        handlers = ActionHandlers(
            engine=engine,
            send_message=self._tell,
            grow=self._grow,
            drop=self._drop,
            quarantine=self._set_aside,
            stream_broken=lambda action: on_end(action.text),
            cannot_boot=on_end,
            log=say,
        )
        self._dispatcher = ActionDispatcher(scheduler, handlers, loop, self._account)

    def begin(self) -> None:
        """Once: start the workers, and have batches made."""
        self._dispatcher.begin()
        self._reserve(self._sized(self._prefetch + SPARE_SLOTS, 1), self._attach)

    def close(self) -> None:
        """The engine's processes have ended."""
        for _, view, _ in self._known.values():
            # an error on its way out may still hold a view; it ends with the process
            with suppress(BufferError):
                view.close()
        self._segments.close()

    def step(self, event: Event) -> None:
        """An event of the engine."""
        self._dispatcher.step(event)

    def read(self, k: int) -> BatchView:
        """Batch k as it lies in its slot."""
        batch = self._batches[k]
        segment, view, _ = self._known[batch.segment]
        facts, begin, rows = self._stream.facts, batch.slot * segment.slot_bytes, batch.filled
        specs = () if facts.collated else facts.specs
        reader = SlotReader(
            slot_layout(
                specs,
                self._shape.batch_size,
                tail_row_bytes=segment.tail_row_bytes,
                body_bytes=segment.body_bytes,
            )
        )
        maps = unpack_chunks(
            [reader.tail(view, chunk.offset, chunk.size, begin) for chunk in batch.chunks]
        )
        fields: dict[str, Any] = {**reader.arrays(view, rows, begin)}
        for name in field_names(maps, "text"):
            fields[name] = text_values(maps, name, None if facts.collated else rows)
        for name in field_names(maps, "arrays"):
            described = array_description(maps, name)
            assert described is not None
            fields[name] = reader.collated(view, described, begin)
        keys = stored_keys(maps, rows) if facts.keys == "stored" else None
        return BatchView(batch, reader.indices(view, rows, begin), fields, keys)

    def release(self, k: int) -> None:
        """Nothing that `read` returned for k is touched any longer; the next batch may come."""
        batch = self._batches.pop(k)
        self._known[batch.segment][2][batch.slot] = batch.generation
        self._taken = k + 1
        self._progress()

    def _progress(self) -> None:
        self._seq += 1
        released = tuple(
            Released(number, tuple(generations), tuple(generations))
            for number, (_, _, generations) in self._known.items()
        )
        self.step(
            ProgressReceived(SESSION, _progress(self._seq, self._start, self._taken, released))
        )

    # -- segments

    def _reserve(self, segment: Segment, then: Callable[[Segment], None]) -> None:
        def reserved(fd: int, error: OSError | None) -> None:
            if error is not None:
                self._on_end(
                    f"{segment.slots * segment.slot_bytes} bytes of shared memory cannot be "
                    f"reserved: {error.strerror}"
                )
                return
            self._known[segment.segment] = (
                segment,
                mmap.mmap(fd, 0, prot=mmap.PROT_READ),
                [0] * segment.slots,
            )
            self._engine.add_segment(
                segment,
                self._stream.plan.name,
                self._stream.facts.specs,
                self._shape.batch_size,
                fd,
            )
            then(segment)

        self._segments.reserve(SESSION, segment, reserved)

    def _attach(self, segment: Segment) -> None:
        self.step(
            Attach(
                SESSION,
                self._stream.plan.name,
                self._shape,
                self._stream.plan.seed,
                self._prefetch,
                segment,
            )
        )
        self._progress()

    def _grow(self, action: actions.GrowSegment) -> None:
        self._last_segment += 1
        try:
            larger = self._sized(
                action.slots,
                self._last_segment,
                tail_row_bytes=action.tail_row_bytes,
                body_bytes=action.body_bytes,
            )
        except (ValueError, OverflowError) as error:
            self.step(GrowFailed(SESSION, str(error)))
            return
        self._reserve(larger, lambda segment: self.step(SegmentGrown(SESSION, segment)))

    def _sized(
        self, slots: int, number: int, *, tail_row_bytes: int = 0, body_bytes: int = 0
    ) -> Segment:
        specs, rows = self._stream.facts.specs, self._shape.batch_size
        return sized(
            self._stream,
            specs,
            rows,
            slots,
            number,
            tail_row_bytes=tail_row_bytes,
            body_bytes=body_bytes,
        )

    def _drop(self, action: actions.FreeSegment) -> None:
        _, view, _ = self._known.pop(action.segment)
        view.close()
        self._engine.drop_segment(action.segment, lambda: self._segments.free(action.segment))

    # -- events and actions

    def _index_of(self, stream: str, seed: int, epoch: int, position: int, candidate: int) -> int:
        return self._order.candidate(seed, epoch, position % self._shape.samples, candidate)

    def _account(self, event: Event, made: list[actions.Action]) -> None:
        if isinstance(event, WorkerDone):
            job, done = self._jobs.pop(event.done.job), event.done
            if job.kind in (JobKind.FILL, JobKind.BATCH):
                self.rows += job.last - job.first
                for stage in self.seconds:
                    self.seconds[stage] += getattr(done, f"{stage}_s")
        for action in made:
            if isinstance(action, actions.SendJob):
                self._jobs[action.job.job] = action.job

    def _tell(self, session: int, message: Descriptor | Pulse | Failure) -> None:
        if isinstance(message, Failure):
            self._on_end(message.text)
        elif (
            isinstance(message, Descriptor)
            and message.epoch == 0
            and message.k >= self._taken
            and message.k not in self._batches
        ):
            self._batches[message.k] = message
            # not from within a step: what follows may release it, which is an event
            self._loop.soon(lambda: self._on_batch(self, message.k))

    def _set_aside(self, action: actions.Quarantine) -> None:
        if action.epoch == 0:
            self.bad[action.sample.index] = action.sample


def _progress(seq: int, start: int, taken: int, released: tuple[Released, ...]) -> Progress:
    return Progress(
        session=SESSION,
        seq=seq,
        plan=1,
        epoch=0,
        position=start,
        step=0,
        taken=taken,
        have=taken,
        again=False,
        ping=False,
        waiting=True,
        released=released,
    )


def all_workers(config: Config) -> int:
    """As many as the daemon would have."""
    number = config.workers.num_workers
    return number if isinstance(number, int) else resource_limits.own_cpu_count()


def half_of_the_workers(config: Config) -> int:
    """Of the number that the daemon would have: two sides share the machine."""
    return max(1, all_workers(config) // 2)
