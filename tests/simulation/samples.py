"""A made-up stream: which of its samples are bad and how, and what an undisturbed daemon would
deliver.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from loaderd.config.stream import StreamConfig
from loaderd.core.interleaving import Interleaving
from loaderd.core.jobs import MAX_SUBSTITUTES, Stage
from loaderd.core.mixture import MixedOrder, MixedSource, epoch_of_mixture
from loaderd.core.order import Order, StreamOrder
from loaderd.core.scheduler import StreamRules
from loaderd.core.weighted_draw import WeightedDraw, weight_ends
from loaderd.engine.messages import StreamInfo
from loaderd.server.admission import OpenedStream
from loaderd_wire.errors import BadSample
from loaderd_wire.slices import Slice
from loaderd_wire.slots import FieldSpec

SINGLE_STAGES = (Stage.READ, Stage.DECODE, Stage.TRANSFORM)


@dataclass(frozen=True)
class Flaw:
    """What is wrong with a sample.

    how: "raise", "poison" (kills its worker) or "hang"; stage: where; often: the chance of it, each
    time.
    """

    how: str
    stage: Stage
    often: float = 1.0


@dataclass(frozen=True)
class Outcome:
    """What a batch must be.

    rows: for each row in the slot, in order, the indices that it may have. bad: of the bad samples;
    None: not looked at.
    """

    failed: bool
    rows: list[set[int]]
    bad: list[int] | None

    def fits(self, indices: Sequence[int | None]) -> bool:
        return len(indices) == len(self.rows) and all(
            index in allowed for index, allowed in zip(indices, self.rows, strict=True)
        )


@dataclass
class Samples:
    """One stream of the world.

    stored: its keys lie in the slot's tail. many: it reads all rows of a job at once. mixed: it is
    a mixture whose first source has so many of its samples; 0: it is none. weights: of its samples,
    which are drawn then. epoch_steps: of an endless order, cut for `batch_size` and `world_size`
    alone; 0: an epoch ends with the samples.
    """

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
    tail_row_bytes: int = 8  # that the probe found necessary
    body_bytes: int = 0
    empty: str = "skip"
    tail: str = "repeat"
    changed: str = ""
    mixed: int = 0
    stop: str = "first"
    weights: tuple[float, ...] = ()
    epoch_steps: int = 0
    batch_size: int = 1
    world_size: int = 1
    _orders: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        draw = WeightedDraw(weight_ends(np.array(self.weights))) if self.weights else None
        self.order: StreamOrder = Order(self.total, shuffle=self.shuffle, draw=draw)
        sources, word = [MixedSource(self.order, self.total)], Interleaving([Fraction(1)])
        if self.mixed:
            sizes = (self.mixed, self.total - self.mixed)
            sources = [MixedSource(Order(n, shuffle=self.shuffle), n, seed=n) for n in sizes]
            word = Interleaving([Fraction(7), Fraction(3)])
            samples = epoch_of_mixture(word, sizes, self.stop)
            self.order = MixedOrder(sources, word, samples, endless=False)
        if self.epoch_steps:
            samples = self.epoch_steps * self.batch_size * self.world_size
            self.order = MixedOrder(sources, word, samples, endless=True)
        self.rules = StreamRules(self.name, self.on_error, self.collated, self.order.samples)
        self.stream = OpenedStream(self._plan(), self._facts())

    def _plan(self) -> StreamConfig:
        return StreamConfig(
            self.name,
            dataset="made:Up",
            batch_size=self.batch_size,
            epoch_steps=self.epoch_steps,
            shuffle=self.shuffle,
            on_error=self.on_error,
            empty=self.empty,
            tail=self.tail,
        )

    def _facts(self) -> StreamInfo:
        return StreamInfo(
            stream=self.name,
            total=self.total,
            samples=self.order.samples,
            identity="made up",
            state="",
            layout="",
            keys="stored" if self.stored else "index",
            classes=(),
            specs=(FieldSpec("x", "<i8", ()),),
            sample_specs=(FieldSpec("x", "<i8", ()),),
            form="dict",
            collated=self.collated,
            tail_row_bytes=self.tail_row_bytes,
            body_bytes=self.body_bytes,
            jpeg_extension="not used",
            warnings=(),
        )

    def share(self, window: int) -> None:
        """Trainers may share its batches."""
        plan = replace(self.stream.plan, share=True, share_window=window)
        self.stream = OpenedStream(plan, self.stream.facts)

    def epoch(self, seed: int, epoch: int) -> list[int]:
        known = self._orders.get((seed, epoch))
        if known is None:
            known = self._orders[seed, epoch] = self.order.indices(
                seed, epoch, np.arange(self.order.samples)
            ).tolist()
        return known

    def index_of(self, seed: int, epoch: int, position: int) -> int:
        return self.epoch(seed, epoch)[position % self.order.samples]

    def candidate(self, seed: int, epoch: int, position: int, candidate: int) -> int:
        """What a row may be made from: its own sample for 0, its n-th substitute for n."""
        return self.order.candidate(seed, epoch, position, candidate)

    def indices(self, seed: int, cut: Slice) -> list[int]:
        return [self.index_of(seed, cut.epoch, p) for p in range(cut.start, cut.start + cut.rows)]

    def expected(self, seed: int, cut: Slice, told: Sequence[BadSample]) -> Outcome:
        """Straight from the order and the policies, without slots, jobs or workers.

        told: the bad samples that the batch names: they tell which of those that fail only
        sometimes have failed, and for which of them all substitutes have.
        """
        failed = {bad.index for bad in told}
        lost = {bad.index for bad in told if bad.substitute is None}
        made: list[set[int]] = []
        bad: list[int] = []
        exhausted = False
        for row, index in enumerate(self.indices(seed, cut)):
            flaw = self.flaws.get(index)
            if flaw is None or (flaw.often < 1 and index not in failed):
                made.append({index})
                continue
            bad.append(index)
            if self.on_error == "replace":
                substitutes, certain = self._substitutes(seed, cut.epoch, cut.start + row)
                if certain or (substitutes and index not in lost):
                    made.append(substitutes)
                else:
                    exhausted = True
        if any(index in self.sour for allowed in made for index in allowed):
            return Outcome(True, [], None)
        if (bad and self.on_error == "raise") or exhausted:
            return Outcome(True, [], bad)
        return Outcome(False, made, bad)

    def _substitutes(self, seed: int, epoch: int, position: int) -> tuple[set[int], bool]:
        """(the first one that is sound and those before it that fail only sometimes, whether there
        is a sound one).
        """
        allowed: set[int] = set()
        for candidate in range(1, MAX_SUBSTITUTES + 1):
            index = self.order.substitute(seed, epoch, position, candidate)
            flaw = self.flaws.get(index)
            if flaw is None or flaw.often < 1:
                allowed.add(index)
            if flaw is None:
                return allowed, True
        return allowed, False


def some_samples(seeder: random.Random, name: str) -> Samples:
    """A stream with everything drawn: size, policy, flaws."""
    total = seeder.choice([1, 2, 3, 5, 8, 13, 20, 35, 60])
    collated = seeder.random() < 0.3
    on_error = seeder.choice(["raise", "skip", "replace"])
    flaws: dict[int, Flaw] = {}
    if seeder.random() < 0.65:
        for index in seeder.sample(range(total), min(total - 1, seeder.choice([0, 1, 1, 2, 3, 5]))):
            how = seeder.choice(["raise", "raise", "raise", "poison", "hang"])
            killers = sum(flaw.how != "raise" for flaw in flaws.values())
            if killers >= (
                min(3, total // 16) if on_error == "replace" else min(3, 1 + total // 8)
            ):
                how = "raise"  # a stream of nothing but killers is given up, and rightly so
            often = seeder.choice([1.0, 1.0, 1.0, 0.5])
            if collated and how != "raise":
                # a batch that is killed again and again, and whose rows alone kill nobody, is
                # blamed as a whole
                often = 1.0
            flaws[index] = Flaw(how, seeder.choice(SINGLE_STAGES), often)
    sound = [index for index in range(total) if index not in flaws]
    sour: dict[int, str] = {}
    if collated and seeder.random() < 0.15 and all(flaw.often == 1 for flaw in flaws.values()):
        sour[seeder.choice(sound)] = (
            seeder.choice(["raise", "poison", "hang"]) if total >= 20 else "raise"
        )
    plain = seeder.random() < 0.7
    mixed = total // 3 if total >= 5 and plain else 0
    if all(index in flaws and flaws[index].how != "raise" for index in range(mixed)):
        mixed = 0  # an epoch may have no other samples than these
    # A batch may have a sample twice from here on: then both are bad, or none. And where most of
    # what is drawn kills, a stream is given up.
    if mixed:
        flaws = {index: replace(flaw, often=1.0) for index, flaw in flaws.items()}
        sour = dict.fromkeys(sour, "raise")  # an epoch may be one batch
    certain = all(flaw.often == 1 for flaw in flaws.values())
    killers = any(flaw.how != "raise" for flaw in flaws.values())
    epoch_steps = seeder.choice([0, 0, 3, 10]) if certain and (total >= 13 or not killers) else 0
    weights: tuple[float, ...] = ()
    if certain and not killers and not mixed:
        drawn = tuple(seeder.choice([1.0, 1.0, 2.5, 0.3]) for _ in range(total))
        weights = seeder.choice([(), drawn])
    empty = seeder.choice(["skip", "deliver"])
    bytes_of = {index: 8 if plain else seeder.choice([8, 8, 16, 40, 300]) for index in range(total)}
    return Samples(
        name=name,
        total=total,
        shuffle=seeder.choice([0, 1, 1, 4]),
        on_error=on_error,
        collated=collated,
        stored=seeder.random() < 0.5,
        many=seeder.random() < 0.2,
        flaws=flaws,
        sour=sour,
        bytes_of=bytes_of,
        row_s=seeder.choice([0.002, 0.01, 0.03]),
        tail_row_bytes=seeder.choice([8, 16, 64, 512]),
        body_bytes=seeder.choice([4, 8, 32, 512]),
        empty=empty,
        tail="short" if total % 2 else "repeat",
        mixed=mixed,
        stop="first" if total % 3 else "all",
        weights=weights,
        epoch_steps=epoch_steps,
        batch_size=seeder.randint(1, 6),
        world_size=1 if on_error == "skip" and empty == "skip" else seeder.randint(1, 2),
    )
