"""A fake engine: fake worker processes in fake time, and which segments they may have mapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from loaderd.core.events import StackDumped, WorkerBooting, WorkerDied, WorkerPoll
from loaderd.core.jobs import Job
from loaderd.engine.base import EngineStatus, ForkServerStatus
from loaderd.engine.messages import OpenError, StreamInfo
from loaderd_wire.messages import Segment
from loaderd_wire.slots import FieldSpec
from simulation.clockwork import Broken
from simulation.workers import Process

if TYPE_CHECKING:
    from simulation.daemon import Daemon

QUEUE = 2  # jobs that a worker is ever given


class Engine:
    """Every action is checked: nothing is asked of it that would harm a batch.

    template_until: a dead template is replaced then.
    """

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._world = daemon.world
        self.template_until = 0.0
        self.processes: dict[int, Process] = {}
        self.mapped: set[int] = set()

    # workers

    def start(self, worker: int, delay_s: float, remote: bool = False) -> None:
        world = self._world
        process = self.processes[worker] = Process(world, worker, self._daemon.tell)
        wait_s = max(delay_s, self.template_until - world.now)
        if remote:
            process.remote = True
            world.after(wait_s + world.cloud_chance.uniform(0.01, 0.1), self._join, process)
        elif (
            world.boot_failures
            and world.seeder.random() < 0.5
            and self._daemon.core.state.pool.ever_ready
        ):
            world.boot_failures -= 1
            world.after(wait_s + 0.1, self._cannot_boot, process)
        else:
            world.after(wait_s, self._booting, process)
            world.after(wait_s + world.seeder.uniform(0.01, 0.3), process.boot)

    def send(self, worker: int, job: Job) -> None:
        process, memory = self.processes[worker], self._world.memory
        if len(process.mail) + (process.job is not None) >= QUEUE:
            raise Broken(f"worker {worker} is given a third job, {job}")
        memory.sent(process, job)
        for session in self._daemon.sessions_of(memory.segments[job.segment].owner):
            trainer = self._daemon.client(session)
            if trainer and trainer.expects(job.segment, job.slot):
                raise Broken(
                    f"{job} is to write a slot that trainer {trainer.number} has yet to take"
                )
        if process.alive:
            process.take(job)
        else:
            memory.ended(job)

    def dump(self, worker: int) -> None:
        self._world.after(self._world.seeder.uniform(0, 0.5), self._dumped, self.processes[worker])

    def kill(self, worker: int, why: str) -> None:
        world, process = self._world, self.processes[worker]
        if world.seeder.random() < world.deaf:
            world.write("worker {} sleeps in the disk", worker)
            process.immortal = True
            world.after(world.seeder.uniform(1, 20), process.wake_up)
        world.after(world.seeder.uniform(0, 0.1), process.die, "SIGKILL", False)

    def retire(self, worker: int) -> None:
        process = self.processes[worker]
        if process.alive and (process.job or process.mail):
            raise Broken(f"worker {worker} is to retire with {process.job} and {process.mail}")
        self._world.after(self._world.seeder.uniform(0, 0.1), process.die, "exit code 0", True)

    def look(self) -> WorkerPoll:
        late, self._daemon.late = self._daemon.late, False
        return WorkerPoll(tuple(process.seen(late) for process in self.processes.values()))

    def _booting(self, process: Process) -> None:
        if process.alive:
            self._daemon.tell(WorkerBooting(process.worker, "importing users"))

    def _join(self, process: Process) -> None:
        """A worker on another host comes to be, if that is there."""
        world = self._world
        if not process.alive:
            return
        if not world.cloud:
            self._cannot_boot(process)
            return
        self._daemon.tell(WorkerBooting(process.worker, "waiting for a place", True))
        world.after(world.cloud_chance.choice([0.02, 0.02, 0.5, 30.0]), process.boot)

    def _dumped(self, process: Process) -> None:
        if process.worker in self.processes:
            self._daemon.tell(
                StackDumped(
                    process.worker,
                    f"stack of {process.worker} at {process.word}" if process.ready else "",
                )
            )

    def _cannot_boot(self, process: Process) -> None:
        if process.alive:
            process.alive = False
            self._daemon.tell(
                WorkerDied(
                    process.worker,
                    True,
                    "exit code 1",
                    process.seen(False),
                    "",
                    "Traceback: no disk",
                )
            )

    # segments

    def add_segment(
        self, segment: Segment, stream: str, fields: tuple[FieldSpec, ...], rows: int, fd: int
    ) -> None:
        self.mapped.add(segment.segment)

    def drop_segment(self, segment: int, done: Callable[[], object]) -> None:
        world = self._world
        memory = world.memory.segments[segment]
        writers = world.memory.living_writers(segment)
        sessions = self._daemon.sessions_of(memory.owner)
        holders = [slot.holder for slot in memory.slots if slot.holder]
        told = [
            session
            for slot in memory.slots
            for session, (_, peer) in slot.told.items()
            if not peer.ended
        ]
        if writers or (holders and sessions) or told or memory.dropped:
            raise Broken(
                f"segment {segment} is dropped (before: {memory.dropped}) under writers {writers} "
                f"and holders {holders}, sessions {told}"
            )
        memory.dropped = True

        def unmapped() -> None:
            self.mapped.discard(segment)
            done()

        world.after(world.seeder.uniform(0, 0.2), self._daemon.run, unmapped)

    # what a world has no use for

    def open(self, stream: str, done: Callable[[StreamInfo | OpenError], None]) -> None:
        raise Broken(f"stream {stream} is to be opened, and nobody has put it right")

    def edited(self) -> list[str]:
        return []

    def doing(self) -> list[str]:
        return []

    def status(self) -> EngineStatus:
        return EngineStatus(ForkServerStatus(0, True, False))

    def close(self) -> None:
        self.processes.clear()
