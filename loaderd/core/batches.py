"""One batch from its slot to its descriptor: which rows are to be made, and which are made."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from loaderd.core.fault_ledger import FaultLedger
from loaderd.core.jobs import BadRow, Done, Excluded, Job, JobKind
from loaderd_wire.errors import BadSample
from loaderd_wire.messages import Descriptor
from loaderd_wire.records import quick
from loaderd_wire.slices import Slice
from loaderd_wire.slots import Chunk

TRACEBACKS = 16  # bad samples of one descriptor that keep their traceback
TEXT_BYTES = 8 << 10  # of one traceback or message in a descriptor
BAD_BYTES = 1 << 20  # of all bad samples in a descriptor, roughly; far below codec.MAX_MESSAGE
BAD_SAMPLES = 1 << 14  # in a descriptor


@dataclass(frozen=True, slots=True)
class SlotRef:
    """A claimed slot.

    Attributes:
        segment: Number of the segment.
        slot: Index of the slot.
        generation: The slot's count of claims; it tells this use of the slot from others.
    """

    segment: int
    slot: int
    generation: int


@dataclass(frozen=True, slots=True)
class RowRange:
    """Work of one kind on rows [first, last). A piece of one row is run alone, as one job.

    Attributes:
        kind: Kind of the job.
        first: First row.
        last: The row behind the last one.
    """

    kind: JobKind
    first: int
    last: int


_piece, _job, _batch = quick(RowRange), quick(Job), quick(Descriptor)
FILL, BATCH, TRIAL, COMPACT = JobKind  # a lookup in the class costs ten times as much


class BatchBuild:
    """A batch that is being made, or is made.

    Attributes:
        stream: Name of the stream.
        on_error: The stream's rule for bad samples.
        collated: The batch is made as a whole.
        seed: The session's seed.
        slice: Which positions of which epoch its rows are.
        epoch_samples: Positions of an epoch, as for a Job.
        ledger: What is known against its samples. Only this outlives a new start.
        attempt: Count of starts. What a job of an earlier start brings is dropped.
        place: Its slot; None while it has none.
        begun_s: When it got its slot.
        todo: Pieces that no worker has, in order.
        running: Pieces that workers have, by job.
        rows_left: Rows of these and of `todo`, at most: a row that is found lost is no longer one.
        chunks: Parts of the slot's tail that were written.
        found: Bad samples that workers have reported, by row.
        replaced: Rows whose own sample is excluded: row -> index of the sample in its place.
        needs_tail: Bytes of tail a row that it is known to need; 0 if unknown.
        needs_body: Bytes of body, likewise.
        absent: Rows at its end that have no sample, as a worker has told.
        compacted: Its rows have been moved up over the lost ones.
        apart: Each row runs alone, because a worker that does not die hangs in one of them.
        rescued: It was moved to another slot once, because its job stood behind a slow one.
        step: In a group: its step, counted through all epochs.
        told: In a group: how many sessions were told of it, since it was made.
    """

    __slots__ = (
        "absent",
        "apart",
        "attempt",
        "begun_s",
        "chunks",
        "collated",
        "compacted",
        "epoch_samples",
        "found",
        "ledger",
        "needs_body",
        "needs_tail",
        "on_error",
        "place",
        "replaced",
        "rescued",
        "rows_left",
        "running",
        "seed",
        "slice",
        "step",
        "stream",
        "todo",
        "told",
    )

    def __init__(
        self,
        stream: str,
        on_error: str,
        collated: bool,
        seed: int,
        cut: Slice,
        epoch_samples: int = 0,
    ) -> None:
        self.stream = stream
        self.on_error = on_error
        self.collated = collated
        self.seed = seed
        self.slice = cut
        self.epoch_samples = epoch_samples
        self.ledger = FaultLedger(on_error)
        self.attempt = 0
        self.place: SlotRef | None = None
        self.begun_s = 0.0
        self.todo: deque[RowRange] = deque()
        self.running: dict[int, RowRange] = {}
        self.rows_left = 0
        self.chunks: list[Chunk] = []
        self.found: dict[int, BadRow] = {}
        self.replaced: dict[int, int] = {}
        self.needs_tail = self.needs_body = 0
        self.compacted = False
        self.absent = 0
        self.apart = False
        self.rescued = False
        self.step = self.told = 0

    def begin(self, place: SlotRef | None) -> None:
        """Start over.

        Args:
            place: The slot to make it in; None: it waits for one.
        """
        self.attempt += 1
        self.place = place
        self.running.clear()
        self.chunks.clear()
        self.found.clear()
        self.replaced.clear()
        self.compacted = False
        self.todo.clear()
        self.rows_left = 0
        if place is None:
            return
        self.rows_left = self.slice.rows
        if self.ledger.collate is None and len(self.ledger.lost) < self.slice.rows:
            if self.apart or self.ledger.batch_deaths:  # then trials may have been cut short
                kind = TRIAL if self.collated else FILL
                self.todo.extend(
                    RowRange(kind, row, row + 1)
                    for row in range(self.slice.rows)
                    if row not in self.ledger.lost
                )
            if self.collated or not self.apart:
                self.todo.append(_piece(BATCH if self.collated else FILL, 0, self.slice.rows))
        self._next_stage()

    @property
    def has_work(self) -> bool:
        """A piece can be given to a worker now.

        A collated batch waits until the trials of its rows are done.
        """
        return bool(self.todo) and not (self.todo[0].kind is BATCH and self.running)

    @property
    def whole(self) -> bool:
        """All rows are in its slot, or are known to be lost."""
        return self.place is not None and not self.todo and not self.running

    def next_rows(self, parts: int, share: float = 1.0) -> int:
        """How many rows the next job has; the arguments are those of `hand_out`."""
        piece = self.todo[0]
        rows = piece.last - piece.first
        if piece.kind is not FILL:
            return rows
        return min(rows, max(1, round(-(-self.slice.rows // parts) * share)))

    def hand_out(self, job: int, parts: int, share: float = 1.0) -> Job:
        """Take the next piece as a job. `has_work` must be true.

        Args:
            job: Number of the new job.
            parts: Into how many jobs the whole batch is cut.
            share: What part of such a job it is, at most 1: a slow worker gets less.
        """
        assert self.place is not None, "a batch without a slot has no work"
        rows = self.next_rows(parts, share)
        piece = self.todo.popleft()
        if piece.first + rows < piece.last:
            self.todo.appendleft(RowRange(FILL, piece.first + rows, piece.last))
            piece = RowRange(FILL, piece.first, piece.first + rows)
        self.running[job] = piece
        excluded, lost = (), self.lost if piece.kind is COMPACT else ()
        if self.ledger.has_bad and piece.kind is not COMPACT:
            rows = range(piece.first, piece.last)
            excluded = tuple(
                Excluded(row, each)
                for row in rows
                for each in sorted(self.ledger.excluded.get(row, ()))
            )
            lost = tuple(row for row in sorted(self.ledger.lost) if piece.first <= row < piece.last)
        cut = self.slice
        return _job(
            job,
            piece.kind,
            self.stream,
            self.place.segment,
            self.place.slot,
            self.seed,
            cut.epoch,
            cut.start,
            cut.rows,
            piece.first,
            piece.last,
            excluded,
            lost,
            self.epoch_samples,
        )

    def redo(self, pieces: Iterable[RowRange]) -> None:
        """Put pieces before all others that no worker has."""
        self.todo.extendleft(reversed(list(pieces)))
        self._next_stage()

    def absorb(self, job: int, done: Done) -> None:
        """Take in what a job of the present start has brought.

        Args:
            job: Number of the job.
            done: The worker's answer.
        """
        piece = self.running.pop(job)
        if piece.kind in (FILL, BATCH):
            self.rows_left -= piece.last - piece.first
            if done.size:
                self.chunks.append(Chunk(piece.first, piece.last, done.offset, done.size))
            for bad in done.bad:
                self.found[bad.row] = bad
            for put in done.replaced:
                self.replaced[put.row] = put.index
            self.absent = done.absent
        elif piece.kind is COMPACT:
            self.compacted = True
        self._next_stage()

    def _next_stage(self) -> None:
        """With "skip", move rows up over the lost ones once all pieces are done."""
        if (
            self.on_error != "skip"
            or self.todo
            or self.running
            or self.place is None
            or self.collated
            or self.compacted
        ):
            return
        lost = self.lost
        if lost and len(lost) < self.slice.rows and lost[0] < self.slice.rows - len(lost):
            self.todo.append(RowRange(COMPACT, 0, self.slice.rows))

    @property
    def lost(self) -> tuple[int, ...]:
        """Rows that are not in the slot, in order."""
        return tuple(
            sorted({row for row, bad in self.found.items() if bad.lost} | self.ledger.lost)
        )

    @property
    def bad(self) -> tuple[BadSample, ...]:
        """Its bad samples, by row. What a death has shown comes before what a worker has said."""
        bad_rows = {
            row: replace(sample, substitute=self.replaced.get(row))
            for row, sample in self.ledger.bad_rows.items()
        }
        samples = {row: bad.sample for row, bad in self.found.items()} | bad_rows
        return tuple(samples[row] for row in sorted(samples))

    @property
    def failed(self) -> bool:
        """There is no batch in the slot, only the reasons why."""
        if self.ledger.collate is not None or any(
            bad.sample.stage == "collate" for bad in self.found.values()
        ):
            return True
        if self.on_error == "raise":
            return bool(self.found or self.ledger.bad_rows)
        return self.on_error == "replace" and len(self.lost) > 0

    def missing(self) -> list[tuple[int, int]]:
        """Row ranges that are not in the slot yet, in order."""
        return sorted({(p.first, p.last) for p in (*self.todo, *self.running.values())})

    def descriptor(self, session: int, plan: int, k: int) -> Descriptor:
        """The message that announces it.

        Chunks of a batch with lost rows count only the rows that are there.

        Args:
            session: Number of the session.
            plan: The session's plan.
            k: Number of the batch in the plan.
        """
        assert self.place is not None, "a batch without a slot can't be announced"
        place, cut = self.place, self.slice
        failed, lost, bad = False, (), ()
        if self.found or self.ledger.has_bad:
            failed, lost = self.failed, self.lost
            bad = self.bad if self.ledger.collate is None else (self.ledger.collate, *self.bad)
        chunks = (
            ()
            if failed
            else tuple(
                _renumber(c, lost, self.absent) for c in sorted(self.chunks, key=lambda c: c.first)
            )
        )
        return _batch(
            session,
            plan,
            k,
            cut.epoch,
            cut.start,
            cut.rows,
            place.segment,
            place.slot,
            place.generation,
            0 if failed else cut.rows - len(lost) - self.absent,
            failed,
            tuple(c for c in chunks if c.first < c.last),
            cap(bad),
        )


def _renumber(chunk: Chunk, lost: tuple[int, ...], absent: int) -> Chunk:
    if absent:  # a batch made as a whole, whose last rows these are
        chunk = replace(chunk, last=chunk.last - absent)
    if not lost:
        return chunk
    first = chunk.first - sum(row < chunk.first for row in lost)
    return Chunk(
        first, chunk.last - sum(row < chunk.last for row in lost), chunk.offset, chunk.size
    )


def cap(bad: Iterable[BadSample]) -> tuple[BadSample, ...]:
    """As many bad samples as fit into a message.

    The first TRACEBACKS keep their traceback; all texts are cut.
    """
    kept: list[BadSample] = []
    room = BAD_BYTES
    for i, sample in enumerate(bad):
        traceback = sample.traceback[-TEXT_BYTES:] if i < TRACEBACKS else ""
        limit = TEXT_BYTES if i < TRACEBACKS else 200
        short = replace(
            sample,
            key=sample.key[:1024],
            error=sample.error[:200],
            message=sample.message[:limit],
            traceback=traceback,
        )
        room -= 4 * (len(short.key) + len(short.error) + len(short.message) + len(traceback)) + 100
        if room < 0 or i >= BAD_SAMPLES:
            break
        kept.append(short)
    return tuple(kept)
