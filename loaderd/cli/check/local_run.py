"""A stream run without sockets: scheduler, workers and one pretended trainer.

All of them are behind a loop that is handed in.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from loaderd.cli.check.local_segments import BatchView, LocalSegments
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
from loaderd.core.order import StreamOrder
from loaderd.core.scheduler import Scheduler, StreamRules
from loaderd.engine.local import LocalEngine
from loaderd.engine.messages import OpenError, StreamInfo
from loaderd.server.admission import SPARE_SLOTS, OpenedStream
from loaderd.server.dispatcher import ActionDispatcher, ActionHandlers
from loaderd.system import resource_limits
from loaderd.system.logs import WriteLog
from loaderd.system.loop import Loop
from loaderd_wire.errors import BadSample
from loaderd_wire.messages import Descriptor, Failure, Progress, Pulse, Segment
from loaderd_wire.slices import EpochShape

SESSION = 1
PREFETCH = 2

Say = Callable[[str, str], None]  # (level, text)


def _log_of(say: Say) -> WriteLog:
    def log(level: str, event: str, text: str, /, **facts: object) -> None:
        say(level, text)

    return log


class LocalRun:
    """One engine that opens a stream; `begin` makes samples of it.

    Use as a context manager: no process survives it.

    Attributes:
        stream: What the config says of the stream.
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
        """Start no process yet.

        Args:
            loop: The loop that everything runs in.
            config: The config.
            stream: The stream of it.
            workers: How many workers make samples.
            on_open: Called once, with what the stream is or why it can't be opened.
            say: Takes lines of the log.
        """
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
            log=_log_of(say),
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
        order: StreamOrder,
        shape: EpochShape,
        *,
        start: int = 0,
        prefetch: int = PREFETCH,
        on_batch: Callable[[LocalSession, int], None],
        on_end: Callable[[str], None],
    ) -> LocalSession:
        """Make the samples at positions [start, shape.samples) of epoch 0, once, in order.

        Bad samples are skipped.

        Args:
            facts: What the stream was found to be.
            order: The order of its samples.
            shape: How the epoch is cut into batches.
            start: First position.
            prefetch: Finished batches ahead of the reader.
            on_batch: Called with the session and k when batch k is finished. `read` of the session
                shows it, `release` gives it back.
            on_end: Called with the reason if it can't go on.
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
        rows: Number of rows that have been made.
        seconds: Seconds that workers spent on them, by stage.
    """

    def __init__(
        self,
        loop: Loop,
        engine: LocalEngine,
        config: WorkersConfig,
        workers: int,
        stream: OpenedStream,
        order: StreamOrder,
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
        self._segments = LocalSegments(loop, engine, stream, shape.batch_size, SESSION)
        self._jobs: dict[int, Job] = {}
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
            log=_log_of(say),
        )
        self._dispatcher = ActionDispatcher(scheduler, handlers, loop, self._account)

    @property
    def roomiest(self) -> Segment | None:
        """The segment with the largest slots that it has needed."""
        return self._segments.roomiest

    def begin(self) -> None:
        """Once: start the workers, and have batches made."""
        self._dispatcher.begin()
        self._segments.add(self._prefetch + SPARE_SLOTS, self._attach, self._on_end)

    def close(self) -> None:
        """The engine's processes have ended."""
        self._segments.close()

    def step(self, event: Event) -> None:
        """An event of the engine."""
        self._dispatcher.step(event)

    def read(self, k: int) -> BatchView:
        """Batch k as it lies in its slot."""
        return self._segments.read(self._batches[k])

    def release(self, k: int) -> None:
        """Nothing that `read` returned for k is touched any longer; the next batch may come."""
        self._segments.release(self._batches.pop(k))
        self._taken = k + 1
        self._progress()

    def _progress(self) -> None:
        self._seq += 1
        self.step(
            ProgressReceived(
                SESSION,
                Progress(
                    session=SESSION,
                    seq=self._seq,
                    plan=1,
                    epoch=0,
                    position=self._start,
                    step=0,
                    taken=self._taken,
                    have=self._taken,
                    again=False,
                    ping=False,
                    waiting=True,
                    released=self._segments.released(),
                ),
            )
        )

    # -- segments

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
        try:
            self._segments.add(
                action.slots,
                lambda segment: self.step(SegmentGrown(SESSION, segment)),
                self._on_end,
                tail_row_bytes=action.tail_row_bytes,
                body_bytes=action.body_bytes,
            )
        except (ValueError, OverflowError) as error:
            self.step(GrowFailed(SESSION, str(error)))

    def _drop(self, action: actions.FreeSegment) -> None:
        self._segments.drop(action.segment)

    # -- events and actions

    def _index_of(self, job: Job, row: int, candidate: int) -> int:
        position = (job.start + row) % self._shape.samples
        return self._order.candidate(job.seed, job.epoch, position, candidate)

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


def all_workers(config: Config) -> int:
    """As many as the daemon would have."""
    number = config.workers.num_workers
    return number if isinstance(number, int) else resource_limits.own_cpu_count()


def half_of_the_workers(config: Config) -> int:
    """Of the number that the daemon would have: two sides share the machine."""
    return max(1, all_workers(config) // 2)
