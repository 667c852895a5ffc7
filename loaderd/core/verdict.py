"""Who waits for whom: the verdict on a session, from what was measured in a window of time.

The arithmetic, with a trainer that takes `batches` in `elapsed_s` and waits `waited_s` of that:

    step time = elapsed_s / batches                  wait = waited_s / batches
    demand    = 1 / (step time - wait)               batches a second, if it never waited
    cost      = seconds of workers / batch           over all stages
    need      = demand x cost                        workers
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from loaderd.core.borrowing import borrow_text, sends_text

STAGES = ("read", "decode", "transform", "write")  # in which workers' time is counted
HANDOFF = "handoff"  # what the stage "write" is called in a verdict

TRAINER_BOUND, HANDOFF_BOUND, MEMORY_BOUND = "trainer-bound", "handoff-bound", "memory-bound"
STARTING, IDLE = "starting", "idle"  # nothing can be said
KINDS = (
    TRAINER_BOUND,
    "read-bound",
    "decode-bound",
    "transform-bound",
    HANDOFF_BOUND,
    MEMORY_BOUND,
    STARTING,
    IDLE,
)

WAITS = 0.05  # a fraction of time from which on the trainer counts as waiting
BUSY = 0.75  # a part of the workers that can help from which on they are what is waited for
HELD = 0.25  # a part of the time in which nothing could be begun for want of slots, likewise
GROWN = 0.95  # a part of the workers that a pool had on average, if it has grown meanwhile
LEAST_S = 1e-5  # between two calls of next(), whatever the trainer does
SHORT_STEP_S = 0.005  # a step below which messages, rather than bursts, are what is waited for
MOST_WORKERS = 1024  # that are asked for
READERS = 8  # workers that read, and so wait more than they compute, for each processor
AT_ALL_CPUS = {  # where more workers would find no processor
    "read": ("lmdb", "put the data on a faster disk"),
    "decode": ("loaderd pack --resize", "store smaller images: loaderd pack --resize"),
    "transform": ("transforms", "make the transforms cheaper, or do them on the GPU"),
    HANDOFF: ("fields", "deliver fewer bytes: fewer fields, or uint8 instead of float32"),
}


@dataclass(frozen=True, slots=True)
class AutoSize:
    """What a pool that finds its own number of workers says to who would ask for more.

    Attributes:
        text: What it does, or why it does nothing, as a part of a sentence.
        setting: What would help instead; "" while the pool itself does.
    """

    text: str = 'num_workers = "auto" finds the number'
    setting: str = ""


@dataclass(frozen=True, slots=True)
class Measures:
    """What was measured of one session in a window of time.

    Attributes:
        elapsed_s: Length of the window in seconds, without pauses of the training.
        waited_s: Seconds of it that the trainer was inside next() without a batch.
        batches: Batches that the trainer took.
        held_s: Seconds in which no batch could be begun, because no slot was free.
        stage_s: Seconds of workers for this session, by STAGES.
        rows: Rows that these seconds made.
        bytes: Bytes of these rows; 0: unknown.
        batch_rows: Rows of a batch.
        prefetch: Batches that are made ahead of the trainer, at most.
        jobs: Workers that can work for this session at once, at most.
        busy: Workers that were at work, on average, whichever session it was for.
        workers: Workers of the pool.
        had: Workers that it had on average.
        others_need: Workers that the other sessions need.
        cpus: Processors that the workers may use; 0: unknown.
        all_cpus: Processors that they could use, were the daemon not pinned to some; 0: unknown.
        auto: What the pool says if it finds its own number of workers; None if that is fixed.
        remote: Workers that are at work on other hosts.
        remote_bytes_per_s: Bytes a second that these send.
        shares: It shares its batches with trainers that ask for the same.
    """

    elapsed_s: float
    waited_s: float
    batches: int
    held_s: float
    stage_s: tuple[float, ...]
    rows: float
    batch_rows: int
    prefetch: int
    jobs: int
    busy: float
    workers: int
    had: float = math.inf
    others_need: float = 0.0
    cpus: int = 0
    all_cpus: int = 0
    auto: AutoSize | None = None
    bytes: float = 0.0
    remote: int = 0
    remote_bytes_per_s: float = 0.0
    shares: bool = False

    @property
    def wait_fraction(self) -> float:
        """Part of the time that the trainer waits, in [0, 1]; 0 if no time was measured."""
        return min(1.0, max(0.0, self.waited_s / self.elapsed_s)) if self.elapsed_s > 0 else 0.0

    @property
    def demand(self) -> float | None:
        """Batches a second that the trainer would take if it never waited; None if unknown."""
        if not self.batches or self.elapsed_s <= 0:
            return None
        return 1 / max(LEAST_S, (self.elapsed_s - self.waited_s) / self.batches)

    @property
    def batch_s(self) -> float | None:
        """Worker-seconds a batch; None if none was made."""
        return sum(self.stage_s) * self.batch_rows / self.rows if self.rows else None

    @property
    def need(self) -> float | None:
        """Workers with which the trainer would not wait; None if unknown."""
        demand, batch_s = self.demand, self.batch_s
        return None if demand is None or batch_s is None else demand * batch_s


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who waits for whom in one session, and what would help.

    Attributes:
        kind: "trainer-bound", "read-bound", "decode-bound", "transform-bound", "handoff-bound",
            "memory-bound", "starting" or "idle".
        text: All of it in one line, which begins with the kind.
        wait_fraction: Part of the time that the trainer waits, in [0, 1].
        stage: The stage that takes most of the workers' time: "read", "decode", "transform" or
            "handoff"; "" if unknown.
        stage_share: Its part of the workers' time, in [0, 1].
        batches_per_s: Batches a second that the trainer takes.
        demand_per_s: Batches a second that it would take if it never waited; None if unknown.
        worker_s_per_batch: Seconds of workers for a batch; None if unknown.
        need_workers: Workers with which it would not wait; None if unknown.
        workers: Workers that there are, for all sessions.
        setting: What would help most, such as "num_workers = 6"; "" if nothing of the loader's.
    """

    kind: str
    text: str
    wait_fraction: float = 0.0
    stage: str = ""
    stage_share: float = 0.0
    batches_per_s: float = 0.0
    demand_per_s: float | None = None
    worker_s_per_batch: float | None = None
    need_workers: float | None = None
    workers: int = 0
    setting: str = ""


