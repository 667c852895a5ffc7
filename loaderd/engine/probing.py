"""Opening a stream: a worker of its own finds out what it is.

That worker is judged by the same deadlines as any other.
"""

from __future__ import annotations

from collections.abc import Callable

from loaderd.core.deadlines import DeadlineLimits
from loaderd.core.fault_ledger import OUTSIDE_DEATHS
from loaderd.core.jobs import Stage, importing, same, unstamp
from loaderd.engine.messages import OpenError, Probe, StreamInfo
from loaderd.engine.worker_exit import WorkerExit
from loaderd.engine.worker_process import WorkerProcess
from loaderd.system import processes
from loaderd.system.loop import Loop, Timer
from loaderd_wire.errors import ProtocolError

# what may take as long as opening: here they are that
LONG = (Stage.OPEN, Stage.COLLATE, Stage.IDLE)


class Prober:
    """Listener of the workers that open one stream, one at a time."""

    def __init__(
        self,
        loop: Loop,
        stream: str,
        timeout_s: float,
        done: Callable[[StreamInfo | OpenError], None],
        again: Callable[[str], None],
        *,
        compare: bool = False,
    ) -> None:
        """Wait for the first worker.

        Args:
            loop: Calls whatever is here.
            stream: Name of the stream.
            timeout_s: Seconds that a sample may take in one stage.
            done: Called once, with what was found or why nothing was.
            again: Called with a cause: start another worker for this prober. The last one was
                killed from outside, which says nothing about the stream.
            compare: The answer is to be compared with that of other hosts.
        """
        self._compare = compare
        self._loop = loop
        self._stream = stream
        self._limits = DeadlineLimits(timeout_s)
        self._every_s = min(1.0, timeout_s / 4)
        self._done = done
        self._again = again
        self._killed = 0
        self._answer: StreamInfo | OpenError | None = None
        self._word = -1
        self._key = ""
        # as a worker's in the scheduler's pool
        self._looked_s = self._quiet_s = self._import_s = 0.0
        self._stopped = False
        self._hung = ""
        self._timer: Timer | None = None

    def worker_ready(self, child: WorkerProcess) -> None:
        """Have the stream opened, and look from now on whether that hangs."""
        child.send(Probe(self._stream, self._compare))
        self._looked_s = self._loop.now_s()
        self._watch(child)

    def worker_does(self, child: WorkerProcess, doing: str) -> None:
        """The engine tells of it for all workers."""

    def doing(self, now_s: float) -> list[str]:
        """What its worker has been doing since it is ready, and for how long, in a line at most."""
        if self._timer is None:
            return []
        who = f"the worker that opens stream {self._stream!r}"
        if self._stopped:
            return [f"{who} is stopped by a signal (T); continue it with SIGCONT"]
        _, _, stage = unstamp(self._word)
        if stage is Stage.OPEN and self._key:
            return [f"stream {self._stream!r}: {self._key}"]
        what = (
            "opening it"
            if stage in (Stage.OPEN, Stage.IDLE)
            else "collating its first samples"
            if stage is Stage.COLLATE
            else ""
        )
        what = what or (
            "making its first samples "
            f"({stage.name.lower()}{f' of {self._key!r}' if self._key else ''})"
        )
        what += ", importing modules," if importing(self._word) else ""
        return [f"{who} has been {what} for {self._quiet_s + now_s - self._looked_s:.0f} s"]

    def worker_reported(self, child: WorkerProcess, message: object) -> None:
        """Take the first answer and let the worker leave; ProtocolError for any other message."""
        if (
            not isinstance(message, (StreamInfo, OpenError))
            or message.stream != self._stream
            or self._answer is not None
        ):
            raise ProtocolError(f"{message!r:.60} in answer to a probe of stream {self._stream!r}")
        self._answer = message
        self._stop()
        child.leave()

    def worker_died(self, child: WorkerProcess, death: WorkerExit) -> None:
        """Tell what was found, or why nothing; a death from outside asks for another worker."""
        self._stop()
        outside = not (self._answer or self._hung or death.own or death.boot)
        self._killed += outside
        if outside and self._killed < OUTSIDE_DEATHS:
            self._word = -1
            self._again(death.cause)
        else:
            self._done(self._answer or self._fault(death))

    def _fault(self, death: WorkerExit) -> OpenError:
        if death.boot:
            text, _, traceback = death.boot.partition("\n")
            return OpenError(self._stream, "user code", text, traceback)
        _, _, stage = unstamp(death.word)
        where = (
            f"while {death.key}"
            if death.key and stage is Stage.OPEN
            else f"while it made sample {death.key!r} ({stage.name.lower()})"
            if death.key
            else f"in stage {stage.name.lower()}"
        )
        if self._hung:
            return OpenError(self._stream, "user code", self._hung, death.stack)
        return OpenError(
            self._stream,
            "data",
            f"the worker that opened it died {where}: {death.cause}",
            death.stack,
        )

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self, child: WorkerProcess) -> None:
        now_s = self._loop.now_s()
        word, key = child.look()
        stage = unstamp(word)[2]
        self._stopped = processes.stopped(child.pid)
        passed_s = 0.0 if self._stopped else now_s - self._looked_s
        if not same(word, self._word):
            self._quiet_s = self._import_s = passed_s = 0.0
        self._quiet_s += passed_s
        self._import_s += passed_s if importing(word) or importing(self._word) else 0.0
        self._word, self._key, self._looked_s = word, key, now_s
        late = self._limits.passed(
            Stage.OPEN if stage in LONG else stage, self._quiet_s, self._import_s
        )
        if late:
            what = (
                f"{key} hangs"
                if key and stage is Stage.OPEN
                else f"sample {key!r} hangs in stage {stage.name.lower()}"
                if key
                else f"opening it hangs in stage {stage.name.lower()}"
            )
            self._hung = f"{what}: {late}"
            child.dump()
            child.kill(self._hung)
            self._timer = None
            return
        self._timer = self._loop.later(self._every_s, lambda: self._watch(child))
