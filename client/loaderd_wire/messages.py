"""Every message between a client and a daemon, as frozen dataclasses; `client/PROTOCOL.md` tells who sends what and when.

On the control socket (unix stream) a message is framed by its length; on ZeroMQ it is one frame. `codec.py` turns both into bytes.
Counters: `plan` numbers a session's seeks from 1; `k` counts batches of a plan from 0; `generation` counts a slot's uses from 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from loaderd_wire.errors import BadSample
from loaderd_wire.slots import Chunk, FieldSpec

PROTOCOL = 2


@dataclass(frozen=True, slots=True)
class Segment:
    """A session's shared memory; its memfd travels beside this message. `tail_row_bytes` and `body_bytes` as in `slot_layout`."""

    segment: int
    slots: int
    slot_bytes: int
    tail_row_bytes: int
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Hello:
    """client -> control, first. None means the stream's own setting.

    held_bytes: shared memory of a dead daemon that the client's tensors still pin. order, content: the fingerprints this client
    began with, so that a successor with another config refuses; empty at first. config: absolute path behind Loader(CONFIG), or "".
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


@dataclass(frozen=True, slots=True)
class Starting:
    """control -> client, repeatedly: not ready yet, and what it is doing."""

    text: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """control -> client, then EOF. error: the name of a class in `errors`."""

    error: str
    text: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """control -> client, with the memfd of `segment`: the session is admitted.

    token: what its ZeroMQ socket must show to be let in. samples: length of an epoch (the split's). form: "dict" or "tuple".
    collated: the batch's arrays are described in the tail, `specs` only tells their names. keys: "index" or "stored".
    order, content: fingerprints as named facts; where those about code (`facts.py`) differ the client is warned and goes on. warnings: lines for its
    user. max_errors: 0 none, >= 1 a count, in (0, 1) a fraction of rows taken.
    empty: what becomes of a batch that has lost all its rows: "skip", or "deliver" it without rows.
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


@dataclass(frozen=True, slots=True)
class Bye:
    """control -> client: the daemon drains; what is leased stays valid, nothing more is made."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ask:
    """anybody -> control, instead of Hello. what: "status", "drain"."""

    protocol: int
    what: str


@dataclass(frozen=True, slots=True)
class Report:
    """control -> asker, then (after "drain", when it is gone) EOF. body: JSON."""

    body: str


@dataclass(frozen=True, slots=True)
class Released:
    """Slot i of `segment` has been given back up to and including generation generations[i], and handed to the trainer up to taken[i].

    taken[i] >= generations[i]. It is what keeps a batch that the trainer may have written into from being served again after a seek.
    """

    segment: int
    generations: tuple[int, ...]
    taken: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """client -> ZeroMQ: all that the daemon must know, absolute, so that any later one makes up for a lost one.

    plan begins at (epoch, position, step); taken: batches of it that the trainer has got; have: batches of it received without a gap.
    again: announce anew what was announced from `have` on. seq counts this session's messages from 1; ping asks for a Pulse.
    stacks: the trainer is about to give up, so the stacks of the workers that it waits for are wanted in the next Pulses.
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


@dataclass(frozen=True, slots=True)
class Batch:
    """ZeroMQ -> client: batch k of the plan is in this slot (the descriptor).

    epoch, start, rows: its slice as asked. filled: rows that are there (fewer under "skip"; 0 when `failed`). failed: no data,
    `bad` says why (a SampleError). bad: its bad samples, at most MAX_BAD of them with traceback.
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


@dataclass(frozen=True, slots=True)
class Pulse:
    """ZeroMQ -> client, the answer to a ping, made by the daemon's loop itself.

    turns: the loop's counter. made: batches finished for this session. story: what the next batch waits for, one line; "" if it
    waits for nothing. detail: the same with worker stacks, when there are any.
    """

    session: int
    seq: int
    turns: int
    made: int
    story: str
    detail: str


@dataclass(frozen=True, slots=True)
class Failure:
    """ZeroMQ -> client: the session's stream has ended on a fault. error: the name of a class in `errors`."""

    session: int
    error: str
    text: str


Message = Segment | Hello | Starting | Rejected | Welcome | Bye | Ask | Report | Progress | Batch | Pulse | Failure
