"""Between the scheduler and the world.

The dispatcher hands events to the scheduler one by one, has its actions done, and asks for a look
at the workers when it is due.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from loaderd.core import actions
from loaderd.core.events import Event, PoolReview
from loaderd.core.scheduler import Scheduler
from loaderd.core.snapshot import SchedulerSnapshot
from loaderd.core.verdict import Verdict
from loaderd.engine.base import Engine
from loaderd.system.logs import WriteLog
from loaderd_wire.messages import Descriptor, Failure, Pulse, Segment


class Timers(Protocol):
    """The part of the loop that is needed here."""

    def now_s(self) -> float:
        """Seconds of a clock that never goes back, from no date."""
        ...

    def later(self, delay_s: float, callback: Callable[[], object], /) -> object:
        """Call back once, in so many seconds."""
        ...

    def before_sleep(self, hook: Callable[[], bool], /) -> None:
        """Call the hook before each wait of the loop, which does not wait if it returns True."""
        ...


@dataclass(frozen=True, slots=True)
class ActionHandlers:
    """Who does what. Each may hand in new events, which wait until the actions at hand are done.

    Attributes:
        engine: Does StartWorker, SendJob, DumpStack, KillWorker and RetireWorker, and looks at its
            workers.
        send_message: (session, message), for its outbox.
        grow: Does GrowSegment.
        drop: Does FreeSegment.
        quarantine: Does Quarantine.
        stream_broken: Does StreamBroken.
        cannot_boot: Why no worker could be started, with the traceback.
        log: Its log.
        free_bytes: Returns the memory that more workers may take together.
    """

    engine: Engine
    send_message: Callable[[int, Descriptor | Pulse | Failure], object]
    grow: Callable[[actions.GrowSegment], object]
    drop: Callable[[actions.FreeSegment], object]
    quarantine: Callable[[actions.Quarantine], object]
    stream_broken: Callable[[actions.StreamBroken], object]
    cannot_boot: Callable[[str], object]
    log: WriteLog
    free_bytes: Callable[[], int] = int


class ActionDispatcher:
    """The only driver of a scheduler.

    Nothing is done before `begin` except that streams may be opened.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        handlers: ActionHandlers,
        loop: Timers,
        on_event: Callable[[Event, list[actions.Action]], object] | None = None,
    ) -> None:
        """Do nothing yet.

        Args:
            scheduler: What decides.
            handlers: Who does what.
            loop: Calls for the looks at the workers.
            on_event: Called for each event with the scheduler's answer, before that is done.
        """
        self._scheduler = scheduler
        self._engine = engine = handlers.engine
        self._loop = loop
        self.on_event = on_event
        self._events: deque[Event] = deque()
        self._busy = False
        self._free_bytes = handlers.free_bytes
        self._look_timer: object | None = None
        self._review_timer: object | None = None
        # spent in the scheduler: the part of the daemon's time that is no driver's
        self.schedule_s = 0.0
        send_message, cannot_boot, log = handlers.send_message, handlers.cannot_boot, handlers.log
        self._do: dict[type[Any], Callable[[Any], object]] = {
            actions.StartWorker: lambda a: engine.start(a.worker, a.delay_s, a.remote),
            actions.SendJob: lambda a: engine.send(a.worker, a.job),
            actions.DumpStack: lambda a: engine.dump(a.worker),
            actions.KillWorker: lambda a: engine.kill(a.worker, a.why),
            actions.RetireWorker: lambda a: engine.retire(a.worker),
            actions.SendMessage: lambda a: send_message(a.session, a.message),
            actions.GrowSegment: handlers.grow,
            actions.FreeSegment: handlers.drop,
            actions.Quarantine: handlers.quarantine,
            actions.StreamBroken: handlers.stream_broken,
            actions.CannotBoot: lambda a: cannot_boot(a.text),
            actions.LogLine: lambda a: log(a.level, a.event, a.text, **a.facts),
        }

    def begin(self) -> None:
        """Once: start the workers."""
        self._loop.before_sleep(self._arm)
        self._busy = True
        for action in self._scheduler.begin(self._loop.now_s()):
            self._do[type(action)](action)
        self._busy = False
        self._take_in()

    def step(self, event: Event) -> None:
        """Hand an event to the scheduler and do what it says.

        An event from within an action waits its turn.
        """
        self._events.append(event)
        if not self._busy:
            self._take_in()

    @property
    def idle(self) -> bool:
        """Whether no worker has anything to do."""
        return self._scheduler.next_look_s(self._loop.now_s()) is None

    def snapshot(self) -> SchedulerSnapshot:
        """The scheduler's state at the latest event."""
        return self._scheduler.snapshot()

    def watch(self, on_event: Callable[[Event, list[actions.Action]], object] | None) -> None:
        """Show each event from now on, with the scheduler's answer, before that is done.

        Args:
            on_event: What is called; None: nothing.
        """
        self.on_event = on_event

    def latest_batches(self) -> dict[int, tuple[Descriptor, Segment]]:
        """The last batch that each session was told of and still has, and where it lies."""
        return self._scheduler.latest_batches()

    def verdicts(self) -> list[Verdict]:
        """Who waits for whom, of each session, now."""
        return self._scheduler.verdicts(self._loop.now_s())

    def _take_in(self) -> None:
        self._busy = True
        try:
            while self._events:
                event = self._events.popleft()
                begin_s = time.perf_counter()
                made = self._scheduler.step(event, self._loop.now_s())
                self.schedule_s += time.perf_counter() - begin_s
                if self.on_event is not None:
                    self.on_event(event, made)
                for action in made:
                    self._do[type(action)](action)
        finally:
            self._busy = False

    def _arm(self) -> bool:
        """Once a turn, before the sleep.

        A timer that is no longer needed is left to run out: with short jobs that is each of them.
        """
        at_s = self._scheduler.next_look_s(self._loop.now_s())
        if at_s is not None and self._look_timer is None:
            self._look_timer = self._loop.later(at_s - self._loop.now_s(), self._look)
        at_s = self._scheduler.next_review_s()
        if at_s is not None and self._review_timer is None:
            self._review_timer = self._loop.later(at_s - self._loop.now_s(), self._review)
        return False

    def _review(self) -> None:
        self._review_timer = None
        at_s = self._scheduler.next_review_s()
        if at_s is not None and at_s <= self._loop.now_s():
            self.step(PoolReview(self._free_bytes()))

    def _look(self) -> None:
        self._look_timer = None
        at_s = self._scheduler.next_look_s(self._loop.now_s())
        if at_s is not None and at_s <= self._loop.now_s():
            self.step(self._engine.look())
