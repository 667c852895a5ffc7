"""The local engine: workers on this host, forked from the template, that run the scheduler's jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from loaderd.config.schema import WorkersConfig
from loaderd.config.stream import StreamPlan
from loaderd.core.events import Booting, Dumped, Event, Look, Seen, WorkerDied, WorkerDone, WorkerReady
from loaderd.core.jobs import Done, Job, Kind
from loaderd.engine.fork_server import Template
from loaderd.engine.launch import Launched
from loaderd.engine.messages import Map, NewModules, Noted, OpenFault, Setup, StreamFacts, Unmapped, Use
from loaderd.engine.oom import OomWatch
from loaderd.engine.output_capture import Log
from loaderd.engine.probing import Prober
from loaderd.engine.scoreboard import Scoreboard
from loaderd.engine.segment_refs import SegmentTable
from loaderd.engine.worker_process import LEFT, Boss, Death, Hand, State
from loaderd.system import processes
from loaderd.system.loop import Loop, Timer
from loaderd.system.modules import Modules
from loaderd_wire.errors import ProtocolError
from loaderd_wire.messages import Segment
from loaderd_wire.records import quick
from loaderd_wire.slots import FieldSpec

__all__ = ["LocalPool", "OpenFault", "StreamFacts"]

FIRST_PROBE = 1 << 40  # probing workers have numbers from here on, which no scheduler's worker has
SPARE_PLACES = 16  # beyond twice the workers: stand-ins for those that cannot be killed
ANON_S = 1.0  # memory of a worker is looked at no more often
BOOT_S = 120.0
PLACE_S = 1.0
TEMPLATE_S = 1.0  # from one look at the template to the next, while somebody waits for it
NEW_TEMPLATE_S = 5.0
CLOSE_S = 5.0
MAX_NOTED = 256  # lines of workers; user code may have got hold of a worker's socket

_worker_done = quick(WorkerDone)


class LocalPool:
    """The engine of one host, as `MakeEngine` says.

    boot_s: for a worker or template to get ready. ahead: a template for these streams that has been started already.
    """

    def __init__(
        self,
        loop: Loop,
        streams: Sequence[StreamPlan],
        config: WorkersConfig,
        *,
        late: Sequence[StreamPlan] = (),
        num_workers: int,
        folder: str = "",
        emit: Callable[[Event], object],
        log: Log,
        oom_kills: Callable[[], int] = lambda: 0,
        boot_s: float = BOOT_S,
        ahead: Launched | None = None,
    ) -> None:
        self._loop = loop
        self._emit = emit
        self._log = log
        self._sample_timeout_s = config.sample_timeout_s
        self._boot_s = boot_s
        self._num_workers = num_workers
        self._plans = {plan.name: plan.to_json() for plan in (*streams, *late)}
        self._ahead = [plan.name for plan in streams]
        self._setup = Setup((), folder, config.init or "", num_workers, 0, "none")
        self._served = False  # a worker has been ready
        self._worker_places = 2 * num_workers + SPARE_PLACES
        self._board = Scoreboard(self._worker_places + len(self._plans) + SPARE_PLACES)
        self._template = Template(loop, (*streams, *late), self._ahead_of_all(), config.start_method, self, log, boot_s=boot_s, ahead=ahead)
        self._segments = SegmentTable()
        self._facts: dict[str, StreamFacts] = {}
        self._hands: dict[int, Hand] = {}  # scheduler's workers and probes, until they are gone
        self._delayed: dict[int, Timer] = {}
        self._awaited: set[Hand] = set()  # of a dead template: a new one is started when they are dead
        self._awaiting: Timer | None = None
        self._watching: Timer | None = None  # the template
        self._held_up: set[int] = set()  # workers that wait for it and have been told that it is stopped
        self._probers: list[Prober] = []  # that have no answer yet
        self._next_probe = FIRST_PROBE
        self._anon_s: dict[int, float] = {}
        self._lost_s = loop.lost_s
        self._oom = OomWatch(oom_kills)
        self._modules = Modules(folder)
        self._noted: set[str] = set()  # what workers have noted, each told once
        self._closed = False

    # -- the scheduler's actions

    def start(self, worker: int, delay_s: float) -> None:
        """Start worker `worker` not before delay_s from now. Answer: WorkerReady or WorkerDied."""
        if self._closed:
            return
        if worker in self._hands or worker in self._delayed:
            raise ValueError(f"worker {worker} is there already")
        self._delayed[worker] = self._loop.later(delay_s, lambda: self._start(worker))

    def send(self, worker: int, job: Job) -> None:
        """Hand a job to a worker that is ready; its stream is opened, its segment added. Answer: WorkerDone or WorkerDied."""
        if self._closed:
            return
        hand = self._hands[worker]
        facts = self._facts[job.stream]
        if job.stream not in hand.used:
            hand.used.add(job.stream)
            batch_specs = facts.specs if facts.collated else ()
            plan = self._plans[job.stream]
            hand.send(Use(job.stream, facts.identity, facts.state, facts.total, facts.sample_specs, batch_specs, plan))
        if job.kind != Kind.TRIAL:
            self._segments.give(job.segment, hand)
        hand.jobs[job.job] = job
        self._oom.look(self._loop.now_s())
        hand.send(job)

    def dump(self, worker: int) -> None:
        """Have a worker write its stacks, or the template that it waits for. Answer: Dumped, unless it is dead already or dies before."""
        hand = self._hands.get(worker)
        if hand is not None:
            (self._template if hand.state == State.WAITING else hand).dump(lambda stack: self._emit(Dumped(worker, stack)))

    def kill(self, worker: int, why: str) -> None:
        """Kill a worker, in whatever state it is. Answer: WorkerDied, unless it has been given already."""
        if worker in self._delayed:
            self._delayed.pop(worker).cancel()
            self._loop.soon(lambda: self._emit(WorkerDied(worker, False, f"never started: {why}", Seen(worker, 0, "", False, 0), "", "")))
        elif worker in self._hands:
            self._hands[worker].kill(why)

    def retire(self, worker: int) -> None:
        """Ask a worker to end. Answer: WorkerDied."""
        if self._closed:
            return
        if worker in self._delayed or self._hands[worker].state in (State.WAITING, State.FORKING, State.BOOTING):
            self.kill(worker, "retired")
        else:
            self._hands[worker].leave()

    # -- streams and segments

    def open(self, stream: str, done: Callable[[StreamFacts | OpenFault], None]) -> None:
        """Find out what a stream is, in a worker of its own; done() is called from the loop."""

        def found(answer: StreamFacts | OpenFault) -> None:
            if isinstance(answer, StreamFacts):
                self._facts[stream] = answer
                for hand in self._hands.values():  # they have known it as something else if it is opened anew
                    hand.used.discard(stream)
                self._modules.add(answer.code)
                if stream not in self._ahead:
                    self._ahead.append(stream)
                    self._template.setup = self._ahead_of_all()
            self._probers.remove(prober)
            done(answer)

        name = f"probe of stream {stream!r}"

        def begin() -> None:
            number = self._next_probe
            self._next_probe += 1
            self._begin(number, prober, name, (self._plans[stream],))

        def again(cause: str) -> None:
            self._log("warning", f"{name} has ended: {cause}; another one is started")
            begin()

        prober = Prober(self._loop, stream, self._sample_timeout_s, found, again)
        self._probers.append(prober)
        begin()

    def add_segment(self, segment: Segment, stream: str, fields: tuple[FieldSpec, ...], rows: int, fd: int) -> None:
        """Jobs may name this segment from now on. fields: what its slots hold, in order; rows: of one slot. fd is the caller's, to be
        kept open until `drop_segment` is done."""
        self._segments.add(Map(segment, fields, rows, self._facts[stream].collated), fd)

    def drop_segment(self, segment: int, done: Callable[[], object]) -> None:
        """No job names it from now on; done() when the last worker has unmapped it, perhaps at once."""
        if self._closed:
            done()
            return
        self._segments.drop(segment, done)

    def edited(self) -> list[str]:
        """Files of the users' code, below the config's folder, that no longer say what was imported."""
        return self._modules.edited()

    # -- looking

    def look(self) -> Look:
        """Every worker that has a job: what its line on the scoreboard says, whether it is stopped, now and then its memory."""
        now_s, lost_s = self._loop.now_s(), self._loop.lost_s
        starved, self._lost_s = lost_s > self._lost_s, lost_s
        self._oom.look(now_s)
        return Look(tuple(self._seen(hand, now_s, starved) for hand in self._busy()))

    def doing(self) -> list[str]:
        """What each of those that are not ready does, for how long: the template, workers, and probes until they have an answer."""
        now_s = self._loop.now_s()
        if self._template.stopped:
            return [self._template.stopped]
        lines = [f"the template has been {self._template.doing} for {now_s - self._template.doing_s:.0f} s"] if self._template.doing else []
        for hand in self._hands.values():
            if hand.state == State.BOOTING and hand.doing:
                lines.append(f"{hand.name} has been {hand.doing} for {now_s - hand.doing_s:.0f} s")
        return lines + [line for prober in self._probers for line in prober.doing(now_s)]

    def picture(self) -> dict[str, Any]:
        """JSON-able, but for the numbers that "workers" goes by: the template and every process of the pool."""
        facts = {number: self._facts_of(hand) for number, hand in self._hands.items()}
        return {
            "template": {"pid": self._template.pid, "ready": self._template.ready, "stopped": bool(self._template.stopped)},
            "probes": [fact for number, fact in facts.items() if number >= FIRST_PROBE],
            "workers": {number: fact for number, fact in facts.items() if number < FIRST_PROBE},
        }

    def close(self) -> None:
        """Kill and reap everything, now. Only a process in disk sleep may outlive this, with nothing of ours but its mappings. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for timer in (*self._delayed.values(), self._awaiting, self._watching):
            if timer is not None:
                timer.cancel()
        self._delayed.clear()
        self._template.close(CLOSE_S)
        for hand in self._hands.values():
            hand.bury(CLOSE_S)
        self._hands.clear()
        self._segments.close()
        self._board.close()

    # -- what the template says

    def template_ready(self) -> None:
        for hand in tuple(self._hands.values()):
            if hand.state == State.WAITING:
                hand.fork(self._boot_s)

    def template_does(self, doing: str) -> None:
        for hand in self._hands.values():
            if hand.state == State.WAITING and hand.worker < FIRST_PROBE:
                self._emit(Booting(hand.worker, f"waiting for the template, which is {doing},"))

    def forked(self, worker: int, pid: int, pidfd: int) -> None:
        self._hands[worker].forked(pid, pidfd)

    def not_forked(self, worker: int, text: str) -> None:
        self._hands[worker].not_forked(text)

    def ended(self, worker: int, status: int) -> None:
        hand = self._hands.get(worker)
        if hand is not None:
            hand.ended(status, out_of_memory=processes.was_killed(status) and self._oom.rose(self._loop.now_s()))

    def template_died(self) -> None:
        self._awaited = {hand for hand in self._hands.values() if hand.alive or hand.state == State.DEAD}
        self._awaiting = self._loop.later(NEW_TEMPLATE_S, self._wait_no_longer)
        for hand in tuple(self._hands.values()):
            hand.template_died()
        self._new_template()

    def template_hopeless(self, text: str) -> None:
        for hand in tuple(self._hands.values()):
            if hand.state == State.WAITING:
                hand.never(text)

    # -- what workers say

    def hand_ready(self, hand: Hand) -> None:
        self._served = True
        self._emit(WorkerReady(hand.worker))

    def hand_does(self, hand: Hand, doing: str) -> None:
        self._emit(Booting(hand.worker, doing))

    def hand_said(self, hand: Hand, message: Any) -> None:
        first = next(iter(hand.jobs.values()), None)
        if isinstance(message, Done) and first is not None and answers(message, first):
            del hand.jobs[message.job]
            if hand.other_code and StreamPlan.from_json(self._plans[first.stream]).has_user_code():
                self._emit(WorkerDone(hand.worker, message, hand.other_code))
            else:
                self._emit(_worker_done(hand.worker, message))
        elif isinstance(message, Noted):
            self._note(message.text)
        elif isinstance(message, NewModules):
            for path in self._modules.add(message.modules):
                hand.other_code = (
                    hand.other_code
                    or f"{path} was edited while the daemon runs: {hand.name} has imported it as it is now, others as it was"
                )
                self._note(hand.other_code)
        elif not (isinstance(message, Unmapped) and self._segments.unmapped(message.segment, hand)):
            raise ProtocolError(f"{message!r:.100} while it does {first}")

    def _note(self, text: str) -> None:
        if text not in self._noted and len(self._noted) < MAX_NOTED:
            self._noted.add(text)
            self._log("warning", text)

    def hand_died(self, hand: Hand, death: Death) -> None:
        seen = Seen(hand.worker, death.word, death.key, False, 0)
        if not death.boot and death.cause != LEFT:  # what could not start is told by whoever wanted it
            at = f", at sample {death.key!r}" if death.word and death.key else ""
            self._log("warning", f"{hand.name} (pid {hand.pid}) has ended: {death.cause}{at}")
        self._emit(WorkerDied(hand.worker, death.own, death.cause, seen, death.stack, death.boot))

    # -- inside

    def _start(self, worker: int) -> None:
        del self._delayed[worker]
        self._begin(worker, self, f"worker {worker}", self._ahead_of_all().plans)

    def _ahead_of_all(self) -> Setup:
        """What a template is told: the user code of all streams that are served."""
        return replace(self._setup, plans=tuple(self._plans[name] for name in self._ahead))

    def _begin(self, number: int, boss: Boss, name: str, plans: tuple[str, ...]) -> None:
        """Start a process that imports the user code of these plans before it is ready."""
        probing = number >= FIRST_PROBE
        taken = {hand.place for hand in self._hands.values()}
        places = range(self._worker_places, self._board.lines) if probing else range(self._worker_places)
        place = next((place for place in places if place not in taken), None)
        if place is None:
            # So many cannot be killed that their stand-ins have no place: wait for one of them.
            timer = self._loop.later(PLACE_S, lambda: (self._delayed.pop(number), self._begin(number, boss, name, plans)))
            self._delayed[number] = timer
            return
        setup = replace(self._setup, plans=plans, place=place, lenient=self._served and not probing)
        hand = Hand(self._loop, self._board, self._template, setup, number, name, boss=boss, gone=self._buried, log=self._log)
        self._hands[number] = hand
        if self._template.ready:
            hand.fork(self._boot_s)
        elif not self._awaited:
            self._template.ensure()
        if self._watching is None:
            self._watching = self._loop.later(0.0, self._watch_template)

    def _watch_template(self) -> None:
        """As long as somebody waits for the template: tell whoever waits if it is stopped, and when it is not any longer."""
        stopped = self._template.stopped
        waiting = [hand for hand in self._hands.values() if hand.state in (State.WAITING, State.FORKING)]
        for hand in waiting:
            if hand.worker < FIRST_PROBE and bool(stopped) != (hand.worker in self._held_up):
                self._held_up ^= {hand.worker}
                self._emit(Booting(hand.worker, f"waiting: {stopped}," if stopped else ""))
        self._held_up &= {hand.worker for hand in waiting}
        self._watching = self._loop.later(TEMPLATE_S, self._watch_template) if waiting else None

    def _buried(self, hand: Hand) -> None:
        """A hand is gone: before anybody is told, nothing here knows it any longer."""
        del self._hands[hand.worker]
        self._anon_s.pop(hand.worker, None)
        self._segments.died(hand)
        if hand in self._awaited:
            self._awaited.discard(hand)
            self._new_template()

    def _new_template(self) -> None:
        if self._awaiting is not None and not self._awaited:
            self._awaiting.cancel()
            self._awaiting = None
            if any(hand.state == State.WAITING for hand in self._hands.values()):
                self._template.ensure()

    def _wait_no_longer(self) -> None:
        names = ", ".join(sorted(hand.name for hand in self._awaited))
        self._log("warning", f"{names} cannot be killed; a new template is started all the same")
        self._awaited = set()
        self._new_template()

    def _facts_of(self, hand: Hand) -> dict[str, Any]:
        anon = processes.anonymous_bytes(hand.pid) if hand.alive and hand.pid else 0
        return {"name": hand.name, "pid": hand.pid, "process": hand.state.value, "place": hand.place, "anon_bytes": anon}

    def _busy(self) -> list[Hand]:
        return [hand for hand in self._hands.values() if hand.state == State.READY and hand.jobs]

    def _seen(self, hand: Hand, now_s: float, starved: bool) -> Seen:
        word, key = hand.look()
        anon = 0
        if now_s - self._anon_s.get(hand.worker, -ANON_S) >= ANON_S:
            self._anon_s[hand.worker] = now_s
            anon = processes.anonymous_bytes(hand.pid)
        return Seen(hand.worker, word, key, processes.stopped(hand.pid), anon, starved)


def answers(done: Done, job: Job) -> bool:
    """Whether this can be a worker's answer to this job: user code may have got hold of its socket."""
    if not done.bad and not done.replaced:
        return done.job == job.job
    rows = range(job.first, job.last)
    return done.job == job.job and all(bad.row in rows for bad in done.bad) and all(row.row in rows for row in done.replaced)
