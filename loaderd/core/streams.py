"""What the scheduler knows of a stream: its rules, its pace, the deaths of workers at it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from loaderd.core.histogram import Durations, Histogram
from loaderd.core.jobs import Done, Job, JobKind
from loaderd.core.verdict import STAGES

MOST_ANSWERS = 10_000  # a second, of all workers: the daemon keeps up with 20,000 at the most
JOB_S = 0.02  # least work of a job, unless a trainer waits for its batch
# least work of a job if one does: below it, a second worker costs more than it saves
URGENT_JOB_S = 0.0015
LONG_JOB_S = 0.25  # a longer job is cut in any case, because a seek has to wait for it
PIECES = 2  # jobs a worker, over all batches that a session has in the making
PACE_WEIGHT = 0.2  # weight of the newest job in the moving average
FROM_OUTSIDE = 1 / 8  # for how many deaths of its own doing a death from outside counts
FILL, BATCH, COMPACT = (
    JobKind.FILL,
    JobKind.BATCH,
    JobKind.COMPACT,
)  # a lookup in the class costs ten times as much


@dataclass(frozen=True, slots=True)
class StreamRules:
    """What a stream is, as far as the scheduler is concerned.

    Attributes:
        name: Name of the stream.
        on_error: What becomes of a bad sample: "raise", "skip" or "replace".
        collated: A batch can only be made as a whole, by one job.
        samples: Length of an epoch, at least 1.

    Raises:
        ValueError: A value is out of range.
    """

    name: str
    on_error: str
    collated: bool
    samples: int

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "skip", "replace") or self.samples < 1:
            raise ValueError(f"impossible rules {self}")


@dataclass(slots=True)
class StreamState:
    """A stream that is served.

    Attributes:
        rules: What it is.
        sessions: Numbers of its sessions.
        most_sessions: The most that it had at a time since a row of it was last finished.
        row_s: Seconds that a worker takes for a row, a moving average; None until it was measured,
            and where batches are made as a whole.
        whole_row_s: The same where they are.
        stage_s: Seconds of all workers so far, by stage: read, decode, transform with collate,
            write. A dataset of the user's own does all its work in "read".
        batches: Batches that trainers took.
        bytes: Bytes that workers wrote.
        wait: How long trainers waited for each batch.
        batch: How long each batch took from the claim of its slot on.
        stage: How long workers took for a row in each stage, as in `stage_s`; the mean of its job.
        deaths: Deaths of workers at this stream since a row of it was last finished. One that was
            killed from outside counts for FROM_OUTSIDE.
        died: The same, each counted for 1.
        last_death: Cause and sample of the last of them; "" if there was none.
        last_stack: The stacks that the last one wrote, if any.
        broken: (name of a class in `loaderd_wire.errors`, why) once the stream has ended on a
            fault.
    """

    rules: StreamRules
    sessions: set[int] = field(default_factory=set[int])
    most_sessions: int = 0
    row_s: float | None = None
    whole_row_s: float | None = None
    stage_s: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0, 0.0])
    batches: int = 0
    bytes: int = 0
    wait: Histogram = field(default_factory=Histogram)
    batch: Histogram = field(default_factory=Histogram)
    stage: tuple[Histogram, ...] = field(
        default_factory=lambda: (Histogram(), Histogram(), Histogram(), Histogram())
    )
    deaths: float = 0.0
    died: int = 0
    last_death: str = ""
    last_stack: str = ""
    broken: tuple[str, str] | None = None

    def parts(self, rows: int, workers: int, window: int, urgent: bool, busy: int = 0) -> int:
        """Into how many jobs a batch is cut.

        Args:
            rows: Rows of the batch.
            workers: Workers in the pool.
            window: Batches of the session that may be in the making at once.
            urgent: A trainer waits for this batch.
            busy: Workers that have jobs. All together are to answer MOST_ANSWERS a second at most.
        """
        if self.rules.collated:
            return 1
        if self.row_s is None:
            return workers
        work_s = rows * self.row_s
        least_s = max(URGENT_JOB_S if urgent else JOB_S, busy / MOST_ANSWERS)
        parts = min(workers, int(work_s / least_s))
        if not urgent:
            parts = min(parts, max(-(-PIECES * workers // window), math.ceil(work_s / LONG_JOB_S)))
        return max(1, parts)

    def joined(self, session: int) -> None:
        """A session is served from now on.

        Args:
            session: Its number.
        """
        self.sessions.add(session)
        self.most_sessions = max(self.most_sessions, len(self.sessions))

    def lost(self, own: bool, cause: str, stack: str) -> None:
        """Count a worker that died at this stream's work.

        Args:
            own: It died of its own doing. One that somebody else killed says little about the
                stream.
            cause: Cause of the death, with the sample.
            stack: Its stacks, or "".
        """
        self.deaths += 1 if own else FROM_OUTSIDE
        self.died += 1
        self.last_death, self.last_stack = cause, stack

    def failure_text(self) -> str:
        """Why the stream ends, once its workers have died too often."""
        text = (
            f"{self.died} workers died in a row without a finished sample of stream "
            f"{self.rules.name!r}; the last: {self.last_death}"
        )
        return text + (f"\n{self.last_stack}" if self.last_stack else "")

    def took(self, batches: int, waited_s: float) -> None:
        """A trainer has taken batches.

        Args:
            batches: How many, at least 1.
            waited_s: Seconds that it waited for all of them; below 0: unknown.
        """
        self.batches += batches
        if waited_s >= 0:
            self.wait.add(waited_s / batches, batches)

    def durations(self) -> dict[str, Durations]:
        """What was counted, by name."""
        return {
            "wait": self.wait.durations(),
            "batch": self.batch.durations(),
            **{name: one.durations() for name, one in zip(STAGES, self.stage, strict=True)},
        }

    def work_s(self, rows: int) -> float | None:
        """Seconds that a usual worker takes for rows; None until it was measured."""
        each = self.whole_row_s if self.rules.collated else self.row_s
        return None if each is None else rows * each

    def answered(self, job: Job, done: Done, share: float = 1.0) -> None:
        """Take the measures of a finished job. Rows were finished, so deaths count from 0 again.

        Args:
            job: The job.
            done: The worker's answer.
            share: How much it tells of a usual worker, at most 1.
        """
        stage_s = self.stage_s
        stage_s[0] += done.read_s
        stage_s[1] += done.decode_s
        stage_s[2] += done.transform_s
        stage_s[3] += done.write_s
        self.bytes += done.bytes
        if job.kind is not COMPACT:
            self.deaths, self.died = 0.0, 0
            self.most_sessions = len(self.sessions)
            rows = job.last - job.first
            for stage, seconds in zip(self.stage, done.stage_s, strict=True):
                stage.add(seconds / rows, rows)
        each, weight = done.seconds / (job.last - job.first), PACE_WEIGHT * share
        if job.kind is FILL:
            self.row_s = _towards(self.row_s, each, weight)
        elif job.kind is BATCH:
            self.whole_row_s = _towards(self.whole_row_s, each, weight)


def _towards(was: float | None, new: float, weight: float) -> float:
    """A moving average."""
    return new if was is None else (1 - weight) * was + weight * new
