"""A loop whose time only the test moves."""

from __future__ import annotations

from collections.abc import Callable


class FakeTimer:
    """at_s: when it is due; infinity once it is cancelled."""

    def __init__(self, at_s: float, call: Callable[[], object]) -> None:
        self.at_s = at_s
        self.call = call

    def cancel(self) -> None:
        self.at_s = float("inf")


class FakeLoop:
    """Timers and hooks. Each timer is a turn of its own, at whose end the hooks are called."""

    def __init__(self) -> None:
        self._now_s = 100.0
        self._timers: list[FakeTimer] = []
        self._hooks: list[Callable[[], bool]] = []

    def now_s(self) -> float:
        return self._now_s

    def later(self, delay_s: float, call: Callable[[], object]) -> FakeTimer:
        self._timers.append(FakeTimer(self._now_s + max(0.0, delay_s), call))
        return self._timers[-1]

    def before_sleep(self, hook: Callable[[], bool]) -> None:
        self._hooks.append(hook)

    def end_turn(self) -> None:
        for hook in self._hooks:
            hook()

    @property
    def waiting(self) -> int:
        """Timers that are set."""
        return sum(timer.at_s < float("inf") for timer in self._timers)

    def advance(self, seconds: float) -> None:
        """So much time goes by; what is due in it happens."""
        self.run(self._now_s + seconds)

    def run(self, until_s: float) -> None:
        """The clock goes to until_s, which stands at 100 at the begin; what is due until then
        happens.
        """
        while (
            self._timers
            and (first := min(self._timers, key=lambda timer: timer.at_s)).at_s <= until_s
        ):
            self._timers.remove(first)
            self._now_s = first.at_s
            first.call()
            self.end_turn()
        self._now_s = until_s
