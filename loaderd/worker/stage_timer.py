"""Where a job's time goes, by stage."""

from __future__ import annotations

import time

from loaderd.core.jobs import Stage

READ, DECODE, TRANSFORM, WRITE = range(4)

BUCKET = [READ] * len(Stage)  # by stage
for stage, bucket in {
    Stage.DECODE: DECODE,
    Stage.TRANSFORM: TRANSFORM,
    Stage.COLLATE: TRANSFORM,
    Stage.WRITE: WRITE,
    Stage.COMPACT: WRITE,
}.items():
    BUCKET[stage] = bucket


class Stopwatch:
    """Seconds in reading, decoding, transforming and writing since it was made.

    Together they are all of the time.
    """

    def __init__(self) -> None:
        self._seconds = [0.0, 0.0, 0.0, 0.0]
        self._bucket = READ
        self._since_s = time.perf_counter()

    def enter(self, stage: Stage) -> None:
        """What comes now belongs to this stage."""
        bucket = BUCKET[stage]
        if bucket != self._bucket:
            now_s = time.perf_counter()
            self._seconds[self._bucket] += now_s - self._since_s
            self._since_s = now_s
            self._bucket = bucket

    def seconds(self) -> tuple[float, float, float, float]:
        """(read, decode, transform, write) up to now."""
        now_s = time.perf_counter()
        self._seconds[self._bucket] += now_s - self._since_s
        self._since_s = now_s
        return self._seconds[0], self._seconds[1], self._seconds[2], self._seconds[3]
