"""What a running daemon tells about itself.

It is one tree of dataclasses, for `status`, metrics and the pages, and its JSON.

The JSON's keys are a contract with users' scripts. A key whose value is not known, such as the
epoch of a session that has not asked for a batch, is null; a group of keys that is not known at
all, such as the samples of a stream that has not been opened, is absent.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

from loaderd.core.snapshot import (
    GroupSnapshot,
    RemoteSnapshot,
    SessionSnapshot,
    StreamSnapshot,
    WorkerSnapshot,
)
from loaderd.core.verdict import Verdict
from loaderd.engine.base import ForkServerStatus, ProcessStatus
from loaderd.system.logs import LoggedEvent

STATUS_VERSION = 1
MAX_CHARACTERS = 1 << 20  # of the JSON; a string on the wire can't be longer

_Record = TypeVar("_Record")

# the field's own keys stand among those of the record around it; absent if it is None
GROUP: Mapping[str, Any] = {"group": True}
IF_ANY: Mapping[str, Any] = {"if_any": True}  # absent if it is empty
TEMPLATE: Mapping[str, Any] = {"key": "template"}  # named so in the JSON


@dataclass(frozen=True, slots=True)
class FieldStatus:
    """A field of a stream's samples.

    Attributes:
        name: Its name.
        dtype: As numpy writes it.
        shape: Shape of one sample.
        kind: "array", "text" or "bytes".
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: str


