"""After a worker's end within a job: which sample is the cause, and what is run again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from loaderd.core.actions import Quarantine
from loaderd.core.batches import BatchBuild, RowRange
from loaderd.core.fault_ledger import JobDeath, again
from loaderd.core.jobs import SINGLE, Job, JobKind, Stage
from loaderd.core.streams import StreamState
from loaderd_wire.errors import BadSample

IndexOf = Callable[[Job, int, int], int]


class FaultAttribution:
    """Attributes deaths of workers to samples, by the policy of their stream."""

    def __init__(self, streams: Mapping[str, StreamState], index_of: IndexOf) -> None:
        """Keep what names a sample.

        Args:
            streams: All streams, by name.
            index_of: The dataset index of a row, as for `Scheduler`.
        """
        self._streams = streams
        self._index_of = index_of

    def record_death(
        self, build: BatchBuild, job: Job, piece: RowRange, death: JobDeath, key: str, stack: str
    ) -> list[Quarantine]:
        """A worker is dead: count that, and put what is left of its piece back into the batch.

        Args:
            build: The batch.
            job: The job that it ran.
            piece: The rows of the job.
            death: How it ended.
            key: Name of the sample that it was at; "" if unknown.
            stack: Its stacks; "" if it wrote none.

        Returns:
            Lines for the quarantine log: at most one.
        """
        death, key = _within(piece, death, key)
        lines = self.mark_bad(build, job, piece, death, key, stack)
        if build.ledger.collate is not None:
            build.todo.clear()
            return lines
        pieces = again(piece.kind, piece.first, piece.last, death)
        if lines and build.collated:
            pieces = [(JobKind.BATCH, 0, job.rows)] if piece.kind is JobKind.BATCH else []
        build.redo(RowRange(*p) for p in pieces if not set(range(p[1], p[2])) <= build.ledger.lost)
        if len(build.ledger.lost) == job.rows:
            build.todo.clear()
        return lines

    def mark_bad(
        self, build: BatchBuild, job: Job, piece: RowRange, death: JobDeath, key: str, stack: str
    ) -> list[Quarantine]:
        """Count a worker's end, and exclude the sample, or the batch, that is now known to be bad.

        Args:
            build: The batch.
            job: The job that the worker ran.
            piece: The rows of the job.
            death: How it ended.
            key: Name of the sample that it was at; "" if unknown.
            stack: Its stacks; "" if it wrote none.

        Returns:
            Lines for the quarantine log: at most one.
        """
        death, key = _within(piece, death, key)
        attribution = build.ledger.attribute(piece.kind, piece.first, piece.last, death)
        if attribution.collate:
            sample = self._sample(job, job.first, 0, Stage.COLLATE, death, "", stack)
            build.ledger.collate = sample
        elif attribution.row is not None:
            # The key belongs to the sample that the status board named.
            named = (attribution.row, attribution.candidate) == (death.row, death.candidate)
            sample = self._sample(
                job,
                attribution.row,
                attribution.candidate,
                death.stage,
                death,
                key if named else "",
                stack,
            )
            build.ledger.mark_bad(attribution.row, attribution.candidate, sample)
        else:
            return []
        return [Quarantine(job.stream, job.epoch, sample)]

    def _sample(
        self,
        job: Job,
        row: int,
        candidate: int,
        stage: Stage,
        death: JobDeath,
        key: str,
        stack: str,
    ) -> BadSample:
        samples = job.epoch_samples or self._streams[job.stream].rules.samples
        position = (job.start + row) % samples
        index = self._index_of(job, row, candidate)
        name = "read" if stage is Stage.FETCH_MANY else stage.name.lower()
        error, text = "WorkerDied", f"each worker that made it died: {death.cause}"
        if death.hung:
            error, text = "Timeout", death.cause
        return BadSample(index, key or str(index), position, name, error, text, stack)


def _within(piece: RowRange, death: JobDeath, key: str) -> tuple[JobDeath, str]:
    """The same death and key; if its row lies outside of the job, it names no row and no sample.

    Only memory that was overwritten can say so.
    """
    if death.stage in SINGLE and not piece.first <= death.row < piece.last:
        return replace(death, row=piece.first, stage=Stage.FETCH_MANY), ""
    return death, key
