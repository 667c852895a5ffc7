"""The plan of a storm: which fault, when, at whom, for how long; a function of the seed alone."""

from __future__ import annotations

import random
from dataclasses import dataclass

# kind: (weight, seconds it lasts at most; 0 for what is done in an instant)
WORKERS = {
    "kill a worker": (10, 0),
    "kill all workers": (2, 0),
    "stop a worker": (4, 2.5),
    "a worker dies in a sample": (4, 0),
}
WORKERS |= {"a worker aborts in a sample": (3, 0), "a sample is slow": (3, 0)}
TEMPLATE = {"kill the template": (3, 0), "stop the template": (2, 2.0)}
TRAINERS = {
    "kill a trainer": (6, 0),
    "stop a trainer": (5, 2.5),
    "a trainer leaves, another comes": (4, 0),
}
SHORTAGE = {
    "no file descriptors for the daemon": (2, 1.5),
    "no file descriptors for the template": (2, 1.5),
    "no room for segments": (2, 1.5),
}
PEERS = {"garbage on the sockets": (3, 0), "silent connections": (2, 2.0)}
PAUSES = {"stop the daemon": (3, 2.5), "stop everything that serves": (2, 2.5)}
DAEMON = {"kill the daemon": (6, 0), "drain the daemon": (2, 0)}
SURVIVED = WORKERS | TEMPLATE | TRAINERS | SHORTAGE | PEERS | PAUSES
ALL = SURVIVED | DAEMON


@dataclass(frozen=True)
class Fault:
    """at_s: seconds from the round's begin.

    where: in [0, 1), picks the victim. lasts_s: until it is lifted.
    """

    at_s: float
    kind: str
    where: float
    lasts_s: float


def plan(rng: random.Random, seconds: float, gap_s: float, *, daemon: bool) -> list[Fault]:
    """Faults at random times in [0, seconds), `gap_s` apart on average, each kind at least once if
    there is room. daemon: it dies too.
    """
    kinds = ALL if daemon else SURVIVED
    times: list[float] = []
    at_s = rng.uniform(0, gap_s)
    while at_s < seconds:
        times.append(at_s)
        at_s += rng.expovariate(1 / gap_s)
    chosen = list(kinds)[: len(times)]
    if daemon:
        chosen = list(reversed(kinds))[: len(times)]
    chosen += rng.choices(
        list(kinds), [weight for weight, _ in kinds.values()], k=len(times) - len(chosen)
    )
    rng.shuffle(chosen)
    return [
        Fault(at, kind, rng.random(), rng.uniform(0.3, most) if (most := kinds[kind][1]) else 0.0)
        for at, kind in zip(times, chosen, strict=True)
    ]