@dataclass(frozen=True, slots=True)
class OpenedStatus:
    """What opening a stream found.

    Attributes:
        samples: Samples of the stream, that is after its split.
        total: Samples of its data.
        layout: How the samples lie in the database; "dataset" for user code.
        fields: Fields of a sample, after the transforms.
        copies: Path of each database that is read from a copy (`[daemon] stage`) -> of the copy.
    """

    samples: int
    total: int
    layout: str
    fields: tuple[FieldStatus, ...]
    copies: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """A stream of the config.

    Attributes:
        data: Path of the database, "pkg.module:Class" of the dataset, or a mixture's streams.
        batch_size: Rows per batch, as configured.
        opened: Whether it is open.
        failed: Why it serves nobody, or could not be opened; "" if neither.
        found: None until it is open.
        progress: None until the scheduler serves it.
    """

    data: str
    batch_size: int
    opened: bool
    failed: str
    found: OpenedStatus | None = field(default=None, metadata=GROUP)
    progress: StreamSnapshot | None = field(default=None, metadata=GROUP)


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """A client's session.

    Attributes:
        session: Its number.
        stream: Name of its stream.
        uid: User id of the client's process.
        pid: Its process id; 0 if it is in another pid namespace.
        rank: Rank of the client.
        world_size: Ranks of its training.
        batch_size: Rows per batch, as it asked for.
        prefetch: Finished batches ahead of the trainer, at most.
        bytes: Shared memory of its segment, which may be that of its group.
        attached: Whether its memory has been reserved.
        progress: None until it is attached.
    """

    session: int
    stream: str
    uid: int
    pid: int
    rank: int
    world_size: int
    batch_size: int
    prefetch: int
    bytes: int
    attached: bool
    progress: SessionSnapshot | None = field(default=None, metadata=GROUP)


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker.

    Attributes:
        work: As the scheduler knows it.
        process: As the engine knows it; None before it is started.
    """

    work: WorkerSnapshot = field(metadata=GROUP)
    process: ProcessStatus | None = field(default=None, metadata=GROUP)


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """How many workers there shall be, and the processes besides them.

    Attributes:
        fork_server: What workers are forked from.
        probes: Those that open streams.
        wanted_workers: How many workers there shall be; 0 if a daemon of another version does not
            say.
        sizing: What `num_workers = "auto"` last did or did not do about that, and why; None if the
            number is fixed.
        remote: Workers on other hosts; None if there are to be none.
    """

    fork_server: ForkServerStatus = field(metadata=TEMPLATE)
    probes: tuple[ProcessStatus, ...]
    wanted_workers: int = 0
    sizing: str | None = None
    remote: RemoteSnapshot | None = None


@dataclass(frozen=True, slots=True)
class MemoryStatus:
    """Shared memory in bytes.

    Attributes:
        limit: What all segments together may take.
        segments: What they take.
    """

    limit: int
    segments: int


@dataclass(frozen=True, slots=True)
class QuarantineStatus:
    """Bad samples.

    Attributes:
        path: Path of the file that records them.
        count: Bad samples since the start.
        tail: The last records, as the file has them.
    """

    path: str
    count: int
    tail: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """A running daemon.

    Attributes:
        state: "starting", "ready" or "draining".
        status_version: Version of this tree. A later version may have more keys; where one has gone
            or means something else, the number is greater.
        doing: What the start, or the opening of a stream, is busy with; "" if neither is going on.
        failed: Whether every stream has failed.
        pid: Process id of the daemon.
        version: Version of loaderd.
        native: Name of each native part -> whether it is there.
        socket: Path of the control socket.
        config: Path of the config; "" if there is none.
        turns: Turns of the event loop.
        lost_s: Seconds in which the daemon was not run at all.
        cpu_s: Processor time of the daemon's process, without workers.
        jobs: Jobs that workers have and have not answered.
        schedule_s: Seconds spent in the scheduler.
        verdict: Who waits for whom, of the trainer that waits most; None without trainers.
        streams: All streams of the config.
        sessions: The trainers' sessions, the oldest first.
        workers: The workers.
        pool: Other processes; None before there are any.
        memory: Shared memory; None before it is known.
        quarantine: Bad samples; None before it is known.
        garbage: Invalid messages on the message socket.
        errors: The last errors of the log.
        restarts: Workers that were started in place of another, by what became of that: "start",
            "crash", "killed", "hung", "stopped" or "memory".
        events: What has happened lately, newest last.
        groups: Sessions that share their batches.
        cut: Names of the lists that were shortened to fit into a message.
    """

    state: str
    status_version: int = STATUS_VERSION
    doing: str = ""
    failed: bool = False
    pid: int = 0
    version: str = ""
    native: dict[str, bool] = field(default_factory=dict)
    socket: str = ""
    config: str = ""
    turns: int = 0
    lost_s: float = 0.0
    cpu_s: float = 0.0
    jobs: int = 0
    schedule_s: float = 0.0
    verdict: Verdict | None = None
    streams: dict[str, StreamStatus] = field(default_factory=dict)
    sessions: tuple[SessionStatus, ...] = ()
    workers: tuple[WorkerStatus, ...] = ()
    pool: PoolStatus | None = None
    memory: MemoryStatus | None = None
    quarantine: QuarantineStatus | None = None
    garbage: int = 0
    errors: tuple[str, ...] = ()
    restarts: dict[str, int] = field(default_factory=dict)
    events: tuple[LoggedEvent, ...] = ()
    groups: tuple[GroupSnapshot, ...] = ()
    cut: tuple[str, ...] = field(default=(), metadata=IF_ANY)

    def to_json(self) -> str:
        """The JSON, at most MAX_CHARACTERS long.

        Where it would be longer, the longest lists are shortened and `cut` names them.
        """
        shown = as_plain(self)
        text = json.dumps(shown, default=str)
        while len(text.encode()) > MAX_CHARACTERS:
            lists = {
                name: len(json.dumps(value, default=str))
                for name, value in shown.items()
                if isinstance(value, list) and value
            }
            if not lists:
                return json.dumps({"state": self.state, "failed": self.failed, "cut": ["all"]})
            longest = max(lists, key=lambda name: lists[name])
            shown[longest] = shown[longest][: len(shown[longest]) // 2]
            shown["cut"] = sorted({*shown.get("cut", ()), longest})
            text = json.dumps(shown, default=str)
        return text

    @classmethod
    def from_json(cls, text: str) -> DaemonStatus:
        """The tree that `to_json` wrote.

        Keys that this version does not know are ignored, and plain ones that are missing become
        empty: the daemon may be of another version.

        Raises:
            ValueError: The text is anything else; names the key.
        """
        return _record(cls, json.loads(text), "status")


@dataclass(frozen=True, slots=True)
class DrainStatus:
    """The answer to `loaderd drain`.

    Attributes:
        pid: Of the daemon.
        drain_s: Seconds that the drain may take at most.
    """

    pid: int
    drain_s: float
    state: str = "draining"

    def to_json(self) -> str:
        """The answer as it is sent: JSON on one line."""
        return json.dumps(as_plain(self))

    @classmethod
    def from_json(cls, text: str) -> DrainStatus:
        """What `to_json` wrote, read as a DaemonStatus is."""
        return _record(cls, json.loads(text), "drain")


def as_plain(value: Any) -> Any:
    """Dicts, lists and plain values for a tree of records."""
    if is_dataclass(value) and not isinstance(value, type):
        plain: dict[str, Any] = {}
        for each in fields(value):
            inner = getattr(value, each.name)
            if "group" in each.metadata:
                plain |= {} if inner is None else as_plain(inner)
            elif inner or "if_any" not in each.metadata:
                plain[json_key(each)] = as_plain(inner)
        return plain
    if isinstance(value, Mapping):
        return {key: as_plain(inner) for key, inner in value.items()}
    return [as_plain(inner) for inner in value] if isinstance(value, (tuple, list)) else value


def json_key(each: Field[Any]) -> str:
    """The key of a record's field in the JSON."""
    return each.metadata.get("key", each.name)


