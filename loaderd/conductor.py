"""Between the scheduler and the world: events go in one by one, what comes out is done, and the Look is made when it is due."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from loaderd.core import actions
from loaderd.core.events import Event, WorkerReady
from loaderd.core.scheduler import Scheduler
from loaderd.drivers.logs import Quarantine
from loaderd.drivers.loop import Loop, Timer
from loaderd.drivers.sockets import Messages
from loaderd.reception import Reception


class Conductor:
    """Does the scheduler's actions, in order. first_worker: called once, when the first worker is up. cannot_boot(why): instead."""

    def __init__(
        self,
        loop: Loop,
        scheduler: Scheduler,
        pool: Any,
        reception: Reception,
        messages: Messages,
        quarantine: Quarantine,
        *,
        log: Callable[..., object],
        first_worker: Callable[[], object],
        cannot_boot: Callable[[str], object],
    ) -> None:
        self._loop = loop
        self.scheduler = scheduler
        self._pool = pool
        self._quarantine = quarantine
        self._log = log
        self._first_worker: Callable[[], object] | None = first_worker
        self._events: deque[Event] = deque()
        self._stepping = False
        self._look_timer: Timer | None = None
        self._schedule_s = 0.0
        self._do: dict[type[Any], Callable[[Any], object]] = {
            actions.Start: lambda a: pool.start(a.worker, a.delay_s),
            actions.Send: lambda a: pool.send(a.worker, a.job),
            actions.Dump: lambda a: pool.dump(a.worker),
            actions.Kill: lambda a: pool.kill(a.worker, a.why),
            actions.Retire: lambda a: pool.retire(a.worker),
            actions.Tell: lambda a: messages.send(a.session, a.message),
            actions.Grow: reception.grow,
            actions.Drop: reception.drop,
            actions.Quarantine: self._set_aside,
            actions.StreamBroken: reception.stream_broken,
            actions.CannotBoot: lambda a: cannot_boot(a.text),
            actions.Note: lambda a: log(a.level, a.text),
        }

    def begin(self) -> None:
        """Start the workers."""
        self._loop.before_sleep(self._arm_look)
        self._stepping = True
        for action in self.scheduler.begin(self._loop.now_s()):
            self._do[type(action)](action)
        self._stepping = False
        self._take_in()

    def step(self, event: Event) -> None:
        """Hand an event to the scheduler and do what it says. An event from within an action waits its turn."""
        self._events.append(event)
        if not self._stepping:
            self._take_in()

    @property
    def idle(self) -> bool:
        """Whether no worker has anything to do."""
        return self.scheduler.next_look_s(self._loop.now_s()) is None

    def picture(self) -> dict[str, Any]:
        """The scheduler's, and the seconds that it has spent so far: the part of the daemon's time that is no driver's."""
        return {**self.scheduler.picture(), "schedule_s": round(self._schedule_s, 6)}

    def _take_in(self) -> None:
        self._stepping = True
        try:
            while self._events:
                event = self._events.popleft()
                begin_s = time.perf_counter()
                made = self.scheduler.step(event, self._loop.now_s())
                self._schedule_s += time.perf_counter() - begin_s
                for action in made:
                    self._do[type(action)](action)
                if self._first_worker is not None and type(event) is WorkerReady:
                    first_worker, self._first_worker = self._first_worker, None
                    first_worker()
        finally:
            self._stepping = False

    def _arm_look(self) -> bool:
        """Once a turn, before the sleep. A timer that is no longer needed is left to run out: with short jobs that is each of them."""
        at_s = self.scheduler.next_look_s(self._loop.now_s())
        if at_s is not None and self._look_timer is None:
            self._look_timer = self._loop.later(at_s - self._loop.now_s(), self._look)
        return False

    def _look(self) -> None:
        self._look_timer = None
        at_s = self.scheduler.next_look_s(self._loop.now_s())
        if at_s is not None and at_s <= self._loop.now_s():
            self.step(self._pool.look())

    def _set_aside(self, action: actions.Quarantine) -> None:
        sample = action.sample
        facts = {name: getattr(sample, name) for name in sample.__slots__}
        self._quarantine.add({"stream": action.stream, "epoch": action.epoch, **facts})
        self._log("warning", f"stream {action.stream!r}, epoch {action.epoch}: {sample.line()}")
        trouble = self._quarantine.trouble()
        if trouble:
            self._log("error", trouble)
