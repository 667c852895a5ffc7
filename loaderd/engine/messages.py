"""What the engine, the fork server and the workers say to each other.

These bytes never leave the host and have no version.
"""

from __future__ import annotations

from dataclasses import dataclass

from loaderd.core.jobs import BadRow, Done, Excluded, Job, Replaced
from loaderd.system.modules import Module
from loaderd_wire.codec import Codec
from loaderd_wire.errors import BadSample
from loaderd_wire.messages import Segment
from loaderd_wire.slots import FieldSpec

# -- engine -> fork server


@dataclass(frozen=True, slots=True)
class Setup:
    """First message to the fork server and to each worker.

    plans: StreamConfig as JSON. folder: first on sys.path, or "".

    init: "pkg.module:function" or "". place: which of num_workers this worker is, from 0; stand-ins
    of a worker that does not die and probes have places from num_workers on. preload: what a fork
    server imports ahead: "user", "base" or "none". lenient: a stream whose code cannot be imported
    keeps no worker from getting ready, its first job there will say it: it has been served before,
    and so are others.
    """

    plans: tuple[str, ...]
    folder: str
    init: str
    num_workers: int
    place: int
    preload: str
    lenient: bool = False


@dataclass(frozen=True, slots=True)
class Fork:
    """Make worker `worker`; with the descriptors of its socket, the scoreboard, its output pipe and
    its stack dump, in this order.
    """

    worker: int
    line: int


@dataclass(frozen=True, slots=True)
class Reap:
    """The engine holds the pidfd and has seen it dead: wait for it. Answer: Ended."""

    worker: int


@dataclass(frozen=True, slots=True)
class Quit:
    """Kill and reap every child and orphan, then leave."""


# -- fork server -> engine


@dataclass(frozen=True, slots=True)
class ForkServerReady:
    """preloaded: as Setup.preload, what it came to.

    threads: of the fork server, 1 unless something is very wrong.
    """

    preloaded: str
    threads: int


@dataclass(frozen=True, slots=True)
class Forked:
    """Worker `worker` is process `pid`; its pidfd comes with this."""

    worker: int
    pid: int


@dataclass(frozen=True, slots=True)
class NotForked:
    worker: int
    text: str


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """Worker `worker` is reaped; status as of os.waitpid."""

    worker: int
    status: int


# -- engine -> worker (and Setup, Job)


@dataclass(frozen=True, slots=True)
class Probe:
    """Find out what stream `stream` is. Answer: StreamInfo or OpenError."""

    stream: str


@dataclass(frozen=True, slots=True)
class UseStream:
    """What a stream was found to be; comes before its first job.

    state: as in StreamInfo. specs: of a sample; batch_specs: of a collated stream's batches, else
    (). plan: as in Setup, which does not have that of a stream that was opened after this worker
    had started.
    """

    stream: str
    identity: str
    state: str
    total: int
    specs: tuple[FieldSpec, ...]
    batch_specs: tuple[FieldSpec, ...] = ()
    plan: str = ""


@dataclass(frozen=True, slots=True)
class MapSegment:
    """Map this segment, whose memfd comes with this.

    fields: what its slots hold, in their order; rows: of one slot.
    """

    segment: Segment
    fields: tuple[FieldSpec, ...]
    rows: int
    collated: bool


@dataclass(frozen=True, slots=True)
class UnmapSegment:
    """Answer: Unmapped."""

    segment: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Nothing more is coming: end."""


# -- worker -> engine (and Done)


@dataclass(frozen=True, slots=True)
class Doing:
    """What a worker, or the fork server, is about to do before it is ready, where that is the
    users' affair and may take long.
    """

    text: str


@dataclass(frozen=True, slots=True)
class WorkerBooted:
    """User code is imported, `init` has run."""


@dataclass(frozen=True, slots=True)
class SegmentUnmapped:
    segment: int


@dataclass(frozen=True, slots=True)
class NewModules:
    """What the worker has imported of the users' modules since it last told."""

    modules: tuple[Module, ...]


@dataclass(frozen=True, slots=True)
class NoteLine:
    """A line to be logged as a warning; of those that several workers say once."""

    text: str


@dataclass(frozen=True, slots=True)
class WorkerFault:
    """The worker cannot go on and ends after this.

    text: the reason, with the traceback where user code raised.
    """

    text: str


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """What a stream is, as found by trying it in a worker.

    total: samples of the dataset (not of the split). identity: of the stored data. state: of its
    file, as in Source, "" without one. keys: "index" or "stored". specs, form ("dict", "tuple"): of
    the first good sample, for a collated stream the fields of a batch. tail_row_bytes, body_bytes:
    as in `slot_layout`, measured on some samples, with slack; a batch may still outgrow them.
    jpeg_extension: as in Recipe, of the samples that were tried.
    values: as in Source. code: of the users' that was imported, () for a stream that needs none.
    sources: what each source of a mixture is.
    """

    stream: str
    total: int
    samples: int
    identity: str
    state: str
    layout: str
    keys: str
    classes: tuple[str, ...]
    specs: tuple[FieldSpec, ...]
    sample_specs: tuple[FieldSpec, ...]
    form: str
    collated: bool
    tail_row_bytes: int
    body_bytes: int
    jpeg_extension: str
    warnings: tuple[str, ...]
    values: str = ""
    code: tuple[Module, ...] = ()
    sources: tuple[StreamInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class OpenError:
    """The stream cannot be served.

    kind: "data" or "user code". text: path and reason, a line or three. traceback: user code's, or
    "".
    """

    stream: str
    kind: str
    text: str
    traceback: str


ORDERS = Codec(
    {
        1: Setup,
        2: Fork,
        3: Reap,
        4: Quit,
        5: ForkServerReady,
        6: Forked,
        7: NotForked,
        8: ChildEnded,
        16: Probe,
        17: UseStream,
        18: MapSegment,
        19: UnmapSegment,
        20: Job,
        21: Leave,
        32: WorkerBooted,
        33: StreamInfo,
        34: OpenError,
        35: SegmentUnmapped,
        36: Done,
        37: WorkerFault,
        38: Doing,
        39: NoteLine,
        40: NewModules,
    },
    (Segment, FieldSpec, Excluded, BadSample, BadRow, Replaced, Module),
)
