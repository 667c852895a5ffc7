"""The one loop: wait for file descriptors, timers and signals, and call whoever is concerned.

Single-threaded.

A turn: hooks, sleep, clock tick, ready descriptors, due timers, what was put off with `soon`.
Whatever a callback raises leaves
`run`: the caller of `run` is the top-level handler that reports it.
"""

from __future__ import annotations

import heapq
import itertools
import os
import select
import signal
import socket
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType

from loaderd.system.clock import Clock

Callback = Callable[[], object]

SLOW_TURN_S = 0.010
SLOW_EVERY_S = 10.0
MAX_READY = 256  # descriptors handled in one turn; the others are still ready in the next


class Timer:
    """Handle of `Loop.later`. `cancel` is idempotent, also after the call was made."""

    __slots__ = ("_loop", "at_s", "callback")

    def __init__(self, loop: Loop, at_s: float, callback: Callback) -> None:
        self._loop = loop
        self.at_s = at_s
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        """Call nobody. Idempotent, also after the call was made."""
        if self.callback is not None:
            self.callback = None
            self._loop._forget_timer()


class Loop:
    """Poll loop.

    Use as a context manager, or `close` it: it owns an epoll descriptor and, with signals, a socket
    pair.

    Attributes:
        on_slow: Called as (seconds, text) about turns over SLOW_TURN_S, with the slowest callback's
            name, at most once in SLOW_EVERY_S.
        turns: Number of turns so far.
    """

    def __init__(
        self, *, clock: Clock | None = None, on_slow: Callable[[float, str], object] | None = None
    ) -> None:
        self.clock = clock or Clock()
        self.on_slow = on_slow
        self.turns = 0
        self._epoll = select.epoll()
        self._watched: dict[int, tuple[Callback]] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._serial = itertools.count()
        self._cancelled = 0
        self._soon: deque[Callback] = deque()
        self._hooks: list[Callable[[], bool]] = []
        self._running = False
        self._signals: dict[int, Callback] = {}
        self._old_handlers: dict[int, object] = {}
        self._old_wakeup = -1
        self._signal_pair: tuple[socket.socket, socket.socket] | None = None
        self._slow_next_s = 0.0
        self._slow_unsaid = 0
        self._owner = os.getpid()

    # -- what to wait for

    def now_s(self) -> float:
        """Seconds on the loop's clock (see Clock).

        Constant within a turn; advances at most 1 s a turn.
        """
        return self.clock.now_s

    @property
    def lost_s(self) -> float:
        """Seconds, counted up, in which this process did not run although it should have."""
        return self.clock.lost_s

    def watch(self, fd: int, callback: Callback, *, read: bool = True, write: bool = False) -> None:
        """Call `callback` whenever fd is readable, hung up or in error.

        Level-triggered. A second call for the same fd replaces the first. The callback must bear
        being called for nothing. `unwatch` before fd is closed.

        Args:
            fd: The descriptor.
            callback: What to call.
            read: False: not when it is only readable.
            write: Also whenever it is writable.

        Raises:
            PermissionError: A regular file, which is always ready.
        """
        mask = (select.EPOLLIN if read else 0) | (select.EPOLLOUT if write else 0)
        if fd in self._watched:
            self._epoll.modify(fd, mask)
        else:
            self._epoll.register(fd, mask)
        self._watched[fd] = (callback,)

    def unwatch(self, fd: int) -> None:
        """Nothing is called for fd from now on, not even later in this turn. Idempotent."""
        if self._watched.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def later(self, delay_s: float, callback: Callback) -> Timer:
        """Call `callback` once, in a later turn, delay_s from now on the loop's clock or later."""
        timer = Timer(self, self.clock.now_s + max(0.0, delay_s), callback)
        heapq.heappush(self._timers, (timer.at_s, next(self._serial), timer))
        return timer

    def soon(self, callback: Callback) -> None:
        """Call `callback` once: at the end of this turn.

        One that another `soon` puts off is called in the next turn.
        """
        self._soon.append(callback)

    def before_sleep(self, hook: Callable[[], bool]) -> None:
        """Call `hook` at the begin of each turn, before the sleep.

        If any hook returns True (it did something, or has more to do) the turn does not sleep. For
        what an edge-triggered descriptor may have left behind.
        """
        self._hooks.append(hook)

    def on_signal(self, number: int, callback: Callback) -> None:
        """Call `callback` from the loop when the signal arrives.

        Main thread only; `close` restores the old handlers.
        """
        if self._signal_pair is None:
            ours, kernels = socket.socketpair()
            ours.setblocking(False)
            kernels.setblocking(False)
            self._signal_pair = ours, kernels
            self._old_wakeup = signal.set_wakeup_fd(kernels.fileno(), warn_on_full_buffer=False)
            self.watch(ours.fileno(), self._read_signals)
        self._signals[number] = callback
        old = signal.signal(number, _only_wake)
        self._old_handlers.setdefault(number, old)

    # -- running

    def run(self) -> None:
        """Turn until `stop`. Sleeps as long as nothing is to do: without timers for ever."""
        self._running = True
        while self._running:
            self.turn()

    def stop(self) -> None:
        """`run` returns at the end of this turn."""
        self._running = False

    def turn(self, max_sleep_s: float | None = None) -> None:
        """One turn, sleeping no longer than max_sleep_s (None: as long as nothing is to do)."""
        monotonic_s = self.clock._monotonic_s
        begin_s = last_s = monotonic_s()
        slowest_s, slowest = 0.0, None
        busy = False
        for hook in self._hooks:
            if hook():
                busy = True
            at_s = monotonic_s()
            if at_s - last_s > slowest_s:
                slowest_s, slowest = at_s - last_s, hook
            last_s = at_s
        spent_s = last_s - begin_s

        wait_s = 0.0 if busy or self._soon else self._sleep_s(max_sleep_s)
        ready = self._epoll.poll(-1 if wait_s is None else wait_s, MAX_READY)
        # Without any timer there is no deadline that a long sleep could wrong.
        now_s = self.clock.tick(float("inf") if wait_s is None else wait_s)
        self.turns += 1

        begin_s = last_s = monotonic_s()
        entries = [(fd, self._watched.get(fd)) for fd, _ in ready]
        for callback in self._calls(entries, now_s):
            callback()
            at_s = monotonic_s()
            if at_s - last_s > slowest_s:
                slowest_s, slowest = at_s - last_s, callback
            last_s = at_s
        spent_s += last_s - begin_s
        if spent_s > SLOW_TURN_S and slowest is not None:
            self._report(last_s, spent_s, slowest_s, slowest)

    def close(self) -> None:
        """Give back the descriptors and the signal handlers.

        Idempotent. In a forked child only the descriptors.
        """
        if self._signal_pair is not None:
            if self._owner == os.getpid():
                for number, old in self._old_handlers.items():
                    signal.signal(number, old)  # type: ignore[arg-type]  # what signal.signal itself returned
                signal.set_wakeup_fd(self._old_wakeup)
            for end in self._signal_pair:
                end.close()
            self._signal_pair = None
        self._epoll.close()
        self._watched.clear()
        self._timers.clear()
        self._soon.clear()
        self._hooks.clear()

    def __enter__(self) -> Loop:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- inside

    def _calls(
        self, entries: list[tuple[int, tuple[Callback] | None]], now_s: float
    ) -> Iterator[Callback]:
        """Whom this turn concerns: ready descriptors, due timers, what was put off."""
        # The fd may have been unwatched, or even closed and handed out anew, by a callback earlier
        # in this turn.
        for fd, entry in entries:
            if entry is not None and self._watched.get(fd) is entry:
                yield entry[0]
        if self._timers and self._timers[0][0] <= now_s:
            yield from self._due(now_s)
        for _ in range(len(self._soon)):
            yield self._soon.popleft()

    def _due(self, now_s: float) -> Iterator[Callback]:
        # Whatever is set in this turn waits for the next, or a timer that sets itself anew without
        # delay would never let go.
        newest = next(self._serial)
        while self._timers and self._timers[0][0] <= now_s and self._timers[0][1] < newest:
            timer = heapq.heappop(self._timers)[2]
            callback, timer.callback = timer.callback, None
            if callback is None:
                self._cancelled -= 1
            else:
                yield callback

    def _sleep_s(self, max_sleep_s: float | None) -> float | None:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
            self._cancelled -= 1
        if not self._timers:
            return max_sleep_s
        # epoll rounds up to whole milliseconds, so a timer is never met too early.
        wait_s = max(0.0, self._timers[0][0] - self.clock.now_s)
        return wait_s if max_sleep_s is None else min(wait_s, max_sleep_s)

    def _forget_timer(self) -> None:
        # Cancelled timers stay in the heap until they come up; when they are the most of it, it is
        # made anew.
        self._cancelled += 1
        if self._cancelled > 64 and self._cancelled * 2 > len(self._timers):
            self._timers = [entry for entry in self._timers if entry[2].callback is not None]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def _report(
        self, now_s: float, spent_s: float, slowest_s: float, slowest: Callable[[], object]
    ) -> None:
        # now_s is real time: on the loop's clock ten slow turns of a minute each are ten seconds
        if self.on_slow is None:
            return
        if now_s < self._slow_next_s:
            self._slow_unsaid += 1
            return
        more = (
            f"; {self._slow_unsaid} more slow turns since the last such line"
            if self._slow_unsaid
            else ""
        )
        self._slow_next_s = now_s + SLOW_EVERY_S
        self._slow_unsaid = 0
        self.on_slow(
            spent_s,
            f"slow turn of the event loop: {spent_s * 1e3:.0f} ms, of which {slowest_s * 1e3:.0f} "
            f"ms in {name_of(slowest)}{more}",
        )

    def _read_signals(self) -> None:
        if self._signal_pair is None:
            return
        try:
            numbers = self._signal_pair[0].recv(256)
        except BlockingIOError:
            return
        for number in numbers:
            callback = self._signals.get(number)
            if callback is not None:
                callback()


def name_of(callback: Callable[..., object]) -> str:
    """module.qualname of a callback, through functools.partial."""
    callback = getattr(callback, "func", callback)
    module = getattr(callback, "__module__", None) or "?"
    return f"{module}.{getattr(callback, '__qualname__', type(callback).__name__)}"


def _only_wake(number: int, frame: FrameType | None) -> None:
    """The byte on the wakeup descriptor counts; without a handler it is not written."""
