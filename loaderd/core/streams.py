"""What the scheduler knows of a stream: its rules, its pace, how often it killed a worker."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from loaderd.core.jobs import Done, Job, Kind

JOB_S = 0.02  # no job shorter than this, except for the batch that a trainer waits for
LONG_JOB_S = 0.25  # a longer one is cut in any case: who changes its mind waits for what runs
PIECES = 2  # for each worker, in all batches that a session has in the making: more would only cost the daemon
URGENT_JOB_S = 0.0015  # and for that one: less work does not pay for a second worker's trouble and the daemon's
PACE_WEIGHT = 0.2  # of the newest job in the moving average
FROM_OUTSIDE = 1 / 8  # what a worker killed by somebody else counts for at the breaker
FILL, COMPACT = Kind.FILL, Kind.COMPACT  # a lookup in the class costs ten times as much


@dataclass(frozen=True, slots=True)
class StreamRules:
    """on_error: "raise", "skip" or "replace". collated: a batch is one job. samples: of an epoch."""

    name: str
    on_error: str
    collated: bool
    samples: int

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "skip", "replace") or self.samples < 1:
            raise ValueError(f"impossible rules {self}")


@dataclass(slots=True)
class Stream:
    """row_s: seconds of one row, a moving average; None until measured. stage_s: of all workers' time, by stage: read (user datasets
    work in there), decode, transform (and collate), write. deaths: of workers at it since a row was last finished.

    broken: why it serves nobody any longer, (class of errors, text). last_death: cause and sample of the last one; last_stack with it.
    """

    rules: StreamRules
    sessions: set[int] = field(default_factory=set[int])
    row_s: float | None = None
    stage_s: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0, 0.0])
    deaths: float = 0.0  # since a row was last finished, those from outside counted for little
    died: int = 0  # all of them
    last_death: str = ""
    last_stack: str = ""
    broken: tuple[str, str] | None = None

    def parts(self, rows: int, workers: int, window: int, urgent: bool) -> int:
        """Into how many jobs a batch of so many rows is cut, of `window` that may be made at once. urgent: a trainer waits for this one."""
        if self.rules.collated:
            return 1
        if self.row_s is None:
            return workers
        work_s = rows * self.row_s
        parts = min(workers, int(work_s / (URGENT_JOB_S if urgent else JOB_S)))
        if not urgent:
            parts = min(parts, max(-(-PIECES * workers // window), math.ceil(work_s / LONG_JOB_S)))
        return max(1, parts)

    def lost(self, own: bool, cause: str, stack: str) -> None:
        """A worker died at this stream's work; one that somebody else killed tells little about it."""
        self.deaths += 1 if own else FROM_OUTSIDE
        self.died += 1
        self.last_death, self.last_stack = cause, stack

    def obituary(self) -> str:
        text = f"{self.died} workers died and no sample of stream {self.rules.name!r} was finished in between; the last: {self.last_death}"
        return text + (f"\n{self.last_stack}" if self.last_stack else "")

    def answered(self, job: Job, done: Done) -> None:
        """A worker has done this job: it is alive, and that is how long it took."""
        stage_s = self.stage_s
        stage_s[0] += done.read_s
        stage_s[1] += done.decode_s
        stage_s[2] += done.transform_s
        stage_s[3] += done.write_s
        if job.kind is not COMPACT:
            self.deaths, self.died = 0.0, 0
        if job.kind is FILL:
            self._measured(job.last - job.first, done.seconds)

    def _measured(self, rows: int, seconds: float) -> None:
        each = seconds / rows
        self.row_s = each if self.row_s is None else (1 - PACE_WEIGHT) * self.row_s + PACE_WEIGHT * each
