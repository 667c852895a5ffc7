"""A fake daemon around the real scheduler and the real reception: does the actions, tells the
events, stops, pauses and dies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from loaderd.core import actions as a
from loaderd.core import events as e
from loaderd.core.scheduler import Scheduler
from loaderd.core.slots import ENDING, FILLING, READY
from loaderd.server.admission_control import AdmissionControl
from loaderd.server.dispatcher import ActionDispatcher, ActionHandlers
from loaderd.server.segment_budget import SegmentBudget
from loaderd.server.sessions import SessionRegistry
from loaderd_wire.errors import from_name
from loaderd_wire.messages import Descriptor, Failure, Hello, Progress, Pulse
from simulation import surroundings
from simulation.clockwork import Broken
from simulation.engine import Engine
from simulation.surroundings import Peer

if TYPE_CHECKING:
    from simulation.handovers import Handover
    from simulation.trainers import Trainer
    from simulation.world import World

CLOCK_STEP_S = 1.0  # what the drivers' clock advances in one turn at most
SESSIONS = 64


class Daemon:
    """One life of a daemon. Its sessions and segments have numbers that no other life uses.

    before: the daemon that it takes over from, which lives.
    """

    def __init__(self, world: World, scheduler: Scheduler, before: Daemon | None = None) -> None:
        self.world = world
        self.core = scheduler
        self.alive = True
        self.stopped = False
        self.handover: Handover | None = None  # to its successor
        self.peers: set[Peer] = set()
        self.messages = surroundings.Messages()
        self.segments = surroundings.Segments(self)
        self.engine = Engine(self)
        self.loop = surroundings.Loop(self)
        self.control = surroundings.Control(self)
        world = self.world
        self.budget = SegmentBudget(self.segments, memory=world.ceiling, rooms=list)  # type: ignore[arg-type]
        self.registry = self._new_registry()
        self.admission = self._new_admission(before)
        self._skew = 0.0  # what its clock is behind the world's
        self.late = False  # the loop has not run since the last look
        self._stopped_at = 0.0
        self._backlog: list[Callable[[], object]] = []
        self._dispatcher = ActionDispatcher(scheduler, self._handlers(), self.loop, self._checked)
        self._dispatcher.begin()

    def _new_registry(self) -> SessionRegistry:
        world = self.world
        return SessionRegistry(
            self.control,  # type: ignore[arg-type] - these are what it needs of the real ones
            self.messages,  # type: ignore[arg-type]
            self.budget,
            self.engine,
            life=str(world.number()),
            step=self.tell,
            attached=lambda: None,
            emptied=lambda: None,
            log=lambda level, event, text, **_: world.write("{}: {}", level, text),
            draw=lambda size: world.number().to_bytes(size, "big"),
        )

    def _new_admission(self, before: Daemon | None) -> AdmissionControl:
        world = self.world
        admission = AdmissionControl(
            self.loop,  # type: ignore[arg-type]
            self.control,  # type: ignore[arg-type]
            self.budget,
            self.registry,
            config_path="",
            names=tuple(world.streams),
            wanted=self._wanted,
            progress=lambda: "starting",
            edited=self.engine.edited,
            outdated=None,
            most=SESSIONS,
            log=lambda level, event, text, **_: world.write("{}: {}", level, text),
        )
        self.budget.last_segment = world.number() << 16  # so that it differs from other lives'
        if before is not None:
            admission.share_memory(before.segments.live_bytes)
        admission.open(world.opened)
        return admission

    def _wanted(self, stream: str) -> None:
        """One whose data has changed: nothing has been put right."""
        error, text = self.admission.broken[stream]
        self.world.after(0.1, self.run, self.admission.not_opened, stream, from_name(error, text))

    def client(self, session: int) -> Trainer | None:
        """The trainer of a session that the scheduler knows of."""
        pending = self.registry.sessions.get(session)
        if pending is None or not pending.attached:
            return None
        assert isinstance(pending.peer, Peer)
        return pending.peer.trainer

    def sessions_of(self, owner: int) -> tuple[int, ...]:
        """The sessions whose batches lie in this memory."""
        memory = self.registry.memories.get(owner)
        return tuple(memory.sessions) if memory else ()

    @property
    def clock(self) -> float:
        return self.world.now - self._skew

    # being driven

    def run(self, call: Callable[..., object], *args: Any) -> None:
        """In a turn of the loop: not after its death, and later while it is stopped."""
        if self.stopped:
            self._backlog.append(lambda: self.run(call, *args))
        elif self.alive:
            call(*args)
            self.loop.end_turn()

    def tell(self, event: e.Event) -> None:
        self.run(self._step, event)

    def _step(self, event: e.Event) -> None:
        if isinstance(event, e.WorkerDied):
            del self.engine.processes[event.worker]
        self.world.write("  event {}", event)
        self._dispatcher.step(event)

    def _checked(self, event: e.Event, actions: list[a.Action]) -> None:
        self.core.invariants()
        for action in actions:
            self.world.write("    {}", action)

    def hear(self, progress: Progress) -> None:
        if progress.session in self.messages.admitted:
            trainer = self.client(progress.session)
            if trainer is not None and trainer.honest:
                self.run(self._given_back, progress)
            self.tell(e.ProgressReceived(progress.session, progress))

    def _given_back(self, progress: Progress) -> None:
        """What comes after a later message is not listened to."""
        inside = self.core.state.sessions.get(progress.session)
        if inside is not None and progress.seq > inside.seq:
            self.world.memory.given_back(progress.session, progress.released)

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
        self.late = True
        backlog, self._backlog = self._backlog, []
        for call in backlog:
            call()
        self.loop.end_turn()

    def jump(self) -> None:
        """The whole pod was paused: to it, a second has gone by in one turn."""
        self._skew -= CLOCK_STEP_S
        self.late = True

    def kill(self) -> None:
        """kill -9: the template and every worker go with it, a moment later."""
        self.world.write("daemon killed")
        self._end()

    def leave(self) -> None:
        """Its successor has taken over, and all of its trainers were sent there."""
        self.world.write("daemon leaves")
        if self.registry.sessions:
            raise Broken(f"sessions {list(self.registry.sessions)} have not been sent on")
        self._end()

    def _end(self) -> None:
        self.alive = False
        for process in self.engine.processes.values():
            self.world.after(self.world.seeder.uniform(0, 0.05), process.die, "SIGKILL", False)
        for peer in sorted(self.peers, key=lambda peer: peer.trainer.number):
            self.control.hang_up(peer)
        if self.handover is not None:
            self.handover.over()

    # clients

    def connected(self, peer: Peer, hello: Hello) -> None:
        self.peers.add(peer)
        self.run(self._hello, peer, hello)

    def _hello(self, peer: Peer, hello: Hello) -> None:
        if self.handover is not None and self.handover.leaving:
            self.control.drop(peer)
        else:
            self.admission.hello(peer, hello)  # type: ignore[arg-type]

    def left(self, peer: Peer) -> None:
        """The client's control socket is at its end."""
        self.peers.discard(peer)
        self.run(self._left, peer)

    def _left(self, peer: Peer) -> None:
        if not peer.ended:
            peer.ended = True
            self.gone(peer)

    def gone(self, peer: Peer) -> None:
        """A connection has ended, on either side."""
        self.admission.gone(peer)  # type: ignore[arg-type]

    # actions

    def _handlers(self) -> ActionHandlers:
        return ActionHandlers(
            engine=self.engine,
            send_message=self._send_message,
            grow=self.registry.grow,
            drop=self.registry.drop,
            quarantine=lambda action: self.world.quarantined(action.stream, action.sample),
            stream_broken=self._stream_broken,
            cannot_boot=self._cannot_boot,
            log=lambda level, event, text, **_: None,  # the diary has it with the actions
            free_bytes=self.world.free_bytes,
        )

    def _send_message(self, session: int, message: Descriptor | Pulse | Failure) -> None:
        trainer = self.client(session)
        if isinstance(message, Descriptor) and trainer is not None and trainer.honest:
            peer = self.registry.sessions[session].peer
            self.world.memory.told(message, peer)  # type: ignore[arg-type]
        if trainer:
            self.world.network.send(trainer.hear, message)

    def _stream_broken(self, action: a.StreamBroken) -> None:
        self.admission.stream_broken(action)
        self.world.stream_broken(action.stream, action.error, action.text)

    def _cannot_boot(self, text: str) -> None:
        raise Broken(f"the daemon says that it cannot start: {text}")

    # what is left

    def check_size(self) -> None:
        """What the scheduler keeps is bounded by its workers and slots, whatever has happened."""
        state = self.core.state
        owners = {session.owner for session in state.sessions.values()}
        slots = sum(
            len(table.state)
            for owner in (*owners, *state.leaving.values())
            for table in owner.slots.tables.values()
        )
        # what a member of a group wants next may have no slot
        wanted = sum(s.window.prefetch for s in state.sessions.values() if s.owner is not s)
        bound = 800 + 120 * len(state.pool.workers) + 150 * slots + 50 * wanted
        bound += 150 * len(state.sessions)
        size = count_of(self.core, set())
        if size > bound:
            raise Broken(f"the scheduler keeps {size} things for {slots} slots, over {bound}")

    def check_idle(self) -> None:
        """Everybody has left: nothing of theirs is kept."""
        state = self.core.state
        if (
            state.sessions
            or state.groups
            or state.leaving
            or state.jobs
            or self.core.next_look_s(self.clock) is not None
        ):
            raise Broken(
                f"left behind: sessions {list(state.sessions)}, groups {list(state.groups)}, "
                f"leaving {list(state.leaving)}, "
                f"jobs {list(state.jobs)}"
            )
        if (
            self.registry.sessions
            or self.registry.memories
            or self.segments.live_bytes
            or self.engine.mapped
        ):
            raise Broken(
                f"left behind: sessions {list(self.registry.sessions)}, "
                f"{self.segments.live_bytes} bytes, mapped {self.engine.mapped}"
            )

    def unsettled(self, session: int) -> str:
        """What is not as it must be once everything has been said; "" if all is.

        What the scheduler takes for announced or lent is what the client knows of, in the segments
        that it uses.
        """
        sessions, trainer = self.core.state.sessions, self.client(session)
        assert trainer is not None
        slots, owner = sessions[session].slots, sessions[session].owner.session
        unknown = [key for key in slots.announced if not trainer.expects(*key)]
        if unknown:
            return (
                f"slots {unknown} of session {session} are taken for announced or lent, and "
                f"trainer {trainer.number} knows nothing of them"
            )
        live = set(trainer.session.live) if trainer.session else set()
        mates = [sessions[each] for each in self.sessions_of(owner) if each in sessions]
        used = live | {number for mate in mates for number, _ in mate.slots.announced}
        # Mates that fail, or rave, need not give anything back. A client knows nothing of a batch
        # that is being made in an older segment: where its workers keep dying, that takes long.
        written = {
            number
            for number, table in slots.tables.items()
            if {FILLING, READY, ENDING} & {*table.state}
        }
        if not live <= set(slots.tables) == set(self.segments.of(owner)) <= used | written:
            held = self.segments.of(owner)
            return (
                f"session {session} has segments {list(slots.tables)}, in memory {held}, and "
                f"trainer {trainer.number} uses {live}, with its mates {used}"
            )
        return ""


def count_of(thing: Any, seen: set[int]) -> int:
    """How many objects hang on a thing of loaderd's core."""
    if (
        id(thing) in seen
        or isinstance(thing, (int, float, str, bytes, bool, type(None), type))
        or callable(thing)
    ):
        return 0
    seen.add(id(thing))
    if isinstance(thing, dict):
        return len(thing) + sum(count_of(v, seen) for v in thing.values())
    if isinstance(thing, (list, tuple, set, frozenset)) or type(thing).__name__ == "deque":
        return len(thing) + sum(count_of(v, seen) for v in thing)
    names = [name for cls in type(thing).__mro__ for name in getattr(cls, "__slots__", ())]
    names = list(getattr(thing, "__dict__", names))
    return len(names) + sum(count_of(getattr(thing, name, None), seen) for name in names)
