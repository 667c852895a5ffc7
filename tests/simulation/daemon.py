"""A fake daemon around the real scheduler: does the actions, tells the events, stops, pauses and dies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loaderd.core import actions as a
from loaderd.core import events as e
from loaderd.core.scheduler import Scheduler
from loaderd_wire.messages import Progress, Segment
from simulation.clockwork import Broken
from simulation.memory import SegmentMemory
from simulation.workers import Process

if TYPE_CHECKING:
    from simulation.trainers import Trainer
    from simulation.world import World

CLOCK_STEP_S = 1.0  # what the drivers' clock advances in one turn at most
QUEUE = 2  # jobs that a worker is ever given


class Daemon:
    """One life of a daemon. Sessions, tokens and segments have numbers that no other life uses."""

    def __init__(self, world: World, scheduler: Scheduler) -> None:
        self.world = world
        self.core = scheduler
        self.alive = True
        self.stopped = False
        self.template_until = 0.0  # a dead template is replaced then
        self.processes: dict[int, Process] = {}
        self.clients: dict[int, Trainer] = {}
        self.segments: list[int] = []
        self._skew = 0.0  # what its clock is behind the world's
        self._late = False  # the loop has not run since the last look
        self._stopped_at = 0.0
        self._backlog: list[e.Event] = []
        self._look_due: float | None = None
        self._sizes = 0
        self._do_all(scheduler.begin(self.clock))

    @property
    def clock(self) -> float:
        return self.world.now - self._skew

    # being driven

    def tell(self, event: e.Event) -> None:
        if not self.alive:
            return
        if self.stopped:
            self._backlog.append(event)
            return
        if isinstance(event, e.WorkerDied):
            del self.processes[event.worker]
        if not isinstance(event, e.Look):
            self.world.write("  event {}", event)
        actions = self.core.step(event, self.clock)
        self.core.invariants()
        self._do_all(actions)
        self._plan_look()

    def hear(self, progress: Progress) -> None:
        self.tell(e.Told(progress.session, progress))

    def stop(self, stopped: bool) -> None:
        """SIGSTOP and SIGCONT: time in which it did not run counts for a second at most."""
        if not self.alive or self.stopped == stopped:
            return
        self.stopped = stopped
        self.world.write("daemon {}", "stopped" if stopped else "goes on")
        if stopped:
            self._stopped_at = self.world.now
            return
        self._skew += max(0.0, self.world.now - self._stopped_at - CLOCK_STEP_S)
        self._late = True
        backlog, self._backlog = self._backlog, []
        for event in backlog:
            self.tell(event)
        self._look_due = None
        self._plan_look()

    def jump(self) -> None:
        """The whole pod was paused: to it, a second has gone by in one turn."""
        self._skew -= CLOCK_STEP_S
        self._late = True

    def kill(self) -> None:
        """kill -9: the template and every worker go with it, a moment later."""
        self.world.write("daemon killed")
        self.alive = False
        for process in self.processes.values():
            self.world.after(self.world.chance.uniform(0, 0.05), process.die, "SIGKILL", False)
        for trainer in list(self.clients.values()):
            trainer.control.send(trainer.hung_up, self)

    # clients

    def admit(self, trainer: Trainer) -> None:
        """Hello: the segment is reserved, the session attached, the Welcome on its way."""
        session = self.world.number()
        self.clients[session] = trainer
        segment = self._reserve(session, trainer, trainer.prefetch + 2, trainer.tail_row_bytes, trainer.body_bytes)
        self.tell(e.Attach(session, trainer.samples.name, trainer.shape, trainer.seed, trainer.prefetch, segment))
        trainer.control.send(trainer.welcome, self, session, segment)

    def left(self, session: int) -> None:
        """The client's control socket is at its end."""
        if self.alive and self.clients.pop(session, None):
            self.tell(e.Detach(session))

    def _reserve(self, session: int, trainer: Trainer, slots: int, tail: int, body: int) -> Segment:
        segment = Segment(self.world.number(), slots, 4096, tail, body)
        self.world.memory.segments[segment.segment] = SegmentMemory(segment, session, trainer.shape.batch_size)
        self.segments.append(segment.segment)
        return segment

    # actions

    def _do_all(self, actions: list[a.Action]) -> None:
        for action in actions:
            self.world.write("    {}", action)
            self._do(action)

    def _do(self, action: a.Action) -> None:
        chance, after = self.world.chance, self.world.after
        match action:
            case a.Start(worker, delay_s):
                process = self.processes[worker] = Process(self.world, worker, self.tell)
                wait = max(delay_s, self.template_until - self.world.now)
                if self.world.boot_failures and chance.random() < 0.5 and self.core.pool.ever_ready:
                    self.world.boot_failures -= 1
                    after(wait + 0.1, self._cannot_boot, process)
                else:
                    after(wait, self._booting, process)
                    after(wait + chance.uniform(0.01, 0.3), process.boot)
            case a.Dump(worker):
                after(chance.uniform(0, 0.5), self._dumped, self.processes[worker])
            case a.Send(worker, job):
                process = self.processes[worker]
                if len(process.mail) + (process.job is not None) >= QUEUE:
                    raise Broken(f"worker {worker} is given a third job, {job}")
                self.world.memory.sent(process, job)
                trainer = self.clients.get(self.world.memory.segments[job.segment].session)
                if trainer and trainer.expects(job.segment, job.slot):
                    raise Broken(f"{job} is to write a slot that trainer {trainer.number} has yet to take")
                if process.alive:
                    process.take(job)
                else:
                    self.world.memory.ended(job)
            case a.Kill(worker, _):
                if chance.random() < self.world.deaf:
                    self.world.write("worker {} sleeps in the disk", worker)
                    self.processes[worker].immortal = True
                    after(chance.uniform(1, 20), self.processes[worker].wake_up)
                after(chance.uniform(0, 0.1), self.processes[worker].die, "SIGKILL", False)
            case a.Retire(worker):
                process = self.processes[worker]
                if process.alive and (process.job or process.mail):
                    raise Broken(f"worker {worker} is to retire with {process.job} and {process.mail}")
                after(chance.uniform(0, 0.1), process.die, "exit code 0", True)
            case a.Tell(session, message):
                trainer = self.clients.get(session)
                if trainer:
                    self.world.network.send(trainer.hear, message)
            case a.Grow(session, slots, tail, body):
                after(chance.uniform(0.001, 0.5), self._grow, session, slots, tail, body)
            case a.Drop(_, segment):
                self._drop(segment)
            case a.Quarantine(stream, _, sample):
                self.world.quarantined(stream, sample)
            case a.StreamBroken(stream, error, text):
                self.world.stream_broken(stream, error, text)
            case a.CannotBoot(text):
                raise Broken(f"the daemon says that it cannot start: {text}")
            case _:
                pass

    def _booting(self, process: Process) -> None:
        if process.alive:
            self.tell(e.Booting(process.worker, "importing users"))

    def _dumped(self, process: Process) -> None:
        if process.worker in self.processes:
            self.tell(e.Dumped(process.worker, f"stack of {process.worker} at {process.word}" if process.ready else ""))

    def _cannot_boot(self, process: Process) -> None:
        if process.alive:
            process.alive = False
            self.tell(e.WorkerDied(process.worker, True, "exit code 1", process.seen(False), "", "Traceback: no disk"))

    def _grow(self, session: int, slots: int, tail: int, body: int) -> None:
        trainer = self.clients.get(session)
        if not self.alive or trainer is None:
            return
        if self.world.memory_is_short:
            self.tell(e.NotGrown(session, "needs 5 MB, there is 1 MB"))
            return
        segment = self._reserve(session, trainer, slots, tail, body)
        trainer.control.send(trainer.grown, self, session, segment)
        self.tell(e.Grown(session, segment))

    def _drop(self, segment: int) -> None:
        memory = self.world.memory.segments[segment]
        writers = self.world.memory.living_writers(segment)
        holders = [slot.holder for slot in memory.slots if slot.holder]
        if writers or (holders and memory.session in self.clients) or memory.dropped:
            raise Broken(f"segment {segment} is dropped (before: {memory.dropped}) under writers {writers} and holders {holders}")
        memory.dropped = True

    # the timer

    def _plan_look(self) -> None:
        due = self.core.next_look_s(self.clock)
        if due is None or self._look_due is not None:
            return
        self._look_due = due
        self.world.after(max(0.0, due - self.clock), self._look)

    def _look(self) -> None:
        self._look_due = None
        if not self.alive or self.stopped:
            return
        due = self.core.next_look_s(self.clock)
        if due is not None and due <= self.clock + 1e-9:
            late, self._late = self._late, False
            self.tell(e.Look(tuple(process.seen(late) for process in self.processes.values())))
        else:
            self._plan_look()

    # what is left

    def check_size(self) -> None:
        """What the scheduler keeps is bounded by its workers and slots, whatever has happened."""
        slots = sum(len(ring.state) for s in (*self.core.sessions.values(), *self.core.leaving.values()) for ring in s.rings.values())
        bound = 800 + 120 * len(self.core.pool.workers) + 150 * slots + 150 * len(self.core.sessions)
        size = count_of(self.core, set())
        if size > bound:
            raise Broken(f"the scheduler keeps {size} things for {slots} slots, over {bound}")

    def check_idle(self) -> None:
        """Everybody has left: nothing of theirs is kept."""
        core = self.core
        if core.sessions or core.leaving or core.jobs or core.next_look_s(self.clock) is not None:
            raise Broken(f"left behind: sessions {list(core.sessions)}, leaving {list(core.leaving)}, jobs {list(core.jobs)}")
        kept = [number for number in self.segments if not self.world.memory.segments[number].dropped]
        if kept:
            raise Broken(f"segments {kept} were never dropped")


def count_of(thing: Any, seen: set[int]) -> int:
    """How many objects hang on a thing of loaderd's core."""
    if id(thing) in seen or isinstance(thing, (int, float, str, bytes, bool, type(None), type)) or callable(thing):
        return 0
    seen.add(id(thing))
    if isinstance(thing, dict):
        return len(thing) + sum(count_of(v, seen) for v in thing.values())
    if isinstance(thing, (list, tuple, set, frozenset)) or type(thing).__name__ == "deque":
        return len(thing) + sum(count_of(v, seen) for v in thing)
    names = [name for cls in type(thing).__mro__ for name in getattr(cls, "__slots__", ())]
    names = list(getattr(thing, "__dict__", names))
    return len(names) + sum(count_of(getattr(thing, name, None), seen) for name in names)
