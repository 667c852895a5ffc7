"""How quick a worker is, as measured: its speed and its latency."""

from __future__ import annotations

import math
from dataclasses import dataclass

USUAL_S = 0.02  # work by which workers are compared, and that counts as one whole measurement
WEIGHT = 0.2  # of the newest measurement in the moving averages
MOST = 2.5  # a job counts for so many times what was expected of it, if the one before was not odd
TIER = 2.0  # a worker of the next tier takes so many times as long
USUAL = (1 / math.sqrt(TIER), math.sqrt(TIER))  # of the workers of tier 0


@dataclass(slots=True)
class WorkerPace:
    """What a worker takes for work, compared with what all workers take on average.

    Attributes:
        slowness: Seconds that it works for a second of work, a moving average.
        lag_s: Seconds between a job and its answer in which it does not work: the latency of its
            node, rows on the wire. A moving average, too.
        begun_s: When it began the first of its jobs.
        odd: Its latest job took more than MOST times what was expected.
        quick: Its latest job took less than what was expected by as much.
        tier: 0 for one that takes about as long as all do on average. Each further tier takes TIER
            times as long. Below 0: quicker.
    """

    slowness: float = 1.0
    lag_s: float = 0.0
    begun_s: float = 0.0
    odd: bool = False
    quick: bool = False
    tier: int = 0

    def takes_s(self, work_s: float) -> float:
        """Seconds from a job to its answer.

        Args:
            work_s: What the job takes a usual worker.
        """
        return self.lag_s + self.slowness * work_s

    @property
    def share(self) -> float:
        """What part of a usual worker's piece it gets, so that it takes as long."""
        return 1 / self.slowness if self.slowness > USUAL[1] else 1.0

    def answered(
        self, work_s: float | None, own_s: float, now_s: float, usual_lag_s: float = 0.0
    ) -> None:
        """It has answered the first of its jobs, and begins the next one.

        Args:
            work_s: What the job takes a usual worker; None: unknown, nothing is learned from it.
            own_s: Seconds that it worked.
            now_s: Time of the event.
            usual_lag_s: The lag of all workers on average. A link that they share, or a daemon that
                is late, makes none of them slower than others.
        """
        passed_s, self.begun_s = now_s - self.begun_s, now_s
        if not work_s:
            return
        most_s = max(USUAL_S, MOST * self.takes_s(work_s))
        self.lag_s += WEIGHT * (min(max(0.0, passed_s - own_s), most_s) - self.lag_s)
        part, ratio = min(1.0, work_s / USUAL_S), own_s / work_s
        was_odd, self.odd = self.odd, ratio > MOST * self.slowness
        was_quick, self.quick = self.quick, ratio * MOST < self.slowness
        if self.odd and was_odd:
            self.slowness += part * (ratio - self.slowness)
        elif self.quick and was_quick and self.slowness > USUAL[1]:  # it was slow for a while
            self.slowness += part * (max(1.0, ratio) - self.slowness)
        else:
            most = MOST * self.slowness
            self.slowness += WEIGHT * part * (min(ratio, most) - self.slowness)
        whole_s = USUAL_S if work_s < USUAL_S else work_s
        usual = self.takes_s(whole_s) / (whole_s + usual_lag_s)
        least, most = USUAL
        self.tier = 0 if least < usual < most else round(math.log(max(usual, 1e-3), TIER))