def _record(cls: type[_Record], plain: Any, where: str) -> _Record:
    if not isinstance(plain, dict):
        raise ValueError(f"{where}: expected an object, not {type(plain).__name__}")
    hints = typing.get_type_hints(cls)
    given: dict[str, Any] = {}
    for each in fields(cls):  # pyright: ignore[reportArgumentType] - a dataclass
        hint = hints[each.name]
        if "group" in each.metadata:
            given[each.name] = _group(hint, plain, {other.name for other in fields(cls)}, where)  # pyright: ignore[reportArgumentType]
        elif json_key(each) in plain:
            given[each.name] = _value(hint, plain[json_key(each)], f"{where}.{json_key(each)}")
        elif each.default is MISSING and each.default_factory is MISSING:
            given[each.name] = _empty(hint, f"{where}.{json_key(each)}")
    return cls(**given)


def _group(hint: Any, plain: dict[str, Any], outside: set[str], where: str) -> Any:
    cls, optional = _without_none(hint)
    keys = {each.name for each in fields(cls)} - outside
    return None if optional and keys.isdisjoint(plain) else _record(cls, plain, where)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        (kind,) = (kind for kind in typing.get_args(hint) if kind is not types.NoneType)
        return kind, True
    return hint, False


def _value(hint: Any, plain: Any, where: str) -> Any:
    kind, optional = _without_none(hint)
    if optional and plain is None:
        return None
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if is_dataclass(kind):
        return _record(typing.cast("type[Any]", kind), plain, where)
    if origin is tuple:
        _expect(list, plain, where)
        return tuple(_value(arguments[0], inner, f"{where}[{n}]") for n, inner in enumerate(plain))
    if origin is dict:
        _expect(dict, plain, where)
        return {key: _value(arguments[1], inner, f"{where}.{key}") for key, inner in plain.items()}
    if kind is not Any:
        _expect((int, float) if kind is float else kind, plain, where)
    return plain


def _empty(hint: Any, where: str) -> Any:
    kind, optional = _without_none(hint)
    if optional:
        return None
    kind = typing.get_origin(kind) or kind
    if kind not in (int, float, str, bool, tuple, dict):
        raise ValueError(f"{where}: is missing")
    return kind()


def _expect(kind: Any, plain: Any, where: str) -> None:
    if not isinstance(plain, kind):
        raise ValueError(f"{where}: {plain!r:.40} is not of the expected type")
