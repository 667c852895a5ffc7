"""The workers: who lives, who is free for a job, who is to be started, how often they die."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from loaderd.core.actions import Retire, Start
from loaderd.core.jobs import Stage, unstamp

QUEUE = 2  # jobs that a worker may have: one that runs, one that hides the hand-over
SLOW_S = 1.0  # a job that has not moved for so long, or whose worker is stopped, has none put behind it
BACK_OFF_S, BACK_OFF_MAX_S = 0.1, 5.0


class Life(Enum):
    STARTING = "starting"
    UP = "up"
    RETIRING = "retiring"  # gets no more jobs; ends when it has none
    KILLED = "killed"
    STUCK = "stuck"  # not dead kill_s after its Kill: replaced, its slots in quarantine


@dataclass(slots=True)
class Worker:
    """A process that is not known to be dead. `jobs`: sent to it and not answered, the first one runs.

    word, key: its stamp as last seen. quiet_s: how long that has not changed while it had a job, or was to end, and was not stopped;
    import_s: how much of that it imported modules. late: the limit that it has passed, when it is killed for that.
    The marks `suspect`, `dumped_s`, `killed_s` are the steps towards its end. paused: stopped, since paused_s. doing, doing_s: before it
    is ready, and since when. asked: the job for which its stacks were asked for last (0: its start); stack, stack_s: what came, and when.
    """

    worker: int
    seat: int
    life: Life = Life.STARTING
    jobs: list[int] = field(default_factory=list[int])
    word: int = 0
    key: str = ""
    quiet_s: float = 0.0
    import_s: float = 0.0
    looked_s: float = 0.0
    paused: bool = False
    paused_s: float = 0.0
    doing: str = ""
    doing_s: float = 0.0
    asked: int | None = None
    stack: str = ""
    stack_s: float = 0.0
    suspect: bool = False
    dumped_s: float | None = None
    killed_s: float | None = None
    late: str = ""

    @property
    def stamp(self) -> tuple[int, int, Stage]:
        return unstamp(self.word)

    @property
    def job(self) -> int:
        """The one that runs; 0 without any."""
        return self.jobs[0] if self.jobs else 0

    def moved(self) -> None:
        """It has begun something new: all that was held against it is forgotten."""
        self.quiet_s = self.import_s = 0.0
        self.suspect, self.dumped_s, self.late = False, None, ""


class Pool:
    """`seats` workers at a time. Numbers of workers count from 1 and never come again.

    A seat's first death is made good at once; while it goes on dying without a job done in between, it waits longer each time.
    """

    def __init__(self, seats: int) -> None:
        if seats < 1:
            raise ValueError(f"a pool needs a worker, not {seats}")
        self.seats = seats
        self.workers: dict[int, Worker] = {}
        self.ever_ready = False
        self.fallen = 0  # that died before they were ready, since one was
        self.last_fall = ""  # of what the last of them died
        self._deaths = [0] * seats
        self._count = 0
        self._idle: dict[int, None] = {}  # UP without a job, in order of becoming so
        self._single: dict[int, None] = {}  # UP with room for one more
        self._watched: set[int] = set()

    @property
    def room(self) -> bool:
        """Somebody can get a job."""
        return bool(self._idle or self._single)

    @property
    def idle(self) -> int:
        return len(self._idle)

    @property
    def watched(self) -> bool:
        """Somebody has a job, or was asked to end or killed and keeps its seat until it does. One that has been given up is not watched."""
        return bool(self._watched)

    @property
    def up(self) -> int:
        return sum(w.life is Life.UP for w in self.workers.values())

    def begin(self) -> list[Start]:
        return [self._start(seat, 0.0) for seat in range(self.seats)]

    def booting(self, worker: int, doing: str, now_s: float) -> None:
        w = self.workers.get(worker)
        if w is not None and w.life is Life.STARTING:
            w.doing, w.doing_s = doing, now_s

    def ready(self, worker: int) -> None:
        w = self._known(worker, "WorkerReady")
        if w.life is Life.STARTING:
            w.life = Life.UP
            self.ever_ready, self.fallen = True, 0
            w.doing, w.asked = "", None
            self.sort(w)

    def pick(self, *, second: bool) -> int | None:
        """A worker for a job: an idle one, else, if a second place is good enough, one that has a single job."""
        if self._idle:
            return next(iter(self._idle))
        return next(iter(self._single), None) if second else None

    def give(self, worker: int, job: int, now_s: float) -> None:
        w = self.workers[worker]
        if not w.jobs:
            w.moved()
            w.looked_s = now_s
        w.jobs.append(job)
        self.sort(w)

    def answered(self, worker: int, job: int) -> Retire | None:
        """A job is done; a worker that is to leave goes when it has none."""
        w = self._known(worker, f"WorkerDone of job {job}")
        if job not in w.jobs:
            raise ValueError(f"worker {worker} ({w.life.value}) answers job {job}, it has {w.jobs}")
        w.jobs.remove(job)
        w.moved()
        w.paused = False
        if w.seat >= 0:
            self._deaths[w.seat] = 0
        self.sort(w)
        return Retire(worker) if w.life is Life.RETIRING and not w.jobs else None

    def retire(self, worker: int) -> Retire | None:
        """It shall be replaced: at once if it is idle."""
        w = self.workers[worker]
        if w.life is not Life.UP:
            return None
        w.life = Life.RETIRING
        self.sort(w)
        return None if w.jobs else Retire(worker)

    def killed(self, worker: int, now_s: float) -> None:
        w = self.workers[worker]
        w.life, w.killed_s = Life.KILLED, now_s
        self.sort(w)

    def stuck(self, worker: int) -> Start:
        """It does not die: another takes its seat."""
        w = self.workers[worker]
        w.life, seat, w.seat = Life.STUCK, w.seat, -1
        self.sort(w)
        return self._start(seat, 0.0)

    def died(self, worker: int, cause: str) -> tuple[Worker, Start | None]:
        """It is no more; its successor, unless that is there already."""
        w = self._known(worker, "WorkerDied")
        if w.life is Life.STARTING:
            self.fallen, self.last_fall = self.fallen + 1, cause
        del self.workers[worker]
        self._idle.pop(worker, None)
        self._single.pop(worker, None)
        self._watched.discard(worker)
        if w.seat < 0:
            return w, None
        if w.life is Life.RETIRING and not w.jobs:
            return w, self._start(w.seat, 0.0)
        self._deaths[w.seat] += 1
        deaths = self._deaths[w.seat]
        return w, self._start(w.seat, 0.0 if deaths == 1 else min(BACK_OFF_MAX_S, BACK_OFF_S * 2 ** min(deaths - 2, 10)))

    def _start(self, seat: int, delay_s: float) -> Start:
        self._count += 1
        self.workers[self._count] = Worker(self._count, seat)
        return Start(self._count, delay_s)

    def _known(self, worker: int, what: str) -> Worker:
        w = self.workers.get(worker)
        if w is None:
            raise ValueError(f"{what} of worker {worker}, which is none of {sorted(self.workers)}")
        return w

    def sort(self, w: Worker) -> None:
        """After anything that changes whether it may get a job, or is to be watched."""
        worker, jobs = w.worker, len(w.jobs)
        self._idle.pop(worker, None)
        self._single.pop(worker, None)
        if w.life is Life.UP:
            if not jobs:
                self._idle[worker] = None
            elif jobs < QUEUE and w.quiet_s <= SLOW_S and not w.paused:
                self._single[worker] = None
        if w.seat >= 0 and (jobs or w.life is Life.KILLED or w.life is Life.RETIRING):
            self._watched.add(worker)
        else:
            self._watched.discard(worker)

    def invariants(self) -> None:
        seats = sorted(w.seat for w in self.workers.values() if w.seat >= 0)
        assert seats == list(range(self.seats)), f"seats {seats} of {self.seats}"
        for w in self.workers.values():
            assert len(w.jobs) <= QUEUE, f"worker {w.worker} has jobs {w.jobs}"
            assert not w.jobs or w.life is not Life.STARTING, f"worker {w.worker} is starting with jobs {w.jobs}"
            assert (w.worker in self._idle) == (w.life is Life.UP and not w.jobs), f"worker {w.worker} is {w.life.value}: idle?"
            room = w.life is Life.UP and len(w.jobs) == 1 and w.quiet_s <= SLOW_S and not w.paused
            assert (w.worker in self._single) == room, f"worker {w.worker} is {w.life.value} with jobs {w.jobs}: room?"
            watched = w.seat >= 0 and (bool(w.jobs) or w.life in (Life.KILLED, Life.RETIRING))
            assert (w.worker in self._watched) == watched, f"worker {w.worker} is {w.life.value} with jobs {w.jobs}: watched?"
        assert self._watched <= self.workers.keys(), "a worker that is gone is watched"
