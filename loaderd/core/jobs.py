"""What a worker is asked to do and what it answers: the contract between scheduler and workers.

A job is idempotent: it may run again, in any worker, and writes the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from loaderd_wire.errors import BadSample


class JobKind(IntEnum):
    """What is to be done with rows [first, last) of a batch."""

    FILL = 0  # make rows [first, last) and write them into the slot
    BATCH = 1  # a collated stream: make all rows, collate, write; first = 0, last = rows
    TRIAL = 2  # make rows [first, last) and drop them, to find the row that kills a collated batch
    COMPACT = 3  # "skip": move the rows that are there up over `lost`, in order


class Stage(IntEnum):
    """What a worker is doing, as it writes it on the status board.

    A stage of SINGLE belongs to one row, any other to the whole job.
    """

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

MAX_SUBSTITUTES = 16  # how many "replace" draws for a row
ROW_BITS, STAGE_BITS, CANDIDATE_BITS = 20, 4, 5
IMPORTING = 1 << (CANDIDATE_BITS + ROW_BITS + STAGE_BITS)  # the step waits for imports
JOB_SHIFT = 1 + CANDIDATE_BITS + ROW_BITS + STAGE_BITS


def stamp(job: int, row: int, stage: int, candidate: int = 0) -> int:
    """The word that a worker writes on the status board before each step.

    From the top: the job in 34 bits, one bit for IMPORTING, the candidate in 5 bits, the row in 20,
    the stage in 4. A worker without a job writes 0.

    Args:
        job: Number of the job, below 2**34.
        row: Row of the batch, below 2**20.
        stage: One of Stage.
        candidate: Which sample the row is being made from: 0 for its own, n for its n-th
            substitute. A row that goes on to its next substitute has moved.
    """
    return (job << JOB_SHIFT) | (candidate << (ROW_BITS + STAGE_BITS)) | (row << STAGE_BITS) | stage


def unstamp(word: int) -> tuple[int, int, Stage]:
    """What a word of the status board says.

    Returns:
        (job, row, stage). A word that no worker of ours writes reads as idle: (0, 0, Stage.IDLE).
    """
    stage = word & ((1 << STAGE_BITS) - 1)
    if stage > Stage.COMPACT:
        return 0, 0, Stage.IDLE
    return word >> JOB_SHIFT, (word >> STAGE_BITS) & ((1 << ROW_BITS) - 1), Stage(stage)


def candidate_of(word: int) -> int:
    """Which sample a word's row is being made from: 0 its own, n its n-th substitute."""
    return (word >> (ROW_BITS + STAGE_BITS)) & ((1 << CANDIDATE_BITS) - 1)


def importing(word: int) -> bool:
    """Whether a word says that its step waits for modules that are being imported."""
    return bool(word & IMPORTING)


def same(word: int, other: int) -> bool:
    """Whether two words name the same row in the same stage.

    Beginning or ending an import within a stage is no progress: an import may fail and be tried
    again for ever.
    """
    return (word ^ other) & ~IMPORTING == 0


@dataclass(frozen=True, slots=True)
class Excluded:
    """A sample that a row must not be made from.

    Attributes:
        row: Row of the batch.
        candidate: 0 for the row's own sample, n for its n-th substitute ("replace" only).
    """

    row: int
    candidate: int


@dataclass(frozen=True, slots=True)
class Job:
    """Make rows [first, last) of a batch and write them into a slot.

    The batch is positions [start, start + rows) of the order of (seed, epoch), modulo its length.

    Attributes:
        job: Number of the job, from 1, below 2**34. No other job has it.
        kind: One of Kind.
        stream: Name of the stream.
        segment: Number of the segment.
        slot: Index of the slot in its segment.
        seed: Seed of the order and of the samples' random values.
        epoch: Number of the epoch, from 0.
        start: Position of the batch's first row.
        rows: Rows of the whole batch.
        first: First row to make.
        last: The row behind the last one to make.
        excluded: Samples that rows must not be made from.
        lost: In a COMPACT the rows that are not in the slot; else rows of [first, last) that must
            not be made.
        epoch_samples: Positions of an epoch, as the session cuts it. 0 where no session asks, as in
            a probe: as many as the stream says.
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
    excluded: tuple[Excluded, ...] = ()
    lost: tuple[int, ...] = ()
    epoch_samples: int = 0


@dataclass(frozen=True, slots=True)
class BadRow:
    """A bad sample in a batch.

    Attributes:
        row: Row of the batch.
        lost: The row is not in the slot: no substitute was asked for, or none was found.
        sample: The sample, and what is wrong with it.
        picture: The bytes of its image, as they are stored; b"" where there are none to show.
    """

    row: int
    lost: bool
    sample: BadSample
    picture: bytes = b""


@dataclass(frozen=True, slots=True)
class Replaced:
    """A row that was made from another sample than its own.

    Attributes:
        row: Row of the batch, whose own sample must not be used.
        index: Dataset index of the sample that it was made from.
    """

    row: int
    index: int


@dataclass(frozen=True, slots=True)
class Done:
    """A worker's answer to a job.

    Attributes:
        job: Number of the job.
        bad: Bad samples, in any order.
        replaced: Rows made from other samples.
        offset: Byte in the slot at which the job's part of the tail begins.
        size: Bytes of that part; 0 if there is none.
        read_s: Seconds spent on reading. The four stages together are about the job's time.
        decode_s: Seconds spent on decoding.
        transform_s: Seconds spent on transforms.
        write_s: Seconds spent on writing into the slot.
        needs_tail: Above 0 if nothing was delivered because the slot is too small: the bytes of
            tail a row that it needs.
        needs_body: Likewise: the bytes of body that it needs.
        changed: Not empty if the data is not what the stream was opened with: what has changed. The
            rows must not be used.
        absent: Rows at the end of the batch that have no sample, in an order of batches of
            different sizes.
        bytes: Written into the slot.
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
    absent: int = 0
    bytes: int = 0

    @property
    def stage_s(self) -> tuple[float, float, float, float]:
        """Seconds by stage: read, decode, transform, write."""
        return self.read_s, self.decode_s, self.transform_s, self.write_s

    @property
    def seconds(self) -> float:
        """Seconds of all stages together."""
        return self.read_s + self.decode_s + self.transform_s + self.write_s
