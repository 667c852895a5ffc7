"""The next batch of a pass, or the error that is raised in its place."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from loaderd_client.batch import DictBatch, TupleBatch
from loaderd_client.current_session import CurrentSession
from loaderd_client.devices.placement import Arrival
from loaderd_client.epochs import Pass
from loaderd_client.error_budget import ErrorBudget
from loaderd_client.errors import sample_error
from loaderd_client.log import warn
from loaderd_client.options import LoaderOptions
from loaderd_client.session import Received, Session
from loaderd_client.stats import Stats
from loaderd_wire.errors import LoaderdError, StreamFailedError


class Ready(NamedTuple):
    """What one step of a pass gives: a batch, an error, or neither if it has lost all its rows.

    Attributes:
        running: The pass.
        taken: Number of steps of the pass before it.
        batch: The batch, or None.
        error: What is raised instead, or None.
        tally: Bad samples up to and with this batch.
        arrival: The batch is on its way to a device; or None.
    """

    running: Pass
    taken: int
    batch: DictBatch[Any] | TupleBatch[Any] | None
    error: LoaderdError | None
    tally: ErrorBudget
    arrival: Arrival | None


class BatchMaker:
    """Takes batches from the current session, and judges their bad samples.

    Attributes:
        ready: The next batches, made and not handed out: those that are sent to a device ahead of
            the training, and one that a signal has come between.
        fatal: Why the run is over: too many bad samples; "" while it is not.
    """

    def __init__(self, arguments: LoaderOptions, current: CurrentSession, stats: Stats) -> None:
        """Make nothing yet.

        Args:
            arguments: What the Loader was asked for.
            current: Where the batches come from.
            stats: Where they are counted.
        """
        self.ready: deque[Ready] = deque()
        self.fatal = ""
        self._arguments = arguments
        self._current = current
        self._stats = stats
        self._warned = False  # of copies

    def make(self, running: Pass, tally: ErrorBudget, *, wait: bool = True) -> bool:
        """Make the batch of a pass behind those in `ready`, or what is raised in its place.

        Args:
            running: The pass.
            tally: Bad samples of all batches that were handed out.
            wait: For a batch that is not here, and for a daemon.

        Returns:
            False if there was none to be had without waiting. Else it is in `ready`.

        Raises:
            LoaderdError: As CurrentSession.wait_for_batch.
        """
        session, ready = self._current.session, self.ready
        taken, tally = running.taken + len(ready), ready[-1].tally if ready else tally
        received = session.next_batch(running.origin.step + taken) if session is not None else None
        waited = session is None or received is None
        if session is None or received is None:
            if not wait:
                return False
            session, received = self._current.wait_for_batch(running.cursor_after(taken))
        tally = tally.plus(running.rows_after(taken), received.bad)
        error = self._error(session, received, running, taken, tally)
        batch = None if error is not None else received.batch
        # from here to the end of `progress` an exception costs the session, and `ready` is behind
        # it
        session.release()
        ready.append(Ready(running, taken, batch, error, tally, received.arrival))
        session.progress(waited)
        if batch is not None:
            self._stats.bytes += received.bytes
            if received.copied:
                self._copied(session)
        elif error is None:
            self._stats.passed += 1
        return True

    def look_ahead(self, running: Pass, tally: ErrorBudget) -> None:
        """Make batches that are here already, as many as are to be on the device ahead.

        What goes wrong here goes wrong again when the batch is asked for, and is raised then.

        Args:
            running: The pass.
            tally: Bad samples of all batches that were handed out.
        """
        ahead = min(self._current.placement.ahead, running.steps - running.taken)
        try:
            while len(self.ready) < ahead and self.make(running, tally, wait=False):
                pass
        except LoaderdError:
            session = self._current.session
            if session is not None and not session.sound:
                self._current.drop()

    def _error(
        self, session: Session, received: Received, running: Pass, taken: int, tally: ErrorBudget
    ) -> LoaderdError | None:
        """What is raised in the place of a batch; StreamFailedError if the run is over."""
        if tally.bad:
            text = tally.verdict(
                session.welcome.max_errors,
                session.shape.world_size,
                epoch_ends=taken + 1 == running.steps,
            )
            if text:
                return StreamFailedError(f"{self._arguments.label}: {text}")
        if received.failed:
            cursor = running.cursor_after(taken)
            return sample_error(received.bad, cursor, self._arguments.label)
        return None

    def _copied(self, session: Session) -> None:
        """Count a copy, and warn of the first one."""
        self._stats.copied += 1
        if not self._warned:
            self._warned = True
            warn(
                "%d batches are held at once, so that further ones are copied, which is slower; "
                "drop batches that are no longer needed, or "
                "give prefetch=%d",
                session.welcome.segment.slots - 1,
                self._arguments.prefetch * 2,
            )
