"""A made-up stream: which of its samples are bad and how, and what an undisturbed daemon would deliver."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from loaderd.core.jobs import MAX_SUBSTITUTES, Stage
from loaderd.core.order import Order
from loaderd.core.scheduler import StreamRules
from loaderd_wire.slices import Slice

SINGLE_STAGES = (Stage.READ, Stage.DECODE, Stage.TRANSFORM)


@dataclass(frozen=True)
class Flaw:
    """What is wrong with a sample. how: "raise", "poison" (kills its worker each time) or "hang"; stage: where."""

    how: str
    stage: Stage


@dataclass(frozen=True)
class Outcome:
    """What a batch must be. indices: of the rows in the slot, in order. bad: of the bad samples; None: not looked at."""

    failed: bool
    indices: list[int]
    bad: list[int] | None


@dataclass
class Samples:
    """One stream of the world. stored: its keys lie in the slot's tail. many: it reads all rows of a job at once."""

    name: str
    total: int
    shuffle: int
    on_error: str
    collated: bool
    stored: bool
    many: bool
    flaws: dict[int, Flaw]
    sour: dict[int, str]  # a collate over this sample fails: "raise", "poison" or "hang"
    bytes_of: dict[int, int]  # of a sample's key in the tail, or of its part of a collated batch
    row_s: float
    changed: str = ""
    _orders: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.order = Order(self.total, shuffle=self.shuffle)
        self.rules = StreamRules(self.name, self.on_error, self.collated, self.total)

    def epoch(self, seed: int, epoch: int) -> list[int]:
        known = self._orders.get((seed, epoch))
        if known is None:
            known = self._orders[seed, epoch] = self.order.indices(seed, epoch, np.arange(self.total)).tolist()
        return known

    def index_of(self, seed: int, epoch: int, position: int) -> int:
        return self.epoch(seed, epoch)[position % self.total]

    def candidate(self, seed: int, epoch: int, position: int, candidate: int) -> int:
        """What a row may be made from: its own sample for 0, its n-th substitute for n."""
        return self.order.candidate(seed, epoch, position, candidate)

    def indices(self, seed: int, cut: Slice) -> list[int]:
        return [self.index_of(seed, cut.epoch, p) for p in range(cut.start, cut.start + cut.rows)]

    def expected(self, seed: int, cut: Slice) -> Outcome:
        """Straight from the order and the policies, without slots, jobs or workers."""
        made: list[int] = []
        bad: list[int] = []
        exhausted = False
        for row, index in enumerate(self.indices(seed, cut)):
            if index not in self.flaws:
                made.append(index)
                continue
            bad.append(index)
            if self.on_error == "replace":
                substitute = self._substitute(seed, cut.epoch, cut.start + row)
                if substitute is None:
                    exhausted = True
                else:
                    made.append(substitute)
        if any(index in self.sour for index in made):
            return Outcome(True, [], None)
        if (bad and self.on_error == "raise") or exhausted:
            return Outcome(True, [], bad)
        return Outcome(False, made, bad)

    def _substitute(self, seed: int, epoch: int, position: int) -> int | None:
        drawn = (self.order.substitute(seed, epoch, position, tries) for tries in range(1, MAX_SUBSTITUTES + 1))
        return next((index for index in drawn if index not in self.flaws), None)


def some_samples(chance: random.Random, name: str) -> Samples:
    """A stream with everything drawn: size, policy, flaws."""
    total = chance.choice([1, 2, 3, 5, 8, 13, 20, 35, 60])
    collated = chance.random() < 0.3
    on_error = chance.choice(["raise", "skip", "replace"])
    flaws: dict[int, Flaw] = {}
    if chance.random() < 0.65:
        for index in chance.sample(range(total), min(total - 1, chance.choice([0, 1, 1, 2, 3, 5]))):
            how = chance.choice(["raise", "raise", "raise", "poison", "hang"])
            killers = sum(flaw.how != "raise" for flaw in flaws.values())
            if killers >= (min(3, total // 16) if on_error == "replace" else min(3, 1 + total // 8)):
                how = "raise"  # a stream of nothing but killers is given up, and rightly so
            flaws[index] = Flaw(how, chance.choice(SINGLE_STAGES))
    sound = [index for index in range(total) if index not in flaws]
    sour: dict[int, str] = {}
    if collated and chance.random() < 0.15:
        sour[chance.choice(sound)] = chance.choice(["raise", "poison", "hang"]) if total >= 20 else "raise"
    plain = chance.random() < 0.7
    bytes_of = {index: 8 if plain else chance.choice([8, 8, 16, 40, 300]) for index in range(total)}
    return Samples(
        name=name,
        total=total,
        shuffle=chance.choice([0, 1, 1, 4]),
        on_error=on_error,
        collated=collated,
        stored=chance.random() < 0.5,
        many=chance.random() < 0.2,
        flaws=flaws,
        sour=sour,
        bytes_of=bytes_of,
        row_s=chance.choice([0.002, 0.01, 0.03]),
    )
