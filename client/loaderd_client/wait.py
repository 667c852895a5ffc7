"""One wait for the daemon: when to ping, when to warn, when to give up. The clock is handed in."""

from __future__ import annotations

from dataclasses import dataclass

PING_S = 1.0
LEAST_PAUSE_S = 0.001
# without any answer for so long, with pings each second, the daemon "does not answer"
SILENT_S = 2.5
# before the end of a wait: time to ask for stacks, to take them and to hear of them
CLOSING_S = 3.0
# a wait of which the daemon is not told: what there is to say goes with the batch's own message
SHORT_S = 0.02
# a longer turn means that this process itself did not run: that time counts towards nothing
TURN_S = 2.0


@dataclass(frozen=True, slots=True)
class WaitLimits:
    """How long to wait, in seconds, all above 0.

    Attributes:
        timeout_s: After this an error is raised.
        reconnect_s: So long a lost daemon may be away.
        stall_warning_s: After this a line is logged.
    """

    timeout_s: float
    reconnect_s: float
    stall_warning_s: float


class Wait:
    """Seconds in which this process could have been told something.

    A turn in which it was stopped counts as TURN_S.

    Attributes:
        waited_s: All seconds so far.
    """

    def __init__(self, now_s: float, limits: WaitLimits) -> None:
        """Begin to wait.

        Args:
            now_s: Time in seconds of a monotonic clock.
            limits: When to warn and when to end.
        """
        self._limits = limits
        # So that the first line, and an early end, have an answer to tell.
        self._ping_s = min(PING_S, limits.stall_warning_s / 2, limits.timeout_s / 6)
        self._last_s = now_s
        self._warn_at_s = limits.stall_warning_s
        self._pinged_s = 0.0
        self._heard_s = 0.0
        self.waited_s = 0.0

    def turn(self, now_s: float) -> None:
        """Count the time since the last turn."""
        self.waited_s += min(max(now_s - self._last_s, 0.0), TURN_S)
        self._last_s = now_s

    def resume(self, now_s: float) -> None:
        """Count nothing since the last turn: there was something better to do than to wait.

        The last turn must be of just before that.
        """
        self._last_s = now_s

    def heard(self) -> None:
        """The daemon has said something."""
        self._heard_s = self.waited_s

    @property
    def silent(self) -> bool:
        """The daemon was pinged and has not answered for a while."""
        return self._pinged_s > self._heard_s and self.silence_s >= min(
            SILENT_S, self._limits.timeout_s / 2
        )

    @property
    def silence_s(self) -> float:
        """Seconds since the daemon has said something."""
        return self.waited_s - self._heard_s

    def ping_due(self) -> bool:
        """True once a second, first after one second.

        More often where the first line is due earlier than that.
        """
        if self.waited_s - self._pinged_s < self._ping_s:
            return False
        self._pinged_s = self.waited_s
        return True

    def warning_due(self) -> bool:
        """True after stall_warning_s, and then each time that the wait has doubled.

        So the wait of a night is a screen of lines, and does not fill a disk.
        """
        if self.waited_s < self._warn_at_s:
            return False
        self._warn_at_s = self.waited_s * 2
        return True

    def over(self, limit_s: float) -> bool:
        """True after `limit_s` seconds."""
        return self.waited_s >= limit_s

    @property
    def closing(self) -> bool:
        """It is about to end in an error, which shall have the whole story."""
        return self.waited_s >= self._limits.timeout_s - min(CLOSING_S, self._limits.timeout_s / 2)

    def pause_s(self, limit_s: float) -> float:
        """How long to sleep at most before the next look."""
        ping_s = max(self._pinged_s + self._ping_s - self.waited_s, LEAST_PAUSE_S)
        return min(ping_s, self.unpinged_pause_s(limit_s))

    def unpinged_pause_s(self, limit_s: float) -> float:
        """As `pause_s`, where nobody is pinged: a ping that stays due leaves no time to sleep."""
        due = min(self._warn_at_s, limit_s)
        return min(max(due - self.waited_s, LEAST_PAUSE_S), PING_S)


@dataclass(frozen=True, slots=True)
class WaitFlags:
    """What the daemon is asked for by a Progress that is sent during a wait.

    Attributes:
        ping: It shall answer, and announce again what it has announced.
        stacks: The wait is about to end in an error: the workers' stacks are wanted.
    """

    ping: bool
    stacks: bool


class BatchWait(Wait):
    """A wait for the next batch: when the daemon is told of it, and what it is asked for.

    The simulation's clients wait by this class too.
    """

    def __init__(self, now_s: float, limits: WaitLimits, *, told: bool) -> None:
        """Begin to wait.

        Args:
            now_s: Time in seconds of a monotonic clock.
            limits: When to warn and when to end.
            told: The daemon has had a message of this session. If it has not, the first one is due
                at once.
        """
        super().__init__(now_s, limits)
        self._told_after_s = SHORT_S if told else 0.0
        self._told = False

    def message_due(self, dirty: bool) -> WaitFlags | None:
        """What a message that is due now asks for; None if none is due. It counts as sent.

        Args:
            dirty: The daemon does not know all that there is to say.
        """
        if self.ping_due():
            self._told = True
            return WaitFlags(True, self.closing)
        if dirty if self._told else self.waited_s >= self._told_after_s:
            self._told = True
            return WaitFlags(False, False)
        return None

    def pause_s(self, limit_s: float) -> float:
        """Seconds to sleep at most before the next look."""
        return super().pause_s(limit_s) if self._told else SHORT_S
