"""A seeded world: one daemon at a time, fake workers, trainers and network, and every disaster that
the house promises to survive.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from typing import Any

from loaderd.core.events import Drain
from loaderd.core.groups import GroupMember
from loaderd.core.jobs import Stage
from loaderd.core.pool import BACK_OFF_MAX_S
from loaderd.core.pool_sizing import PoolPace
from loaderd.core.reminders import REMIND_S
from loaderd.core.scheduler import Scheduler
from loaderd_client.wait import PING_S
from loaderd_wire.errors import BadSample
from loaderd_wire.messages import Progress
from loaderd_wire.slices import Cursor, EpochShape, steps_left
from simulation.clockwork import Broken, Clockwork
from simulation.daemon import Daemon
from simulation.handovers import Handover
from simulation.memory import Memory
from simulation.network import Network, Weather
from simulation.samples import Samples, some_samples
from simulation.sharers import MadSharer, Sharer
from simulation.trainers import Madman, Trainer
from simulation.workers import Process

MakeScheduler = Callable[..., Scheduler]
# of a pool that finds its own number of workers: it changes its mind as often as it can
HASTY = PoolPace(0.1, 0.3, 0.2, 2, 0.5, 0.5, 0.1)
# (how many times as long a worker takes as usual, seconds to its host), for each worker one of them
PACES = (((1, 0.0),), ((1, 0.0),), ((1, 0.0), (8, 0.0)), ((1, 0.0), (1, 0.02), (5, 0.1)))
SHARED = 0.15  # of worlds have trainers that share their batches
MOST_MATES = 5
BATCHES_AFTER = 3  # that every trainer must get once the disasters are over
# times the longest deadline in play, and so often for each trainer that has to wait for the same
# worker
PATIENCE = 2
DISK_S = 20.0  # the longest sleep in the disk
# times that both sides are compared at the end: where workers die, a batch in a segment that has
# been replaced is finished late, and what the client says of it may be under way
SETTLING = 10
ERRORS = {"raise": "ValueError", "poison": "WorkerDied", "hang": "Timeout"}
REPLAY = "LOADERD_SEED={} python -m pytest tests/simulation -k replay -s"


class World(Clockwork):
    """Made from a seed alone.

    make: what builds the scheduler, so that a test can plant a bug.
    """

    def __init__(self, seed: int, make: MakeScheduler = Scheduler, aloud: bool = False) -> None:
        super().__init__(seed, aloud)
        seeder = self.seeder
        self._make = make
        self._number = 100
        self.calm = False
        self.disasters_s = seeder.choice([1.5, 3.0, 6.0])
        self.workers = seeder.randint(1, 4)
        # chance of its own, so that a seed's other lots are what they were
        self.pool_chance = random.Random(f"pool {seed}")
        self.most_workers = self.pool_chance.choice([0, 0, 0, 6])  # 0: as many as there are
        self.pace_chance = random.Random(f"pace {seed}")
        self.paces = self.pace_chance.choice(PACES)
        # likewise
        self.cloud_chance = random.Random(f"cloud {seed}")
        self.remote_workers = self.cloud_chance.choice([0, 0, 1, 4])
        self.cloud = self.cloud_chance.random() < 0.8  # the other hosts can be reached
        self.share_chance = random.Random(f"share {seed}")
        self.shared = self.share_chance.random() < SHARED
        # likewise; most of all where somebody else could get what a trainer still reads
        self.end_chance = random.Random(f"end {seed}")
        often = 0.5 if self.shared else 0.08
        self.handovers = self.end_chance.randint(1, 3) * (self.end_chance.random() < often)
        self.drops = self.end_chance.random() < often
        # of sharers that are stopped in the midst of next()
        self.faltering = self.end_chance.choice([0.05, 0.3]) if self.handovers or self.drops else 0
        self.sample_timeout_s = seeder.choice([0.5, 1.5])
        self.kill_s = seeder.choice([0.5, 2.0])
        self.worker_memory = seeder.choice([0, 0, 3 << 20])
        self.leak = seeder.choice([0, 100_000, 500_000]) if self.worker_memory else 0
        self.boot_failures = seeder.choice([0, 0, 0, 2])
        self.memory_is_short = seeder.random() < 0.12
        self.ceiling = 0  # of shared memory; set when it is known who will come
        self.reserve_fails = seeder.choice([0, 0, 0, 0.1])
        # of kills that have no effect for long: the disk does not answer
        self.deaf = seeder.choice([0, 0, 0, 0.5])
        self.deaths = 0  # from outside, since a job was last done
        self.outside_kills: dict[tuple[Any, ...], int] = {}
        self.memory = Memory()
        self.network = Network(self, self._weather())
        self.streams = {
            name: some_samples(seeder, name)
            for name in ("train", "val")[: seeder.choice([1, 1, 2])]
        }
        if self.shared:
            for samples in self.streams.values():
                samples.share(self.share_chance.choice([0, 1, 2, 8]))
        self.opened = {name: samples.stream for name, samples in self.streams.items()}
        self.daemon: Daemon | None = None
        self.handover: Handover | None = None  # the last one
        self.trainers: list[Trainer] = []
        self.mad: Madman | None = None
        self._broken: dict[str, str] = {}

    def number(self) -> int:
        """A number that nothing else in this world has."""
        self._number += 1
        return self._number

    def _weather(self) -> Weather:
        seeder = self.seeder
        if seeder.random() < 0.3:
            return Weather()
        return Weather(
            seeder.choice([0, 0.02, 0.2]),
            seeder.choice([0, 0.1]),
            seeder.choice([0, 0.1]),
            seeder.choice([0.001, 0.05, 0.5]),
        )

    # the course of things

    def run(self) -> None:
        """From the first Hello to the last.

        Raises Broken, with the diary and the line that replays it.
        """
        try:
            self._run()
        except Exception as error:
            # Whatever goes wrong in here, an assertion of the core included, is of no use without
            # the seed and the diary.
            replay = REPLAY.format(self.seed)
            raise Broken(
                f"world {self.seed}: {type(error).__name__}: {error}\n{self.diary()}\n{replay}"
            ) from error
        finally:
            # leases and page locks outlive a session, and a world that breaks
            for trainer in self.trainers:
                trainer.leases.clear()
                trainer.lose_device()

    def _run(self) -> None:
        self._describe()
        self._new_trainers()
        self._new_daemon()
        for disaster, often in self._disasters():
            self._again(disaster, often)
        if self.remote_workers:
            self.after(self.cloud_chance.uniform(0.2, 2), self._weather_the_cloud)
        while self.now < self.disasters_s and self.turn():
            pass
        self._calm_down()
        self._wait_for_all()
        self._settle()
        self._leave()

    @property
    def patience_s(self) -> float:
        """How long a trainer may have to wait for a batch once there are no more disasters.

        Where memory is short, a segment of a session that has left may have to be waited for, in
        which a worker sleeps.
        """
        deadlines_s = self.sample_timeout_s + self.kill_s + BACK_OFF_MAX_S + PING_S
        return PATIENCE * deadlines_s * (1 + len(self.trainers) / self.workers) + (
            DISK_S if self.memory_is_short else 0
        )

    def _describe(self) -> None:
        self.write(
            "world {}: {} workers of {}, timeout {} s, weather {}",
            self.seed,
            self.workers,
            self.most_workers or self.workers,
            self.sample_timeout_s,
            self.network.weather,
        )
        for samples in self.streams.values():
            self.write("stream {}", samples)

    def _wait_for_all(self) -> None:
        stopped = [each for each in self.trainers if isinstance(each, Sharer) and each.stopped]
        self._wait_for([trainer for trainer in self.trainers if trainer not in stopped])
        for trainer in stopped:
            trainer.go_on()
        self._wait_for([trainer for trainer in self.trainers if not trainer.content and stopped])

    def _wait_for(self, trainers: Sequence[Trainer]) -> None:
        patience_s = self.patience_s
        goals = {trainer: trainer.taken + BATCHES_AFTER for trainer in trainers}
        for trainer in trainers:
            trainer.fresh_at = self.now
        while True:
            for trainer in [t for t in goals if t.failed or t.taken >= goals[t]]:
                trainer.content = True
                del goals[trainer]
            if not goals:
                return
            if not self.turn() and not any(trainer.failed for trainer in goals):
                raise Broken(f"nothing happens any more; waiting: {[t.number for t in goals]}")
            for trainer in list(goals):
                if self.now - trainer.fresh_at <= patience_s:
                    continue
                # segments of others have grown, and there is no room until one of them leaves
                if trainer.refused or (self.memory_is_short and self._lacks_a_slot(trainer)):
                    del goals[trainer]
                else:
                    state = self.daemon.core.snapshot() if self.daemon else None
                    raise Broken(
                        f"trainer {trainer.number} got no batch for {patience_s:.1f} s, at "
                        f"{trainer.cursor}; {state}"
                    )

    def _lacks_a_slot(self, trainer: Trainer) -> bool:
        """Its mates, perhaps some that are stopped, keep all slots of the group."""
        assert self.daemon is not None
        session = self.daemon.core.state.sessions.get(trainer.settled)
        return isinstance(session, GroupMember) and session.group.slots.all_announced

    def _settle(self) -> None:
        """Nobody wants anything more, and everything is given back and said: then both sides must
        know the same.
        """
        daemon = self.daemon
        assert daemon is not None
        # a segment may be asked for when the disk answers
        for pause_s in (REMIND_S, REMIND_S, DISK_S, REMIND_S, REMIND_S):
            for trainer in self.trainers:
                trainer.settle()
            self._go_on(pause_s)
        wrong: list[str] = []
        for _ in range(SETTLING):
            for trainer in self.trainers:
                trainer.settle()
                trainer.check_locks()
            settled = [trainer.settled for trainer in self.trainers if trainer.settled]
            wrong = [fault for session in settled if (fault := daemon.unsettled(session))]
            if not wrong:
                return
            self._go_on(REMIND_S)
        raise Broken("; ".join(wrong))

    def _go_on(self, seconds: float) -> None:
        end = self.now + seconds
        self.after(seconds, lambda: None)
        while self.now < end and self.turn():
            pass

    def _calm_down(self) -> None:
        self.write("calm")
        self.calm = True
        self.network.weather = Weather()
        assert self.daemon is not None
        self.daemon.stop(False)
        if self.before is not None:
            self.before.stop(False)
        if self.daemon.core.state.draining:
            self._replace(self.daemon)  # it was about to leave
        for process in list(self.daemon.engine.processes.values()):
            process.stop(False)
            if self.seeder.random() < 0.7:
                process.wake_up()

    def _leave(self) -> None:
        daemon = self.daemon
        assert daemon is not None
        daemon.check_size()
        for trainer in [*self.trainers, *([self.mad] if self.mad else [])]:
            trainer.die()
        for process in list(daemon.engine.processes.values()):
            process.wake_up()
        self._go_on(60)
        daemon.core.invariants()
        daemon.check_idle()

    def free_bytes(self) -> int:
        """What a review of the pool is told of memory."""
        return self.pool_chance.choice([0, 1 << 40, 1 << 40])

    # those who live in it

    @property
    def before(self) -> Daemon | None:
        """The daemon that serves before this one, or has done so and has not left yet."""
        old = self.handover.old if self.handover is not None else None
        return old if old is not None and old.alive and old is not self.daemon else None

    @property
    def listener(self) -> Daemon | None:
        """Who takes the next connection. Two listen while one takes over from the other."""
        before = self.before
        if before is None or (before.handover and before.handover.leaving) or before.stopped:
            return self.daemon
        return self.end_chance.choice([before, self.daemon])

    def _new_daemon(self, before: Daemon | None = None) -> None:
        self.write("a daemon")
        self.daemon = Daemon(
            self,
            self._make(
                tuple(samples.rules for samples in self.streams.values()),
                workers=self.workers,
                remote_workers=self.remote_workers,
                sample_timeout_s=self.sample_timeout_s,
                kill_s=self.kill_s,
                worker_memory=self.worker_memory,
                most_workers=self.most_workers,
                pace=HASTY,
                index_of=lambda job, row, candidate: self.streams[job.stream].candidate(
                    job.seed, job.epoch, job.start + row, candidate
                ),
            ),
            before,
        )

    def _new_trainers(self) -> None:
        seeder = self.seeder
        left = seeder.choice([1, 1, 2, 2, 3, 4])
        while left > 0:
            samples = seeder.choice(list(self.streams.values()))
            world_size = seeder.randint(1, left) if seeder.random() < 0.5 else 1
            batch_size = seeder.randint(1, 9)
            if samples.on_error == "skip" and samples.empty == "skip":
                world_size = 1
            if samples.epoch_steps:  # its order is made for these
                batch_size, world_size = samples.batch_size, samples.world_size
            drop_last = seeder.random() < 0.5 and world_size * batch_size <= samples.order.samples
            seed, cursor = seeder.randint(0, 5), Cursor(seeder.randint(0, 2), 0, 0)
            if seeder.random() < 0.3:
                cursor = Cursor(
                    cursor.epoch, seeder.randint(0, samples.order.samples), seeder.randint(0, 5)
                )
            mates = self.share_chance.choice([1, 2, 2, 3, MOST_MATES]) if self.shared else 1
            for rank in range(world_size):
                uneven = samples.tail == "short" and not drop_last
                shape = EpochShape(
                    samples.order.samples,
                    batch_size,
                    rank,
                    world_size,
                    drop_last,
                    uneven_tail=uneven,
                )
                assert steps_left(shape, 0)
                for _ in range(mates):
                    self._add(self._new_trainer(samples, shape, seed, cursor))
            left -= world_size * mates
        if seeder.random() < 0.15:
            samples = seeder.choice(list(self.streams.values()))
            if self.shared:
                one = self.trainers[0]
                same = one.samples, one.shape, one.seed, one.cursor
                self.mad = MadSharer(self, self.number(), *same)
            else:
                at = EpochShape(samples.order.samples, 2, 0, 1, False), 0, Cursor(0, 0, 0)
                self.mad = Madman(self, self.number(), samples, *at)
        everybody = [*self.trainers, *([self.mad] if self.mad else [])]
        needs = list({trainer.memory: trainer.bytes for trainer in everybody}.values())
        self.ceiling = (
            sum(needs) + seeder.choice([0, max(needs)]) if self.memory_is_short else 1 << 40
        )

    def _new_trainer(
        self, samples: Samples, shape: EpochShape, seed: int, cursor: Cursor
    ) -> Trainer:
        kind = Sharer if self.shared and self.share_chance.random() < 0.9 else Trainer
        return kind(self, self.number(), samples, shape, seed, cursor)

    def _add(self, trainer: Trainer) -> None:
        self.write(
            "trainer {}: {} of {}, seed {}, prefetch {}",
            trainer.number,
            trainer.shape,
            trainer.samples.name,
            trainer.seed,
            trainer.prefetch,
        )
        self.trainers.append(trainer)

    def hear(self, progress: Progress) -> None:
        """A Progress arrives at the messages socket of whoever serves that session."""
        for daemon in (self.daemon, self.before):
            if daemon is not None:
                daemon.hear(progress)

    # what may happen

    def _disasters(self) -> list[tuple[Callable[[], None], float]]:
        """(what, mean seconds between two of them) for this world: a few of all there are."""
        every = [
            (self._kill_a_worker, 0.7),
            (self._kill_a_worker, 0.2),
            (self._out_of_memory, 3.0),
            (self._stop_a_worker, 2.0),
            (self._hunt, 2.0),
            (self._kill_the_template, 4.0),
            (self._kill_a_trainer, 3.0),
            (self._kill_the_daemon, 4.0),
            (self._stop_the_daemon, 3.0),
            (self._pause_the_pod, 2.0),
            (self._change_the_data, 10.0),
        ]
        of_sharers = [(self._stop_a_trainer, 1.0), (self._join, 3.0)] if self.shared else []
        of_ends = [(self._hand_over, 0.7)] if self.handovers else []
        of_ends += [(self._drop_a_trainer, 0.7)] if self.drops else []
        return self.seeder.sample(every, self.seeder.choice([0, 1, 2, 3, 5])) + of_sharers + of_ends

    def _again(self, disaster: Callable[[], None], often: float) -> None:
        def strike() -> None:
            if not self.calm:
                disaster()
                self._again(disaster, often)

        self.after(self.seeder.expovariate(1 / often), strike)

    def _victim(self) -> Process | None:
        """A living worker, preferably one at work."""
        assert self.daemon is not None
        living = [p for p in self.daemon.engine.processes.values() if p.alive and p.ready]
        busy = [p for p in living if p.job]
        return self.seeder.choice(busy or living) if living and self.daemon.alive else None

    def _spared(self, process: Process, most: int, what: str) -> bool:
        """Was this row, or the stream, hit so often that once more would tell against it, as the
        rules say?
        """
        job = process.job
        if self.deaths >= 3:
            return True
        if job is None:
            return False
        at = (what, job.stream, job.seed, job.epoch, job.start, job.rows)
        self.outside_kills[at] = self.outside_kills.get(at, 0) + 1
        return self.outside_kills[at] > most

    def _kill_a_worker(self) -> None:
        process = self._victim()
        if process and not self._spared(process, 7, "outside"):
            self.deaths += 1
            process.die("SIGKILL", False)

    def _out_of_memory(self) -> None:
        process = self._victim()
        if process and not self._spared(process, 1, "own"):
            self.deaths += 1
            process.die("SIGKILL (out of memory)", True)

    def _stop_a_worker(self) -> None:
        process = self._victim()
        if process:
            self.write("worker {} stopped", process.worker)
            process.stop(True)
            self.after(self.seeder.uniform(0, 6), process.stop, False)

    def _hunt(self) -> None:
        """Whoever takes this batch up is killed, several times in a row."""
        process = self._victim()
        if process and process.job:
            self._chase((process.job.stream, process.job.epoch, process.job.start), 6)

    def _chase(self, batch: tuple[Any, ...], left: int) -> None:
        assert self.daemon is not None
        for process in list(self.daemon.engine.processes.values()):
            job = process.job
            if (
                job
                and (job.stream, job.epoch, job.start) == batch
                and not self._spared(process, 7, "outside")
            ):
                process.die("SIGKILL", False)
                left -= 1
        if left > 0 and not self.calm:
            self.after(0.1, self._chase, batch, left)

    def _kill_the_template(self) -> None:
        assert self.daemon is not None
        self.write("the template is killed, and all workers with it")
        self.daemon.engine.template_until = self.now + 0.5
        for process in self.daemon.engine.processes.values():
            if not self._spared(process, 7, "outside"):
                self.deaths += 1
                self.after(self.seeder.uniform(0, 0.1), process.die, "SIGKILL", False)

    def _kill_a_trainer(self) -> None:
        trainer = self.seeder.choice(self.trainers)
        if self._workers_die_for(trainer):
            return
        trainer.die()
        self.trainers.remove(trainer)
        successor = type(trainer)(
            self, self.number(), trainer.samples, trainer.shape, trainer.seed, trainer.cursor
        )
        successor.prefetch = trainer.prefetch
        self._add(successor)

    def _workers_die_for(self, trainer: Trainer) -> bool:
        """Workers have died at its stream since a row was last finished. What they tell of samples
        goes with its session: were that to end again and again, the stream would be given up, as
        the rules say.
        """
        name = trainer.samples.name
        daemons = [daemon for daemon in (self.daemon, self.before) if daemon is not None]
        return any(daemon.core.state.streams[name].deaths > 0 for daemon in daemons)

    def _stop_a_trainer(self) -> None:
        trainer = self.seeder.choice(self.trainers)
        if isinstance(trainer, Sharer) and not trainer.stopped:
            self.stop(trainer)

    def stop(self, trainer: Sharer) -> None:
        """For a while; where that is longer than the disasters, until the others have gone on."""
        self.write("trainer {} stopped", trainer.number)
        trainer.stop()
        self.after(self.seeder.uniform(0, 8), self._go_on_if_not_calm, trainer)

    def may_falter(self, trainer: Sharer) -> None:
        """A sharer in the midst of next() is perhaps stopped there, and its session soon ended."""
        chance = self.end_chance
        if not self.calm and not trainer.stopped and chance.random() < self.faltering:
            self.stop(trainer)
            ends = [self._drop_a_trainer] * self.drops + [self._hand_over] * (self.handovers > 0)
            if ends and chance.random() < 0.5:
                self.after(chance.uniform(0, 1), chance.choice(ends))

    def _go_on_if_not_calm(self, trainer: Sharer) -> None:
        if not self.calm:
            trainer.go_on()

    def _join(self) -> None:
        """One more mate, where another one is, or where that began."""
        one = self.seeder.choice(self.trainers)
        if isinstance(one, Sharer) and len(one.mates) + 1 < MOST_MATES:
            at = self.share_chance.choice([one.cursor, Cursor(0, 0, 0)])
            self._add(type(one)(self, self.number(), one.samples, one.shape, one.seed, at))

    def _kill_the_daemon(self) -> None:
        assert self.daemon is not None
        if self.daemon.alive:
            if self.seeder.random() < 0.3:
                self.daemon.tell(Drain())
                self.after(self.seeder.uniform(0, 1), self._replace, self.daemon)
            else:
                self._replace(self.daemon)

    def _replace(self, old: Daemon) -> None:
        if not old.alive:
            return
        old.kill()
        before = self.before
        if before is not None and old is self.daemon:
            self.daemon = before  # it serves on
            assert before.handover is not None
            before.handover.failed()
        elif old is self.daemon:
            self._new_daemon()

    def _hand_over(self) -> None:
        """`serve --takeover`: a successor begins to serve beside the daemon."""
        old = self.daemon
        assert old is not None
        ready = old.alive and not old.stopped and not old.core.state.draining
        if self.handovers and ready and self.before is None:
            self.handovers -= 1
            self.handover = old.handover = Handover(old)
            self._new_daemon(old)
            assert self.daemon is not None
            self.handover.begin(self.daemon)
            if self.end_chance.random() < 0.2:  # perhaps before the old one has left
                self.after(self.end_chance.uniform(0, 1), self._replace, self.daemon)

    def _drop_a_trainer(self) -> None:
        """The daemon closes the connection of a trainer that lives, perhaps of one that is stopped."""
        daemon = self.daemon
        assert daemon is not None
        peers = sorted(daemon.peers, key=lambda peer: peer.trainer.number)
        still = [p for p in peers if isinstance(p.trainer, Sharer) and p.trainer.stopped]
        if peers:
            peer = self.end_chance.choice(still or peers)
            if not self._workers_die_for(peer.trainer):
                self.write("trainer {} is dropped", peer.trainer.number)
                daemon.run(daemon.control.drop, peer)

    def cannot_send(self, trainer: Trainer) -> bool:
        """A message on a control socket is one too many for its reader."""
        one_too_many = self.drops and not self.calm and self.end_chance.random() < 0.05
        return one_too_many and not self._workers_die_for(trainer)

    def _stop_the_daemon(self) -> None:
        assert self.daemon is not None
        if not self.daemon.stopped:
            self.daemon.stop(True)
            self.after(self.seeder.uniform(0, 8), self.daemon.stop, False)

    def _pause_the_pod(self) -> None:
        assert self.daemon is not None
        self.write("the pod was paused")
        self.daemon.jump()
        for trainer in self.trainers:
            trainer.prod()

    def _weather_the_cloud(self) -> None:
        """The other hosts go, all at once or one of them, and come back."""
        assert self.daemon is not None
        chance = self.cloud_chance
        if self.calm:
            return
        remote = [p for p in self.daemon.engine.processes.values() if p.remote and p.alive]
        self.cloud = chance.random() < 0.8
        lost = remote if not self.cloud else remote[: chance.randint(0, 1)]
        self.write("the cloud is {}, {} workers go", "there" if self.cloud else "gone", len(lost))
        for process in lost:
            # Its job may be of a batch that is hunted: once more must not tell against a row.
            if not self._spared(process, 7, "outside"):
                process.die("SIGKILL", False)
        self.after(chance.uniform(0.2, 2), self._weather_the_cloud)

    def _change_the_data(self) -> None:
        samples = self.seeder.choice(list(self.streams.values()))
        samples.changed = "last_txnid was 7, is 8"

    # what must not happen

    def quarantined(self, stream: str, sample: BadSample) -> None:
        """Only a bad sample is ever accused."""
        samples = self.streams[stream]
        flaw = samples.flaws.get(sample.index)
        if sample.stage == Stage.COLLATE.name.lower():
            if not samples.sour:
                raise Broken(f"the collate of {stream} never fails, and was blamed: {sample}")
        elif flaw is None:
            raise Broken(f"an innocent sample of {stream} was blamed: {sample}")
        elif sample.key != str(sample.index):
            raise Broken(f"a bad sample of {stream} is called by another's name: {sample}")
        elif sample.error != ERRORS[flaw.how]:
            raise Broken(
                f"a bad sample of {stream} is charged with what another did: {sample}, it is {flaw}"
            )

    def stream_broken(self, stream: str, error: str, text: str) -> None:
        if not self.streams[stream].changed:
            raise Broken(f"stream {stream} was given up for no reason: {error}: {text}")
        self._broken[stream] = error

    def refused(self, trainer: Trainer, text: str) -> None:
        """It comes again: for now is not for ever."""
        if "never fits" in text or not (
            "[daemon] memory" in text or "could not be reserved" in text
        ):
            raise Broken(f"trainer {trainer.number} is refused for no reason: {text}")

    def trainer_failed(self, trainer: Trainer, error: str, text: str) -> None:
        short = self.memory_is_short and "[daemon] memory" in text
        if (
            not short
            and not (self.reserve_fails and "could not be reserved" in text)
            and self._broken.get(trainer.samples.name) != error
        ):
            raise Broken(f"trainer {trainer.number} failed for no reason: {error}: {text}")


def replay_seed() -> int | None:
    """The world that LOADERD_SEED names."""
    text = os.environ.get("LOADERD_SEED", "")
    return int(text) if text else None
