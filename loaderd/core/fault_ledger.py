"""Counts deaths of workers by sample: which sample is the cause, and what is run again."""

from __future__ import annotations

from dataclasses import dataclass

from loaderd.core.jobs import MAX_SUBSTITUTES, SINGLE, JobKind, Stage
from loaderd_wire.errors import BadSample

# workers that a row running alone, or a batch in its collate, may end before it is bad
OWN_DEATHS = 2
OUTSIDE_DEATHS = 8  # workers killed from outside at one row running alone before that row is bad
# workers that a collated batch may end anywhere: trials that find nothing must end
BATCH_DEATHS = 6


@dataclass(frozen=True, slots=True)
class JobDeath:
    """How the worker ended that ran a job.

    Attributes:
        row: Row of the batch that its word on the status board named.
        stage: What it was doing.
        own: It died of its own doing; see `events.WorkerDied`.
        hung: The daemon killed it because it did not move.
        cause: Of a hung one the limit that it had passed, else the cause of its death.
        candidate: Which sample the row was being made from, as in `jobs.Job`.
    """

    row: int
    stage: Stage
    own: bool
    hung: bool
    cause: str
    candidate: int = 0


@dataclass(frozen=True, slots=True)
class Attribution:
    """Which sample a death is attributed to.

    Attributes:
        row: Row of the batch; None: to no sample yet.
        candidate: Which sample of the row: 0 for its own, n for its n-th substitute.
        collate: To the batch as a whole, in its collate.
    """

    row: int | None = None
    candidate: int = 0
    collate: bool = False


class FaultLedger:
    """What is known against the samples of one batch.

    A row's own sample and each of its substitutes are counted apart. A sample that is bad is
    excluded: the row is not made from it again.

    Attributes:
        own: Deaths of workers' own doing, by (row, candidate), of rows that ran alone.
        outside: Deaths from outside, likewise.
        collate_deaths: Deaths in the batch's collate.
        batch_deaths: Deaths anywhere in a collated batch since a sample was last excluded.
        excluded: By row, the candidates that are excluded.
        bad_rows: By row, what is wrong with its own sample.
        lost: Rows all of whose candidates are excluded.
        collate: What is wrong with the batch as a whole, if it cannot be collated.
    """

    __slots__ = (
        "_candidates",
        "bad_rows",
        "batch_deaths",
        "collate",
        "collate_deaths",
        "excluded",
        "lost",
        "outside",
        "own",
    )

    def __init__(self, on_error: str) -> None:
        self._candidates = range(MAX_SUBSTITUTES + 1 if on_error == "replace" else 1)
        self.own: dict[tuple[int, int], int] = {}
        self.outside: dict[tuple[int, int], int] = {}
        self.collate_deaths = self.batch_deaths = 0
        self.excluded: dict[int, set[int]] = {}
        self.bad_rows: dict[int, BadSample] = {}
        self.lost: set[int] = set()
        self.collate: BadSample | None = None

    @property
    def has_bad(self) -> bool:
        """A sample, or the batch as a whole, is known to be bad."""
        return bool(self.excluded) or self.collate is not None

    def attribute(self, kind: JobKind, first: int, last: int, death: JobDeath) -> Attribution:
        """Count one death, and say which sample it is attributed to by now.

        Args:
            kind: Kind of the job.
            first: First row of the job.
            last: The row behind its last one.
            death: How the worker ended. Its row lies in the job.
        """
        alone = last - first == 1
        if kind is JobKind.COMPACT or death.stage in (Stage.IDLE, Stage.OPEN):
            return Attribution()
        if kind is JobKind.BATCH:
            return self._judge_batch(death, first if alone else None)
        if death.hung:
            named = death.stage in SINGLE or alone
            return (
                self._against(death.row if death.stage in SINGLE else first, death)
                if named
                else Attribution()
            )
        if not alone:
            return Attribution()
        attribution = self._against(first, death)
        mark = (first, attribution.candidate)
        deaths, most = (self.own, OWN_DEATHS) if death.own else (self.outside, OUTSIDE_DEATHS)
        deaths[mark] = deaths.get(mark, 0) + 1
        return attribution if deaths[mark] >= most else Attribution()

    def _judge_batch(self, death: JobDeath, only_row: int | None) -> Attribution:
        if death.hung and death.stage is not Stage.COLLATE:
            if death.stage in SINGLE:
                return self._against(death.row, death)
            if only_row is not None:
                return self._against(only_row, death)
        if not death.own and not death.hung:
            return Attribution()
        self.batch_deaths += BATCH_DEATHS // 2 if death.hung else 1
        if death.stage is Stage.COLLATE:
            self.collate_deaths += OWN_DEATHS if death.hung else 1
        return Attribution(
            collate=self.collate_deaths >= OWN_DEATHS or self.batch_deaths >= BATCH_DEATHS
        )

    def _against(self, row: int, death: JobDeath) -> Attribution:
        """The sample that the row was being made from.

        If the word on the status board names one that must not be made, it is the next one that
        may.
        """
        left = [
            candidate
            for candidate in self._candidates
            if candidate not in self.excluded.get(row, ())
        ]
        return Attribution(row, death.candidate if death.candidate in left or not left else left[0])

    def mark_bad(self, row: int, candidate: int, sample: BadSample) -> None:
        """Exclude a sample. The row is lost when it has no other.

        Args:
            row: Row of the batch.
            candidate: Which sample of the row.
            sample: What is wrong with it.
        """
        excluded = self.excluded.setdefault(row, set())
        excluded.add(candidate)
        if candidate == 0:
            self.bad_rows[row] = sample
        self.batch_deaths = self.collate_deaths = 0  # without this sample it is another batch
        if len(excluded) == len(self._candidates):
            self.lost.add(row)


def again(kind: JobKind, first: int, last: int, death: JobDeath) -> list[tuple[JobKind, int, int]]:
    """What is to be run after a death.

    A row that is suspected runs alone, so that its next death is known to be its own.

    Args:
        kind: Kind of the job.
        first: First row of the job.
        last: The row behind its last one.
        death: How the worker ended. Its row lies in the job.

    Returns:
        (kind, first, last) of each piece, in order.
    """
    if kind is JobKind.COMPACT or death.stage in (Stage.IDLE, Stage.OPEN):
        return [(kind, first, last)]
    inside = death.stage in SINGLE and first <= death.row < last
    if kind is JobKind.BATCH:
        if death.stage is Stage.COLLATE or not (death.own or death.hung):
            return [(kind, first, last)]
        rows = [death.row] if inside else range(first, last)
        return [*[(JobKind.TRIAL, row, row + 1) for row in rows], (kind, first, last)]
    if inside:
        parts = [
            (kind, first, death.row),
            (kind, death.row, death.row + 1),
            (kind, death.row + 1, last),
        ]
        return [p for p in parts if p[1] < p[2]]
    return [(kind, row, row + 1) for row in range(first, last)]
