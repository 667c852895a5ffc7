"""Workers that do not move: their stacks are dumped, they are killed, they are replaced."""

from __future__ import annotations

from dataclasses import dataclass

from loaderd.core.actions import Action, DumpStack, KillWorker
from loaderd.core.events import WorkerObservation
from loaderd.core.jobs import Stage, importing, same, unstamp
from loaderd.core.pool import WorkerPool
from loaderd.core.pool_worker import PoolWorker, WorkerState

DUMP_S = 0.2  # between asking for a worker's stacks and its kill
LOOK_S, LOOK_MIN_S = 0.25, 0.02
OPEN_FACTOR = 10  # to open a dataset, or to build its index, takes longer than a sample
IMPORT_S = 120.0  # for imports within a sample: the first import of torch is not the sample's fault


@dataclass(frozen=True, slots=True)
class DeadlineLimits:
    """What a worker may take for one stage, and beside that for modules that it imports meanwhile.

    Attributes:
        sample_timeout_s: The setting of that name.
    """

    sample_timeout_s: float

    def stage_s(self, stage: Stage) -> float:
        """Seconds that a stage may take, imports not counted."""
        return self.sample_timeout_s * (OPEN_FACTOR if stage is Stage.OPEN else 1)

    def import_s(self, stage: Stage) -> float:
        """Seconds that imports within a stage may take."""
        return max(IMPORT_S, self.stage_s(stage))

    def passed(self, stage: Stage, quiet_s: float, import_s: float) -> str:
        """Which limit has been passed.

        Args:
            stage: What the worker is doing.
            quiet_s: Seconds since the stage began.
            import_s: How many of these it imported modules.

        Returns:
            The limit in words, or "" if none was passed.
        """
        if import_s > self.import_s(stage):
            return f"importing modules took longer than {self.import_s(stage):g} s"
        if quiet_s - import_s > self.stage_s(stage):
            setting = (
                f"{OPEN_FACTOR} * sample_timeout_s" if stage is Stage.OPEN else "sample_timeout_s"
            )
            return f"it took longer than {setting} = {self.stage_s(stage):g} s"
        return ""


class Deadlines:
    """Watches workers by the scheduler's own clock.

    Time in which a worker was stopped, or the daemon's loop did not run, does not count.

    Attributes:
        limits: What a worker may take for a stage.
        kill_s: Seconds after which a killed worker that is not dead is given up.
        every_s: Seconds between two looks.
    """

    def __init__(self, sample_timeout_s: float, kill_s: float) -> None:
        if sample_timeout_s <= 0 or kill_s <= 0:
            raise ValueError(
                f"sample_timeout_s {sample_timeout_s} and kill_s {kill_s} must be above 0"
            )
        self.limits = DeadlineLimits(sample_timeout_s)
        self.kill_s = kill_s
        self.every_s = max(LOOK_MIN_S, min(LOOK_S, sample_timeout_s / 8))

    def look(
        self, pool: WorkerPool, seen: tuple[WorkerObservation, ...], now_s: float
    ) -> tuple[list[Action], list[PoolWorker]]:
        """Take in one look at the workers.

        Args:
            pool: The workers. Their records are brought up to date.
            seen: What the look has shown. A worker that is dead by now is passed over.
            now_s: Time of the look.

        Returns:
            (dumps and kills to do, workers that are still not dead kill_s after their kill).
        """
        actions: list[Action] = []
        stuck: list[PoolWorker] = []
        for one in seen:
            w = pool.workers.get(one.worker)
            if w is None or w.life is WorkerState.STARTING or w.life is WorkerState.STUCK:
                continue
            moved, still = not same(one.word, w.word), one.paused or one.starved
            passed = 0.0 if still else now_s - w.looked_s
            own = 0.0 if still else now_s - max(w.looked_s, w.pace.begun_s)
            imported = passed if importing(one.word) or importing(w.word) else 0.0
            if moved and unstamp(one.word)[:2] != w.stamp[:2]:
                w.rows_s = w.job_s
            w.job_s += own
            if one.paused and not w.paused:
                w.paused_s = now_s
            w.word, w.key, w.paused, w.looked_s = one.word, one.key, one.paused, now_s
            if w.killed_s is not None:
                w.quiet_s += passed
                if w.quiet_s >= self.kill_s:
                    stuck.append(w)
            elif w.life is WorkerState.RETIRING and not w.jobs:
                w.quiet_s += passed
                if w.quiet_s >= self.kill_s:
                    actions.append(
                        self.kill(
                            pool,
                            w,
                            now_s,
                            f"it did not exit within {self.kill_s:g} s after it was asked to",
                        )
                    )
            elif moved or not w.jobs:
                w.moved()
                pool.available.sort(w)
            else:
                w.quiet_s += passed
                w.import_s += imported
                pool.available.sort(w)
                actions += [] if still else self._judge(pool, w, now_s)
        return actions, stuck

    def _judge(self, pool: WorkerPool, w: PoolWorker, now_s: float) -> list[Action]:
        _, row, stage = w.stamp
        w.late = self.limits.passed(stage, w.quiet_s, w.import_s)
        if not w.late:
            return []
        if not w.suspect:
            w.suspect = True  # the next look decides: what was seen may be old
            return []
        if w.dumped_s is None:
            w.dumped_s, w.asked = now_s, w.job
            return [DumpStack(w.worker)]
        if now_s - w.dumped_s < DUMP_S:
            return []
        return [self.kill(pool, w, now_s, f"row {row} in {stage.name.lower()}: {w.late}")]

    def kill(self, pool: WorkerPool, w: PoolWorker, now_s: float, why: str) -> KillWorker:
        """Kill a worker. If it does not die, a later `look` reports it.

        Args:
            pool: The workers.
            w: The worker.
            now_s: Time of the event.
            why: For the log.
        """
        pool.killed(w.worker, now_s)
        w.quiet_s = 0.0
        return KillWorker(w.worker, why)
