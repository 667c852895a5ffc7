"""Who is guilty of a worker's death: what is run again, in which pieces, and which row is convicted."""

from __future__ import annotations

from dataclasses import dataclass

from loaderd.core.jobs import MAX_SUBSTITUTES, SINGLE, Kind, Stage
from loaderd_wire.errors import BadSample

OWN_DEATHS = 2  # of a row that ran alone, or of a batch in its collate
OUTSIDE_DEATHS = 8  # in a row, on one row alone
BATCH_DEATHS = 6  # of a collated batch, wherever: trials that convict nobody must come to an end; a hang counts as half of them


@dataclass(frozen=True, slots=True)
class Death:
    """How the worker ended that held the job: its stamp in that job, and whether it was killed for not moving; then cause is the limit
    that it had passed.

    candidate: which sample the row was being made from, as in a job's `condemned`.
    """

    row: int
    stage: Stage
    own: bool
    hung: bool
    cause: str
    candidate: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Candidate `candidate` of row `row` is convicted; None: nobody yet. `collate`: the batch as a whole is."""

    row: int | None = None
    candidate: int = 0
    collate: bool = False


class Blame:
    """What is held against the samples of one batch. A row's own sample and each of its substitutes answer for themselves alone.

    condemned: by row, the candidates that it must not be made from. convicted: by row, what is said of its own sample. lost: rows without
    a candidate that is left.
    """

    __slots__ = ("_candidates", "batch_deaths", "collate", "collate_deaths", "condemned", "convicted", "lost", "outside", "own")

    def __init__(self, on_error: str) -> None:
        self._candidates = range(MAX_SUBSTITUTES + 1 if on_error == "replace" else 1)
        self.own: dict[tuple[int, int], int] = {}  # by (row, candidate)
        self.outside: dict[tuple[int, int], int] = {}
        self.collate_deaths = self.batch_deaths = 0
        self.condemned: dict[int, set[int]] = {}
        self.convicted: dict[int, BadSample] = {}
        self.lost: set[int] = set()
        self.collate: BadSample | None = None

    @property
    def guilty(self) -> bool:
        """A sample, or the batch, has been convicted."""
        return bool(self.condemned) or self.collate is not None

    def judge(self, kind: Kind, first: int, last: int, death: Death) -> Verdict:
        """Count one death of the worker that ran rows [first, last); its stamp lies in that job."""
        alone = last - first == 1
        if kind is Kind.COMPACT or death.stage in (Stage.IDLE, Stage.OPEN):
            return Verdict()
        if kind is Kind.BATCH:
            return self._judge_batch(death, first if alone else None)
        if death.hung:
            guilty = death.stage in SINGLE or alone
            return self._against(death.row if death.stage in SINGLE else first, death) if guilty else Verdict()
        if not alone:
            return Verdict()
        verdict = self._against(first, death)
        mark = (first, verdict.candidate)
        deaths, most = (self.own, OWN_DEATHS) if death.own else (self.outside, OUTSIDE_DEATHS)
        deaths[mark] = deaths.get(mark, 0) + 1
        return verdict if deaths[mark] >= most else Verdict()

    def _judge_batch(self, death: Death, only_row: int | None) -> Verdict:
        if death.hung and death.stage is not Stage.COLLATE:
            if death.stage in SINGLE:
                return self._against(death.row, death)
            if only_row is not None:
                return self._against(only_row, death)
        if not death.own and not death.hung:
            return Verdict()
        self.batch_deaths += BATCH_DEATHS // 2 if death.hung else 1
        if death.stage is Stage.COLLATE:
            self.collate_deaths += OWN_DEATHS if death.hung else 1
        return Verdict(collate=self.collate_deaths >= OWN_DEATHS or self.batch_deaths >= BATCH_DEATHS)

    def _against(self, row: int, death: Death) -> Verdict:
        """The sample that the row was being made from; of a stamp that names none that may be made, the next one that may."""
        left = [candidate for candidate in self._candidates if candidate not in self.condemned.get(row, ())]
        return Verdict(row, death.candidate if death.candidate in left or not left else left[0])

    def convict(self, row: int, candidate: int, sample: BadSample) -> None:
        """The row is not made from this sample again; it is lost when it has none left."""
        condemned = self.condemned.setdefault(row, set())
        condemned.add(candidate)
        if candidate == 0:
            self.convicted[row] = sample
        self.batch_deaths = self.collate_deaths = 0  # its trials did come to something, and the batch is another one from now on
        if len(condemned) == len(self._candidates):
            self.lost.add(row)


def again(kind: Kind, first: int, last: int, death: Death) -> list[tuple[Kind, int, int]]:
    """What is run after a death whose stamp lies in the job: (kind, first, last), in order; rows named alone come alone."""
    if kind is Kind.COMPACT or death.stage in (Stage.IDLE, Stage.OPEN):
        return [(kind, first, last)]
    inside = death.stage in SINGLE and first <= death.row < last
    if kind is Kind.BATCH:
        if death.stage is Stage.COLLATE or not (death.own or death.hung):
            return [(kind, first, last)]
        rows = [death.row] if inside else range(first, last)
        return [*[(Kind.TRIAL, row, row + 1) for row in rows], (kind, first, last)]
    if inside:
        parts = [(kind, first, death.row), (kind, death.row, death.row + 1), (kind, death.row + 1, last)]
        return [p for p in parts if p[1] < p[2]]
    return [(kind, row, row + 1) for row in range(first, last)]
