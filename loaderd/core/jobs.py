"""What a worker is asked to do and what it answers: the contract between the scheduler and whatever runs jobs.

A job is idempotent: it may run again, in any worker, and writes the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from loaderd_wire.errors import BadSample


class Kind(IntEnum):
    FILL = 0  # make rows [first, last) and write them into the slot
    BATCH = 1  # a collated stream: make all rows, collate, write; first = 0, last = rows
    TRIAL = 2  # make rows [first, last) and throw them away: who is it that kills a collated batch?
    COMPACT = 3  # "skip": move the surviving rows up over `lost`, in order


class Stage(IntEnum):
    """What a worker is doing, as stamped on the scoreboard. The stages of SINGLE tell of one row, the others of the whole job."""

    IDLE = 0
    OPEN = 1
    READ = 2
    DECODE = 3
    TRANSFORM = 4
    WRITE = 5
    FETCH_MANY = 6
    COLLATE = 7
    COMPACT = 8


SINGLE = frozenset({Stage.READ, Stage.DECODE, Stage.TRANSFORM, Stage.WRITE})

MAX_SUBSTITUTES = 16  # that "replace" draws for a row
ROW_BITS, STAGE_BITS, CANDIDATE_BITS = 20, 4, 5
IMPORTING = 1 << (CANDIDATE_BITS + ROW_BITS + STAGE_BITS)  # a mark on a stamp: what it tells of waits for modules that are being imported
JOB_SHIFT = 1 + CANDIDATE_BITS + ROW_BITS + STAGE_BITS


def stamp(job: int, row: int, stage: int, candidate: int = 0) -> int:
    """The scoreboard word: job in the upper 34 bits, one bit for IMPORTING, candidate in 5, row in 20, stage in 4. 0 is an idle worker.

    candidate: which sample the row is being made from, 0 for its own, n for its n-th substitute. A row that goes on to its next one has moved.
    """
    return (job << JOB_SHIFT) | (candidate << (ROW_BITS + STAGE_BITS)) | (row << STAGE_BITS) | stage


def unstamp(word: int) -> tuple[int, int, Stage]:
    """(job, row, stage) of a scoreboard word; a word that no worker of ours writes reads as idle."""
    stage = word & ((1 << STAGE_BITS) - 1)
    if stage > Stage.COMPACT:
        return 0, 0, Stage.IDLE
    return word >> JOB_SHIFT, (word >> STAGE_BITS) & ((1 << ROW_BITS) - 1), Stage(stage)


def candidate_of(word: int) -> int:
    """Which sample the row of a scoreboard word was being made from."""
    return (word >> (ROW_BITS + STAGE_BITS)) & ((1 << CANDIDATE_BITS) - 1)


def importing(word: int) -> bool:
    """Whether a scoreboard word carries the mark."""
    return bool(word & IMPORTING)


def same(word: int, other: int) -> bool:
    """Whether two words tell of the same row in the same stage. An import in it is no step forward: it may fail and be tried for ever."""
    return (word ^ other) & ~IMPORTING == 0


@dataclass(frozen=True, slots=True)
class Condemned:
    """Row `row` must not be made from its own sample (candidate 0), or from its n-th substitute (candidate n, "replace" only)."""

    row: int
    candidate: int


@dataclass(frozen=True, slots=True)
class Job:
    """Rows [first, last) of the batch that is positions [start, start + rows) (modulo the epoch's length) of (seed, epoch).

    job counts from 1, below 2**34. lost: in a COMPACT the rows that are not there; else rows of [first, last) that must not be made.
    """

    job: int
    kind: int
    stream: str
    segment: int
    slot: int
    seed: int
    epoch: int
    start: int
    rows: int
    first: int
    last: int
    condemned: tuple[Condemned, ...] = ()
    lost: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BadRow:
    """A bad sample at a row of the batch. `lost`: the row is not in the slot (no substitute was found or asked for)."""

    row: int
    lost: bool
    sample: BadSample


@dataclass(frozen=True, slots=True)
class Replaced:
    """A row whose own sample is condemned was made from the sample `index` after all."""

    row: int
    index: int


@dataclass(frozen=True, slots=True)
class Done:
    """A worker's answer to a job.

    offset, size: the job's chunk in the slot's tail (size 0: none). read_s ... write_s: seconds by stage, together about the job's
    time. needs_tail, needs_body: > 0 if nothing was delivered because the slot is too small: bytes a row of tail, bytes of body.
    changed: not empty if the data is no longer what the stream was opened with; the rows are not to be used.
    """

    job: int
    bad: tuple[BadRow, ...]
    replaced: tuple[Replaced, ...]
    offset: int
    size: int
    read_s: float
    decode_s: float
    transform_s: float
    write_s: float
    needs_tail: int = 0
    needs_body: int = 0
    changed: str = ""

    @property
    def seconds(self) -> float:
        return self.read_s + self.decode_s + self.transform_s + self.write_s
