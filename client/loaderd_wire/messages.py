"""Every message between a client and a daemon. `client/PROTOCOL.md` says who sends what and when.

On the control socket (a unix stream) a message is framed by its length; on ZeroMQ it is one frame.
`codec.py` turns messages into bytes and back.

Three numbers occur in many messages. `plan` counts a session's seeks, from 1. `k` counts the
batches of a plan, from 0. `generation` counts the uses of a slot, from 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from loaderd_wire.errors import BadSample
from loaderd_wire.slots import Chunk, FieldSpec

PROTOCOL = 4
OLDEST = 2  # the first one that a daemon of this version speaks with, too
SHARES = 4  # the first one whose clients can share batches
ADDED = "added"  # in the metadata of a field that an earlier daemon or client does not know


def _added(default: Any) -> Any:
    """A field behind those of PROTOCOL. It is not sent while it has its default."""
    return field(default=default, metadata={ADDED: True})


@dataclass(frozen=True, slots=True)
class Segment:
    """Daemon to client, on the control socket, with a memfd: memory of the session.

    Attributes:
        segment: Number of the segment. A later one has a greater number.
        slots: Number of its slots.
        slot_bytes: Bytes of a slot.
        tail_row_bytes: Bytes of a slot's tail for each row; see `slots.slot_layout`.
        body_bytes: Bytes of a slot's body in a collated stream, else 0.
    """

    segment: int
    slots: int
    slot_bytes: int
    tail_row_bytes: int
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Hello:
    """Client to daemon, the first message on the control socket.

    Attributes:
        protocol: PROTOCOL of the client.
        stream: Name of the stream.
        batch_size: Rows of a batch; None: the stream's setting.
        seed: Seed of the order; None: the stream's setting.
        drop_last: Leave out the rows behind the last whole step; None: the stream's setting.
        rank: Rank of the client, from 0.
        world_size: Number of ranks.
        prefetch: Batches to be made ahead, at least 1.
        fields: Names of the fields that are wanted; None: all.
        held_bytes: Shared memory of a dead daemon that the client's tensors still use.
        order: Facts about the order that the client began with; empty at first. A daemon with
            others refuses.
        content: Likewise, facts about the samples.
        config: Absolute path of the config that the client was given, or "".
        shared: Whether its batches may lie in memory that other sessions read, too: "yes", "no", or
            "" for the stream's setting. Clients of protocols before SHARES cannot read such memory.
    """

    protocol: int
    stream: str
    batch_size: int | None
    seed: int | None
    drop_last: bool | None
    rank: int
    world_size: int
    prefetch: int
    fields: tuple[str, ...] | None
    held_bytes: int
    order: dict[str, str]
    content: dict[str, str]
    config: str
    shared: str = _added("")


@dataclass(frozen=True, slots=True)
class Starting:
    """Daemon to client, on the control socket, as often as it changes: it is not ready yet.

    Attributes:
        text: What it is doing.
    """

    text: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """Daemon to client, on the control socket, then end of file: the client is not admitted.

    Attributes:
        error: Name of a class in `errors`.
        text: Why.
    """

    error: str
    text: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """Daemon to client, on the control socket, with the memfd of `segment`: the client is admitted.

    Attributes:
        session: Number of the session.
        token: 16 bytes: the password of its ZeroMQ socket.
        daemon: Names this daemon's life; no other has the same.
        samples: Length of an epoch, after the split.
        batch_size: Rows of a batch.
        seed: Seed of the order.
        drop_last: The rows behind the last whole step are left out.
        specs: The fields. In a collated stream only their names count.
        form: What a batch is by itself: "dict" or "tuple".
        collated: The arrays of a batch are described in its tail.
        keys: "index": a sample's key is its index. "stored": keys are in the tail.
        segment: The session's memory.
        order: Facts about the order.
        content: Facts about the samples. If those about code differ from the client's, it is warned
            and goes on; see `facts.py`.
        classes: Names of the classes, by label.
        on_error: What becomes of a bad sample: "raise", "skip" or "replace".
        max_errors: 0: no limit. 1 or more: a count of bad samples. In (0, 1): a share of rows.
        empty: What becomes of a batch that has lost all its rows: "skip" or "deliver".
        warnings: Lines for the user.
        tail: What becomes of a last step with fewer rows than ranks: "repeat" or "short".
        source_names: Names of the streams that a mixture is made of.
        source_offsets: The first index of each: indices count through them, one behind the other.
        parts: What the samples come from, in order: paths of databases, or a dataset's class.
        firsts: Of each part but the first one the index of its first sample.
        whole_batches: Batches have rows of their own, and are never divided among ranks.
        shared: Other sessions read the session's memory, too. The client maps it for reading only,
            copies each batch, and gives its slot back at once.
    """

    session: int
    token: bytes
    daemon: str
    samples: int
    batch_size: int
    seed: int
    drop_last: bool
    specs: tuple[FieldSpec, ...]
    form: str
    collated: bool
    keys: str
    segment: Segment
    order: dict[str, str]
    content: dict[str, str]
    classes: tuple[str, ...]
    on_error: str
    max_errors: float
    empty: str
    warnings: tuple[str, ...] = ()
    tail: str = _added("repeat")
    source_names: tuple[str, ...] = _added(())
    source_offsets: tuple[int, ...] = _added(())
    parts: tuple[str, ...] = _added(())
    firsts: tuple[int, ...] = _added(())
    whole_batches: bool = _added(False)
    shared: bool = _added(False)


@dataclass(frozen=True, slots=True)
class Bye:
    """Daemon to client, on the control socket: it drains.

    Leased batches stay valid; no more are made.

    Attributes:
        reason: Why.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Anybody to daemon, on the control socket, in place of Hello.

    Attributes:
        protocol: PROTOCOL of who asks.
        what: "status", "drain", "takeover" or "stack N": the stacks of worker N are to be taken,
            for later statuses.
    """

    protocol: int
    what: str


@dataclass(frozen=True, slots=True)
class Report:
    """The answer to Ask. End of file follows; after "drain" once the daemon has left.

    Attributes:
        body: JSON.
    """

    body: str


@dataclass(frozen=True, slots=True)
class Released:
    """What a client has done with the slots of one segment; a part of Progress.

    It keeps a batch that the trainer may have written into from being delivered again after a seek.

    Attributes:
        segment: Number of the segment.
        generations: For each slot the latest generation that was given back.
        taken: For each slot the latest generation that was handed to the trainer or given back.
            It is never below that of `generations`.
    """

    segment: int
    generations: tuple[int, ...]
    taken: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """Client to daemon, on ZeroMQ: all that the daemon must know.

    It is absolute, so that any later one makes up for a lost one.

    Attributes:
        session: Number of the session.
        seq: Number of this message, from 1.
        plan: Number of the client's plan.
        epoch: Epoch in which the plan begins.
        position: Position at which it begins.
        step: Number of its first step.
        taken: Batches of the plan that the trainer has got.
        have: Batches of the plan that have been received, without a gap.
        again: Announce once more what was announced from `have` on.
        ping: Answer with a Pulse.
        waiting: The trainer waits for a batch.
        released: One entry for each segment in use.
        stacks: The trainer is about to give up: the next Pulses shall have the stacks of the
            workers that it waits for.
        waited_s: Seconds that the trainer has waited for batches of this session so far; below 0:
            it is not told.
    """

    session: int
    seq: int
    plan: int
    epoch: int
    position: int
    step: int
    taken: int
    have: int
    again: bool
    ping: bool
    waiting: bool
    released: tuple[Released, ...]
    stacks: bool = False
    waited_s: float = _added(-1.0)


@dataclass(frozen=True, slots=True)
class Descriptor:
    """Daemon to client, on ZeroMQ, the descriptor: a batch is ready in a slot.

    Attributes:
        session: Number of the session.
        plan: Number of the plan.
        k: Number of the batch in the plan.
        epoch: The epoch of its rows.
        start: Position of its first row.
        rows: Rows that were asked for.
        segment: Number of the segment.
        slot: Index of the slot.
        generation: The slot's count of uses.
        filled: Rows that are in the slot: fewer than `rows` after "skip", 0 if `failed`.
        failed: There is no data; `bad` says why.
        chunks: Parts of the slot's tail, in the order of their rows.
        bad: Its bad samples; if there are many, not all of them and not all with traceback.
        verdict: Who waits for whom in this session, in one line; "" if there is nothing new.
    """

    session: int
    plan: int
    k: int
    epoch: int
    start: int
    rows: int
    segment: int
    slot: int
    generation: int
    filled: int
    failed: bool
    chunks: tuple[Chunk, ...]
    bad: tuple[BadSample, ...]
    verdict: str = _added("")


@dataclass(frozen=True, slots=True)
class Pulse:
    """Daemon to client, on ZeroMQ, the answer to a ping. It proves that the daemon's loop runs.

    Attributes:
        session: Number of the session.
        seq: `seq` of the ping.
        turns: Events that the scheduler has handled.
        made: Batches that were finished for this session.
        story: What the next batch waits for, in one line; "" if it waits for nothing.
        detail: The same in full, with the stacks of workers that are known.
    """

    session: int
    seq: int
    turns: int
    made: int
    story: str
    detail: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Daemon to client, on ZeroMQ: the session has ended on a fault and serves no more batches.

    Attributes:
        session: Number of the session.
        error: Name of a class in `errors`.
        text: Why.
    """

    session: int
    error: str
    text: str


Message = (
    Segment
    | Hello
    | Starting
    | Rejected
    | Welcome
    | Bye
    | Ask
    | Report
    | Progress
    | Descriptor
    | Pulse
    | Failure
)