def starting(text: str = "too little has been measured yet") -> Verdict:
    """The verdict before enough was measured."""
    return Verdict(STARTING, f"{STARTING}: {text}")


def idle(seconds: float) -> Verdict:
    """The verdict on a trainer that does something else.

    Args:
        seconds: Since when it has not asked for a batch.
    """
    return Verdict(IDLE, f"{IDLE}: the trainer has not asked for a batch for {seconds:.0f} s")


def verdict(m: Measures) -> Verdict:
    """The verdict on a session.

    Args:
        m: What was measured.
    """
    stage, share = largest_stage(m.stage_s)
    if not m.batches and not m.rows:
        return starting()
    kind = _kind(m, stage)
    setting, advice = _help(m, kind, stage)
    facts = [f"the trainer waits {m.wait_fraction:.0%} of the time"]
    if kind == f"{stage}-bound" and _at_work(m):
        facts.append(f"{stage} is {share:.0%} of the workers' time")
    if m.need is not None:
        facts.append(need_text(m.need, m.workers, m.others_need))
    if m.remote:
        facts.append(sends_text(m.remote, m.remote_bytes_per_s))
    facts += [fact for fact in (advice, _borrow(m, kind)) if fact]
    return Verdict(
        kind,
        f"{kind}: {'; '.join(facts)}",
        m.wait_fraction,
        stage,
        share,
        m.batches / max(LEAST_S, m.elapsed_s),
        m.demand,
        m.batch_s,
        m.need,
        m.workers,
        setting,
    )


def largest_stage(stage_s: tuple[float, ...]) -> tuple[str, float]:
    """The stage that takes most of the workers' time.

    Args:
        stage_s: Seconds by STAGES.

    Returns:
        (its name, with "handoff" for "write"; its share), or ("", 0.0) if there was no work.
    """
    total = sum(stage_s)
    if total <= 0:
        return "", 0.0
    name, most_s = max(zip(STAGES, stage_s, strict=True), key=lambda pair: pair[1])
    return HANDOFF if name == "write" else name, most_s / total


def need_text(need: float, workers: int, others_need: float = 0.0) -> str:
    """Such as "this trainer needs 5.2 workers; it has 2".

    Args:
        need: Workers that the trainer needs.
        workers: Workers that there are.
        others_need: Workers that other trainers need.
    """
    others = f", the others {_count(others_need)}" if others_need > 0 else ""
    has = "they share" if others else "it has"
    return f"this trainer needs {_count(need)} workers{others}; {has} {workers}"


