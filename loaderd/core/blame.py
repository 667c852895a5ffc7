"""Who is guilty of a worker's death: what is run again, in which pieces, and which row is convicted."""

from __future__ import annotations

from dataclasses import dataclass, replace

from loaderd.core.jobs import SINGLE, Kind, Stage
from loaderd_wire.errors import BadSample

OWN_DEATHS = 2  # of a row that ran alone, or of a batch in its collate
OUTSIDE_DEATHS = 8  # in a row, on one row alone
BATCH_DEATHS = 6  # of a collated batch, wherever: trials that convict nobody must come to an end; a hang counts as half of them
LAST_TRY = 16  # substitutes that "replace" draws for a row


@dataclass(frozen=True, slots=True)
class Death:
    """How the worker ended that held the job: its stamp in that job, and whether it was killed for not moving."""

    row: int
    stage: Stage
    own: bool
    hung: bool
    cause: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Row `row` is convicted; None: nobody yet. `collate`: the batch as a whole is."""

    row: int | None = None
    collate: bool = False


class Blame:
    """What is held against the rows of one batch."""

    __slots__ = ("batch_deaths", "collate", "collate_deaths", "convicted", "lost", "outside", "own", "tries")

    def __init__(self) -> None:
        self.own: dict[tuple[int, int], int] = {}  # by (row, tries)
        self.outside: dict[tuple[int, int], int] = {}
        self.collate_deaths = self.batch_deaths = 0
        self.tries: dict[int, int] = {}  # row -> how many of its candidates are condemned
        self.convicted: dict[int, BadSample] = {}
        self.lost: set[int] = set()
        self.collate: BadSample | None = None

    @property
    def guilty(self) -> bool:
        """A row, or the batch, has been convicted."""
        return bool(self.convicted) or self.collate is not None

    def judge(self, kind: Kind, first: int, last: int, death: Death) -> Verdict:
        """Count one death of the worker that ran rows [first, last); its stamp lies in that job."""
        alone = last - first == 1
        if kind is Kind.COMPACT or death.stage in (Stage.IDLE, Stage.OPEN):
            return Verdict()
        if kind is Kind.BATCH:
            return self._judge_batch(death, first if alone else None)
        if death.hung:
            guilty = death.stage in SINGLE or alone
            return Verdict(death.row if death.stage in SINGLE else first) if guilty else Verdict()
        if not alone:
            return Verdict()
        mark = (first, self.tries.get(first, 0))
        deaths, most = (self.own, OWN_DEATHS) if death.own else (self.outside, OUTSIDE_DEATHS)
        deaths[mark] = deaths.get(mark, 0) + 1
        return Verdict(first) if deaths[mark] >= most else Verdict()

    def _judge_batch(self, death: Death, only_row: int | None) -> Verdict:
        if death.hung and death.stage is not Stage.COLLATE:
            if death.stage in SINGLE:
                return Verdict(death.row)
            if only_row is not None:
                return Verdict(only_row)
        if not death.own and not death.hung:
            return Verdict()
        self.batch_deaths += BATCH_DEATHS // 2 if death.hung else 1
        if death.stage is Stage.COLLATE:
            self.collate_deaths += OWN_DEATHS if death.hung else 1
        return Verdict(collate=self.collate_deaths >= OWN_DEATHS or self.batch_deaths >= BATCH_DEATHS)

    def convict(self, row: int, sample: BadSample, on_error: str) -> None:
        """Policy: under "replace" its next candidate is tried, otherwise (or after the last one) the row is lost."""
        self.convicted.setdefault(row, sample)
        self.batch_deaths = 0  # its trials did come to something
        tries = self.tries.get(row, 0)
        if on_error == "replace" and tries <= LAST_TRY:
            self.tries[row] = tries + 1
        if on_error != "replace" or self.tries[row] > LAST_TRY:
            self.lost.add(row)

    def replaced(self, row: int, index: int) -> None:
        """A condemned row was made from the sample `index`."""
        if row in self.convicted:
            self.convicted[row] = replace(self.convicted[row], substitute=index)


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
