"""What the engine, the fork server and the workers say to each other.

These bytes never leave the host and have no version.
"""

from __future__ import annotations

from dataclasses import dataclass

from loaderd.core.jobs import BadRow, Done, Excluded, Job, Replaced
from loaderd.data.selection.selection import ALL, SampleSelection
from loaderd.engine.fork_messages import (
    ChildEnded,
    Fork,
    Forked,
    ForkServerReady,
    NotForked,
    Quit,
    Reap,
)
from loaderd.system.modules import Module
from loaderd_wire.codec import Codec
from loaderd_wire.errors import BadSample
from loaderd_wire.messages import Segment
from loaderd_wire.slots import FieldSpec

# -- engine -> fork server


@dataclass(frozen=True, slots=True)
class Setup:
    """First message to the fork server and to each worker.

    Attributes:
        plans: Streams as JSON, see StreamConfig.
        folder: First on sys.path, or "".
        init: "pkg.module:function" or "".
        num_workers: At a time.
        place: Which of num_workers this worker is, from 0. Stand-ins of a worker that does not die,
            and probes, have places from num_workers on.
        preload: What a fork server imports ahead: "user", "base" or "none".
        lenient: A stream whose code cannot be imported keeps no worker from getting ready; its
            first job there will say it. It has been served before, and so are others.
        reset_affinity: A worker runs on all CPUs of its cpuset, whatever mask it is left with.
        pictures: A worker sends the stored pictures of bad samples along: somebody may look at
            them.
    """

    plans: tuple[str, ...]
    folder: str
    init: str
    num_workers: int
    place: int
    preload: str
    lenient: bool = False
    reset_affinity: bool = False
    pictures: bool = False


# -- engine -> worker (and Setup, Job)


@dataclass(frozen=True, slots=True)
class Probe:
    """Find out what stream `stream` is. Answer: StreamInfo or OpenError.

    Attributes:
        stream: Its name.
        compare: The answer is to say what makes the bytes of its samples.
        plan: As in Setup, which does not have it then; else "".
    """

    stream: str
    compare: bool = False
    plan: str = ""


@dataclass(frozen=True, slots=True)
class UseStream:
    """What a stream was found to be; comes before its first job.

    Attributes:
        stream: Its name.
        identity: As in StreamInfo.
        state: As in StreamInfo.
        total: As in StreamInfo.
        specs: Fields of a sample.
        batch_specs: Fields of a collated stream's batches, else ().
        plan: As in Setup, which does not have that of a stream that was opened after this worker
            had started, and does not know where databases have been copied to.
        selection: As in StreamInfo.
        classes: Names of the labels, by number.
        source_selections: Likewise, of each source of a mixture.
    """

    stream: str
    identity: str
    state: str
    total: int
    specs: tuple[FieldSpec, ...]
    batch_specs: tuple[FieldSpec, ...] = ()
    plan: str = ""
    selection: SampleSelection = ALL
    classes: tuple[str, ...] = ()
    source_selections: tuple[SampleSelection, ...] = ()


@dataclass(frozen=True, slots=True)
class RemoteStream:
    """A stream, to a proxy: it comes before the first job of it.

    Attributes:
        info: What it was found to be on this host.
        plan: As in Setup.
    """

    info: StreamInfo
    plan: str


@dataclass(frozen=True, slots=True)
class RemoteSeat:
    """Second message to a proxy, the process that stands for a worker on another host.

    Attributes:
        address: Of the Ray cluster, as in the config.
        resources: What the worker takes of Ray's resources, as JSON.
        folder: The user's code, which travels; "" if there is none.
        sample_timeout_s: As in the config.
        streams: Those that are open.
    """

    address: str
    resources: str
    folder: str
    sample_timeout_s: float
    streams: tuple[RemoteStream, ...]


@dataclass(frozen=True, slots=True)
class MapSegment:
    """Map this segment, whose memfd comes with this.

    Attributes:
        segment: Where its slots lie.
        fields: What its slots hold, in their order.
        rows: Of one slot.
        collated: A batch is made as a whole.
    """

    segment: Segment
    fields: tuple[FieldSpec, ...]
    rows: int
    collated: bool


@dataclass(frozen=True, slots=True)
class UnmapSegment:
    """Map this segment no longer. Answer: SegmentUnmapped."""

    segment: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Nothing more is coming: end."""


# -- worker -> engine (and Done)


@dataclass(frozen=True, slots=True)
class Doing:
    """What a worker or the fork server is about to do before it is ready.

    It is told where that is the user's affair and may take long.

    Attributes:
        text: For example "importing mypkg".
        reached: It stands for a worker on another host, and has reached the cluster.
    """

    text: str
    reached: bool = False


@dataclass(frozen=True, slots=True)
class WorkerBooted:
    """User code is imported, `init` has run.

    Attributes:
        node: Name of the other host where it is; "" for this one.
    """

    node: str = ""


@dataclass(frozen=True, slots=True)
class SegmentUnmapped:
    """The worker no longer has this segment mapped."""

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

    Attributes:
        text: The reason, with the traceback where user code raised.
    """

    text: str


@dataclass(frozen=True, slots=True)
class RemoteEnded:
    """The worker that a proxy stands for has ended, and so will the proxy.

    Attributes:
        status: As of os.waitpid.
        out_of_memory: Its host has killed somebody for memory meanwhile.
    """

    status: int
    out_of_memory: bool


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """What a stream is, as found by trying it in a worker.

    Attributes:
        stream: Its name.
        total: Samples of the dataset.
        samples: Of the stream, that is after its split.
        identity: Of the stored data.
        state: Of its file, as in Source; "" without one.
        layout: How the samples lie in the database; "dataset" for user code.
        keys: "index" or "stored".
        classes: Names of the labels, by number.
        specs: Fields of a batch: those of the first good sample, or what collate made of some.
        sample_specs: Fields of a sample.
        form: "dict" or "tuple".
        collated: A batch is made as a whole.
        tail_row_bytes: As in `slot_layout`, measured on some samples, with slack; a batch may still
            outgrow it.
        body_bytes: Likewise.
        jpeg_extension: As in SamplePipeline, of the samples that were tried.
        warnings: For the log.
        values: As in Source.
        code: Modules of the user that were imported; () for a stream that needs none.
        sources: What each source of a mixture is.
        parts: As in Source.
        firsts: As in Source.
        selection: Which of its samples come, and how often.
        plan: The stream as JSON, with the copies of its databases; "" where there are none.
        makers: What makes the bytes of its samples, and a hash over some, as JSON; "" unless that
            was asked for.
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
    selection: SampleSelection = ALL
    sources: tuple[StreamInfo, ...] = ()
    parts: tuple[str, ...] = ()
    firsts: tuple[int, ...] = ()
    plan: str = ""
    makers: str = ""


@dataclass(frozen=True, slots=True)
class OpenError:
    """The stream cannot be served.

    Attributes:
        stream: Its name.
        kind: "data" or "user code".
        text: Path and reason, a line or three.
        traceback: User code's, or "".
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
        22: RemoteSeat,
        23: RemoteStream,
        32: WorkerBooted,
        33: StreamInfo,
        34: OpenError,
        35: SegmentUnmapped,
        36: Done,
        37: WorkerFault,
        38: Doing,
        39: NoteLine,
        40: NewModules,
        41: RemoteEnded,
    },
    (Segment, FieldSpec, Excluded, BadSample, BadRow, Replaced, Module, SampleSelection),
)
