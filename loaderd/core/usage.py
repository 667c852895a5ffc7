"""What a session and the workers were seen to do lately: counters, and a window over them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from loaderd.core.jobs import Done, Job, JobKind

SAMPLE_S = 1.0  # between two samples of the counters, at least
WINDOW_S = 30.0  # covered by the samples, without pauses
WINDOW_BATCHES = 8  # in the window at least, however long that takes
# A trainer that does something else, such as a validation, between two messages: for so long, and
# for so many of its steps.
PAUSE_S, PAUSE_STEPS = 5.0, 10.0
TRIAL, COMPACT = JobKind.TRIAL, JobKind.COMPACT  # a lookup in the class costs ten times as much
LONG_JOB_S = 0.05  # jobs above it are counted while they run, shorter ones when they have ended


class UsageSample(NamedTuple):
    """The counters at one moment; every one of them only grows.

    Attributes:
        now_s: The moment.
        batches: Batches that the trainer took.
        waited_s: Seconds that it waited, as its client says.
        counted_s: Seconds, without its pauses.
        held_s: Seconds in which no batch could be begun, because no slot was free.
        read_s: Seconds of workers for the session, likewise the next three.
        decode_s: Of decoding.
        transform_s: Of transforms.
        write_s: Of writing.
        rows: Rows that these seconds made.
        busy_s: Seconds in which workers had a job, summed over all workers and sessions.
        done_s: Seconds of all finished jobs of all sessions.
        jobs: Number of these jobs.
        bytes: Bytes that workers wrote for the session.
        workers_s: Seconds of workers that there were, with a job or without.
        remote_bytes: Bytes that workers on other hosts wrote, for all sessions.
    """

    now_s: float
    batches: int
    waited_s: float
    counted_s: float
    held_s: float
    read_s: float
    decode_s: float
    transform_s: float
    write_s: float
    rows: float
    busy_s: float
    done_s: float
    jobs: int
    bytes: float = 0
    workers_s: float = 0.0
    remote_bytes: int = 0


@dataclass(slots=True)
class PoolUsage:
    """What all workers did since the start.

    Attributes:
        busy_s: Seconds in which they had a job, summed over all workers.
        done_s: Seconds of the jobs that have ended.
        jobs: Number of these jobs.
        workers_s: Seconds of workers that there were, with a job or without.
        remote_bytes: Bytes that workers on other hosts wrote.
    """

    busy_s: float = 0.0
    done_s: float = 0.0
    jobs: int = 0
    workers_s: float = 0.0
    remote_bytes: int = 0


class SessionUsage:
    """What one session did since it attached, and the samples of that in the window.

    Attributes:
        told_s: When its client last said anything; None before it has.
        waiting: Its client was inside next() then.
        knows_wait: Its client tells how long it waits.
    """

    def __init__(self) -> None:
        self.told_s: float | None = None
        self.waiting = False
        self.knows_wait = False
        self._batches = 0
        self._waited_s = self._counted_s = 0.0
        self._batch_wait_s = 0.0  # since it last took a batch
        self._held_s = 0.0
        self._held_since_s: float | None = None
        self._stage_s = [0.0, 0.0, 0.0, 0.0]
        self._rows: float = 0
        self._bytes: float = 0
        self._samples: deque[UsageSample] = deque()

    def told(self, now_s: float, batches: int, waiting: bool, waited_s: float) -> float:
        """The client has said something.

        Args:
            now_s: When.
            batches: Batches that its trainer took since it last said something.
            waiting: It is inside next().
            waited_s: Seconds that the trainer has waited in this session; below 0: not told.

        Returns:
            Seconds that it waited for these batches; below 0 if it does not tell. 0 without any.
        """
        if self.told_s is not None:
            gap_s = max(0.0, now_s - self.told_s)
            wait_s = min(gap_s, max(0.0, waited_s - self._waited_s))
            if self._is_pause(gap_s - wait_s):
                self._counted_s += wait_s
                if self._held_since_s is not None:  # for the pause, and not for want of slots
                    self._held_since_s = now_s
            else:
                self._counted_s += gap_s
            self._waited_s += wait_s
            self._batch_wait_s += wait_s
        self.knows_wait = self.knows_wait or waited_s >= 0
        self.told_s, self.waiting = now_s, waiting
        self._batches += batches
        if not batches:
            return 0.0
        found, self._batch_wait_s = self._batch_wait_s, 0.0
        return found if self.knows_wait else -1.0

    def answered(self, job: Job, done: Done, part: float = 1) -> None:
        """Take the measures of a job that a worker has done for it.

        Args:
            job: The job.
            done: The worker's answer.
            part: Which part of it counts, where sessions share a batch.
        """
        stage_s = self._stage_s
        stage_s[0] += done.read_s * part
        stage_s[1] += done.decode_s * part
        stage_s[2] += done.transform_s * part
        stage_s[3] += done.write_s * part
        self._bytes += done.bytes * part
        if job.kind is not COMPACT and job.kind is not TRIAL:
            self._rows += (job.last - job.first) * part

    def hold(self, held: bool, now_s: float) -> None:
        """Note whether anything can be begun.

        Args:
            held: Nothing can, because no slot is free.
            now_s: Time of the event.
        """
        if held:
            if self._held_since_s is None:
                self._held_since_s = now_s
        elif self._held_since_s is not None:
            self._held_s += now_s - self._held_since_s
            self._held_since_s = None

    def sample_due(self, now_s: float) -> bool:
        """Whether a sample is to be taken. The first one is due with the first batch.

        Args:
            now_s: Time of the event.
        """
        samples = self._samples
        return self._batches > 0 and (not samples or now_s - samples[-1].now_s >= SAMPLE_S)

    def sample(self, now_s: float, pool: PoolUsage) -> None:
        """Take a sample, and forget those that the window does not need.

        Args:
            now_s: Time of the event.
            pool: What all workers did.
        """
        samples, latest = self._samples, self.counters(now_s, pool)
        if len(samples) > 1 and samples[-2].batches == latest.batches:
            samples.pop()  # it says nothing that this one does not
        samples.append(latest)
        while (
            len(samples) > 2
            and samples[-1].counted_s - samples[1].counted_s >= WINDOW_S
            and samples[-1].batches - samples[1].batches >= WINDOW_BATCHES
        ):
            samples.popleft()

    def window(self, now_s: float, pool: PoolUsage) -> UsageSample | None:
        """How far the counters went in the window; None before the first sample.

        Args:
            now_s: Time of the event.
            pool: What all workers did.
        """
        if not self._samples:
            return None
        return self.since(self._samples[0], now_s, pool)

    def since(self, then: UsageSample, now_s: float, pool: PoolUsage) -> UsageSample:
        """How far the counters went since a sample.

        Args:
            then: The sample.
            now_s: Time of the event.
            pool: What all workers did.
        """
        latest = self.counters(now_s, pool)
        went = [now - before for now, before in zip(latest, then, strict=True)]
        return UsageSample(*went)  # pyright: ignore[reportArgumentType] - each of its own type

    def training(self, now_s: float) -> bool:
        """Whether its trainer takes batches and tells how long it waits for them.

        Args:
            now_s: Time of the event.
        """
        return self._batches > 0 and self.knows_wait and not self.silent_s(now_s)

    def silent_s(self, now_s: float) -> float:
        """Seconds for which the trainer has been doing something else; 0 if it has not.

        Args:
            now_s: Time of the event.
        """
        if self.told_s is None or self.waiting:
            return 0.0
        silent_s = now_s - self.told_s
        return silent_s if self._is_pause(silent_s) else 0.0

    def _is_pause(self, own_s: float) -> bool:
        """Whether a trainer that takes no batch for so long is not training."""
        if own_s < PAUSE_S:
            return False
        own_before_s = self._counted_s - self._waited_s
        return self._batches >= WINDOW_BATCHES and (
            own_s > PAUSE_STEPS * own_before_s / self._batches
        )

    def counters(self, now_s: float, pool: PoolUsage) -> UsageSample:
        """The counters now.

        Args:
            now_s: Time of the event.
            pool: What all workers did.
        """
        held_s, waited_s, counted_s = self._held_s, self._waited_s, self._counted_s
        if self._held_since_s is not None:
            held_s += now_s - self._held_since_s
        if self.told_s is not None and not self.silent_s(now_s):
            counted_s += now_s - self.told_s
            waited_s += now_s - self.told_s if self.waiting else 0.0
        return UsageSample(
            now_s,
            self._batches,
            waited_s,
            counted_s,
            held_s,
            self._stage_s[0],
            self._stage_s[1],
            self._stage_s[2],
            self._stage_s[3],
            self._rows,
            pool.busy_s,
            pool.done_s,
            pool.jobs,
            self._bytes,
            pool.workers_s,
            pool.remote_bytes,
        )


def busy_workers(window: UsageSample) -> float:
    """Workers that were at work, on average.

    Short jobs count with their own time, which leaves out that of the messages about them. Long
    ones count while they run.

    Args:
        window: How far the counters went.
    """
    if window.counted_s <= 0:
        return 0.0
    short = window.jobs > 0 and window.done_s < LONG_JOB_S * window.jobs
    return (window.done_s if short else window.busy_s) / window.counted_s