def _count(workers: float) -> str:
    return f"{workers:.1f}" if workers < 100 else f"{workers:,.0f}"


def waits_for_workers(m: Measures) -> bool:
    """The trainer waits, and the workers that can help it are at work nearly all the time."""
    return m.wait_fraction >= WAITS and sum(m.stage_s) > 0 and _at_work(m)


def most_workers(cpus: int, stage_s: tuple[float, ...]) -> int:
    """Workers that find a processor. One that reads waits more than it computes.

    Args:
        cpus: Processors; 0: unknown.
        stage_s: Seconds of workers, by STAGES.
    """
    if not cpus:
        return MOST_WORKERS
    total, read_s = sum(stage_s), stage_s[0]
    computes = (total - read_s + read_s / READERS) / total if total > 0 else 1.0
    return min(MOST_WORKERS, max(cpus, int(cpus / computes)))


def at_all_cpus(cpus: int, stage: str, all_cpus: int = 0) -> AutoSize:
    """What helps where more workers would find no processor.

    Args:
        cpus: Processors.
        stage: The stage that takes most of the workers' time.
        all_cpus: Those that the daemon could use, were it not pinned to some; 0: unknown.
    """
    if cpus < all_cpus:
        reset = "reset_affinity = true"
        pinned = f"the daemon is pinned to {cpus} of {all_cpus} processors"
        return AutoSize(f"{pinned}: set [workers] {reset}", reset)
    setting, advice = AT_ALL_CPUS[stage]
    processors = f"there are {cpus} processors" if cpus > 1 else "there is one processor"
    return AutoSize(f"{processors}: {advice}", setting)


def _at_work(m: Measures) -> bool:
    """The workers that can help are at work nearly all the time."""
    return m.busy >= BUSY * max(1, min(m.jobs, m.workers, m.had))


def _kind(m: Measures, stage: str) -> str:
    if m.wait_fraction < WAITS:
        return TRAINER_BOUND
    if stage and _at_work(m):
        return f"{stage}-bound"
    if m.held_s >= HELD * m.elapsed_s:
        return MEMORY_BOUND
    return HANDOFF_BOUND


def _borrow(m: Measures, kind: str) -> str:
    """What CPUs of other hosts would bring; "" if it has enough, or they would not help."""
    here = max(m.workers, most_workers(m.cpus, m.stage_s))
    wanted = _wanted(m)
    if (
        kind not in ("decode-bound", "transform-bound")
        or m.cpus < m.all_cpus
        or wanted <= here
        or not m.bytes
        or not m.demand
    ):
        return ""
    rows_per_s = m.demand * m.batch_rows * (wanted - here) / wanted
    return borrow_text(wanted - here, rows_per_s, m.bytes / m.rows)


def _wanted(m: Measures) -> int:
    """Workers with which no trainer would wait."""
    return min(MOST_WORKERS, math.ceil((m.need or 0.0) + m.others_need))


def _help(m: Measures, kind: str, stage: str) -> tuple[str, str]:
    """(the setting that would help most, the same as a part of a sentence); empty if none."""
    if kind == TRAINER_BOUND:
        return "", "a faster loader would not help"
    if m.auto is not None and m.had < GROWN * m.workers:
        return "", f"the pool had {_count(m.had)} workers on average, and has grown meanwhile"
    more = f"prefetch = {2 * m.prefetch}"
    who = "all trainers that share" if m.shares else "the Loader"
    if kind == MEMORY_BOUND:
        return more, f"no slot is free: give {who} {more}, and [daemon] memory for that"
    if not _at_work(m):
        step_s = m.elapsed_s / m.batches if m.batches else math.inf
        if step_s < SHORT_STEP_S:
            larger = f"batch_size = {2 * m.batch_rows}"
            return larger, f"messages take most of the time: {larger}"
        return more, f"workers are idle: give {who} {more}"
    if m.jobs < m.workers:
        return more, f"only {m.jobs} of the workers can help: give {who} {more}"
    wanted = _wanted(m)
    if wanted <= m.workers:
        return more, f"batches differ in cost: give {who} {more}"
    limit = most_workers(m.cpus, m.stage_s)
    if limit <= m.workers:
        full = at_all_cpus(m.cpus, stage, m.all_cpus)
        return full.setting, full.text
    if m.auto is not None:
        return m.auto.setting, m.auto.text
    if limit < wanted:
        more = f"num_workers = {limit}"
        return more, f"there are {m.cpus} processors: set {more}"
    return f"num_workers = {wanted}", f"set num_workers = {wanted}"
