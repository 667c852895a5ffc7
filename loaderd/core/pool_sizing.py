"""How many workers a pool has that finds its own number, by what trainers wait for.

A review looks at what was measured since the pool last changed. The first rule that holds decides:

| what is found | what is done |
|---|---|
| workers are starting, or too little was measured | nothing |
| a trainer came, or came back, and there are fewer workers than at the start | as many as then |
| the last growth brought little of what it promised | the size before it, for `keep_s` at least |
| a trainer waits, the workers are all at work, more are needed | growth by half, as a trial; up |
| | to the size at the start at once |
| a trainer waits since workers were given back | they come back |
| a smaller pool has sufficed for `keep_s` | a quarter of what is too much is given back |

No size changes the data: which rows a batch has does not depend on who makes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from loaderd.core import assessment
from loaderd.core.actions import LogLine
from loaderd.core.growth_limits import growth_limits
from loaderd.core.sessions import SessionState
from loaderd.core.state import SchedulerState
from loaderd.core.usage import UsageSample
from loaderd.core.verdict import (
    AT_ALL_CPUS,
    MOST_WORKERS,
    WAITS,
    AutoSize,
    Measures,
    largest_stage,
    need_text,
    waits_for_workers,
)

LEAST = 2  # workers that are never given back: one of them may be held up by a slow sample
HELPS = 0.3  # part of the promised growth in batches a second from which on it counts as a help
LOSES = 0.03  # part of the batches a second that a growth must not cost
ROOMY = 0.9  # a pool suffices if this part of it is needed


@dataclass(frozen=True, slots=True)
class PoolPace:
    """How soon a pool changes.

    Attributes:
        review_s: Between two reviews.
        settle_s: That new workers may take to do their first job, before all are measured anyway.
        measure_s: What must have been measured of each trainer.
        batches: How many batches must have been in it.
        measure_most_s: After which a measure will do, however few these were.
        keep_s: For how long a smaller pool must have sufficed, and how long a growth that did not
            help is not tried again; after each one in a row twice as long.
        give_back_s: From then on, between two steps down.
    """

    review_s: float = 2.0
    settle_s: float = 60.0
    measure_s: float = 5.0
    batches: int = 16
    measure_most_s: float = 30.0
    keep_s: float = 600.0
    give_back_s: float = 30.0


@dataclass(frozen=True, slots=True)
class GrowthTrial:
    """A growth that has yet to show that it helps.

    Attributes:
        before: Workers before it.
        rates: Batches a second that were made before it, for the sessions that waited.
        promised: By which factor these should rise.
    """

    before: int
    rates: Mapping[int, float]
    promised: float


class PoolSizer:
    """Changes the size of a scheduler's pool, one review after the other."""

    def __init__(
        self, state: SchedulerState, most: int, worker_memory: int, pace: PoolPace
    ) -> None:
        """Change nothing yet.

        Args:
            state: The tables; the pool in it has as many workers as it is to begin with.
            most: Workers that there may ever be.
            worker_memory: Bytes that a worker may take; 0: no limit.
            pace: How soon it changes.
        """
        self._state = state
        self._pool = state.pool
        self._start = state.pool.size
        self._least = min(LEAST, self._start)
        self._most = max(most, self._start)
        self._worker_memory = worker_memory
        self._pace = pace
        self._next_s: float | None = None  # None: nothing changes until a trainer says something
        self._trainers: set[int] = set()
        self._marks: dict[int, UsageSample] = {}  # what had been counted when the measuring began
        self._changed_s = self._needed_s = 0.0
        self._trial: GrowthTrial | None = None
        self._ceiling, self._ceiling_s = self._most, 0.0  # size beyond which a growth did not help
        self._failures = 0  # of growths in a row
        self._no_help = AutoSize()
        self._given_back = 0  # size before workers were last given back, until one is missed
        self._held = ""  # why it does not grow, as the log was told
        state.auto, state.sizing = AutoSize(), ""

    def begin(self) -> None:
        """The first workers are started."""
        self._changed_s = self._needed_s = self._state.now_s

    def next_s(self) -> float | None:
        """When the next review is due; None: not before a trainer says something."""
        return None if self._state.draining else self._next_s

    def heard(self) -> None:
        """A trainer has said something."""
        if self._next_s is None:
            self._next_s = self._state.now_s + self._pace.review_s

    def attached(self) -> None:
        """A trainer has come: it gets what it would get of a new daemon."""
        self._failures, self._ceiling_s = 0, 0.0
        if self._pool.size < self._start and not self._state.draining:
            self._resize(self._start, "a trainer has come")

    def review(self, free_bytes: int) -> None:
        """Look at what was measured, and change the size if a rule says so.

        Args:
            free_bytes: Memory that more workers may take together.
        """
        state, pool = self._state, self._pool
        trains = {
            number: session
            for number, session in state.sessions.items()
            if not session.ended and session.usage.training(state.now_s)
        }
        idle = not trains and pool.size <= self._least
        self._next_s = None if idle else state.now_s + self._pace.review_s
        if not pool.settled and state.now_s - self._changed_s < self._pace.settle_s:
            self._marks = {}
            return
        came, gone = trains.keys() - self._trainers, self._trainers - trains.keys()
        self._trainers = set(trains)
        if came or gone:
            self._trial = None
        if came and pool.size < self._start:
            self._resize(self._start, "a trainer has come back")
        elif trains.keys() != self._marks.keys():
            self._mark(trains)
        else:
            self._decide(trains, free_bytes)

    def _decide(self, trains: Mapping[int, SessionState], free_bytes: int) -> None:
        state, pace = self._state, self._pace
        found = {
            number: assessment.measures(
                state,
                session,
                session.usage.since(self._marks[number], state.now_s, state.usage),
            )
            for number, session in trains.items()
        }
        if not all(self._enough(m) for m in found.values()):
            return
        waiting = {number: m for number, m in found.items() if waits_for_workers(m)}
        if not self._undo(found, waiting):
            need = sum(m.need or 0.0 for m in found.values()) - len(self._pool.remote.up)
            if waiting:
                self._grow(found, waiting, min(MOST_WORKERS, math.ceil(need)), free_bytes)
            else:
                self._held, state.auto = "", AutoSize()
            if all(m.wait_fraction < WAITS for m in found.values()):
                self._give_back(need)
            else:
                self._needed_s = state.now_s
        if any(m.elapsed_s >= pace.measure_most_s for m in found.values()):
            self._mark(trains)  # so that what was long ago counts no more

    def _enough(self, m: Measures) -> bool:
        pace = self._pace
        least_s = pace.measure_s if m.batches >= pace.batches else pace.measure_most_s
        return m.elapsed_s >= least_s and m.batches > 0 and sum(m.stage_s) > 0

    # -- up

    def _grow(
        self,
        found: Mapping[int, Measures],
        waiting: Mapping[int, Measures],
        wanted: int,
        free_bytes: int,
    ) -> None:
        """Have more workers, unless something speaks against it."""
        size = self._pool.size
        if wanted <= size:
            if size < self._given_back:
                self._resize(self._given_back, "a trainer waits since workers were given back")
            return
        state = self._state
        limits = [
            *growth_limits(state, found, wanted, free_bytes, self._worker_memory),
            (self._ceiling if state.now_s < self._ceiling_s else MOST_WORKERS, self._no_help),
            (self._most, AutoSize(f"the pool may have {self._most} workers, and has them")),
        ]
        limit, hold = min(limits, key=lambda each: each[0])
        target = min(limit, wanted, max(self._start, size + max(1, size // 2)))
        if target <= size:
            self._hold(hold)
            return
        worst = max(waiting.values(), key=lambda m: m.wait_fraction)
        if target > self._start:
            rates = {number: _rate(m) for number, m in waiting.items() if m.rows}
            works = sum(1 - m.wait_fraction for m in waiting.values()) / len(waiting)
            promised = min(target / size, 1 / max(0.01, works))
            self._trial = GrowthTrial(size, rates, promised) if rates else None
        text = need_text(worst.need or 0.0, size, worst.others_need)
        self._resize(target, f"a trainer waits {worst.wait_fraction:.0%} of the time; {text}")
        state.auto = AutoSize()

    def _hold(self, why: AutoSize) -> None:
        """It would grow, and does not."""
        self._state.auto = why
        kind = why.text.partition("(")[0]  # the numbers change
        if kind != self._held:
            self._held = kind
            self._say(f"it stays at {self._pool.size}: {why.text}")

    def _undo(self, found: Mapping[int, Measures], waiting: Mapping[int, Measures]) -> bool:
        """Go back to the size before a growth that did not help.

        Returns:
            Whether it did.
        """
        trial, self._trial = self._trial, None
        if trial is None:
            return False
        rates = {number: _rate(found[number]) for number in trial.rates}
        gain = sum(rates[n] / was for n, was in trial.rates.items()) / len(rates)
        suffices = not waiting and gain >= 1 - LOSES
        if suffices or gain >= 1 + HELPS * (trial.promised - 1):
            self._failures = 0
            return False
        size = self._pool.size
        stage, _ = largest_stage(found[next(iter(rates))].stage_s)
        setting, advice = AT_ALL_CPUS[stage]
        said = (
            f"more than {trial.before} workers did not help ({sum(trial.rates.values()):.3g} "
            f"batches a second with {trial.before}, {sum(rates.values()):.3g} with {size})"
        )
        again_s = self._pace.keep_s * 2 ** min(self._failures, 10)
        self._ceiling, self._ceiling_s = trial.before, self._state.now_s + again_s
        self._failures += 1
        self._no_help = AutoSize(f"{said}: {advice}", setting)
        self._resize(trial.before, said)
        self._state.auto, self._held = self._no_help, self._no_help.text.partition("(")[0]
        return True

    # -- down

    def _give_back(self, need: float) -> None:
        """Have fewer workers, if a smaller pool has sufficed for long."""
        state, size, pace = self._state, self._pool.size, self._pace
        extra = size - max(self._least, math.ceil(need))
        smaller = size - max(1, extra // 4)
        if extra <= 0 or need > ROOMY * smaller:
            self._needed_s = state.now_s
        elif state.now_s - self._needed_s >= pace.keep_s:
            self._given_back = size
            self._resize(smaller, f"trainers need {need:.1f}")
            self._needed_s = state.now_s - pace.keep_s + pace.give_back_s

    # -- both

    def _mark(self, trains: Mapping[int, SessionState]) -> None:
        """What is counted from now on is measured."""
        state = self._state
        self._marks = {
            number: session.usage.counters(state.now_s, state.usage)
            for number, session in trains.items()
        }

    def _resize(self, size: int, why: str) -> None:
        state = self._state
        if size >= self._pool.size:
            self._needed_s, self._given_back = state.now_s, 0
        was, changes = self._pool.size, self._pool.resize(size)
        self._say(f"{was} -> {self._pool.size}: {why}")
        state.actions += changes
        self._changed_s, self._marks, self._held = state.now_s, {}, ""

    def _say(self, text: str) -> None:
        self._state.sizing = text
        self._state.actions.append(
            LogLine(
                "info",
                "pool_size",
                f'num_workers = "auto": {text}',
                {"workers": self._pool.size},
            )
        )


def _rate(m: Measures) -> float:
    """Batches a second that were made: rows count each as it is made, batches when all are."""
    return m.rows / m.batch_rows / m.elapsed_s
