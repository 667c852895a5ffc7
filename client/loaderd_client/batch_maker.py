"""The next batch of a pass, or the error that is raised in its place."""

from __future__ import annotations

from typing import Any, NamedTuple

from loaderd_client.batch import DictBatch, TupleBatch
from loaderd_client.current_session import CurrentSession
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
    """

    running: Pass
    taken: int
    batch: DictBatch[Any] | TupleBatch[Any] | None
    error: LoaderdError | None
    tally: ErrorBudget


class BatchMaker:
    """Takes batches from the current session, and judges their bad samples.

    Attributes:
        ready: The next batch, made and not handed out, since a signal came between; or None.
        fatal: Why the run is over: too many bad samples; "" while it is not.
    """

    def __init__(self, arguments: LoaderOptions, current: CurrentSession, stats: Stats) -> None:
        """Make nothing yet.

        Args:
            arguments: What the Loader was asked for.
            current: Where the batches come from.
            stats: Where they are counted.
        """
        self.ready: Ready | None = None
        self.fatal = ""
        self._arguments = arguments
        self._current = current
        self._stats = stats
        self._warned = False  # of copies

    def make(self, running: Pass, tally: ErrorBudget) -> None:
        """Make the next batch of a pass, or what is raised in its place; `ready` has it.

        Args:
            running: The pass.
            tally: Bad samples of all batches before.

        Raises:
            LoaderdError: As CurrentSession.wait_for_batch.
        """
        session = self._current.session
        received = (
            session.next_batch(running.origin.step + running.taken) if session is not None else None
        )
        waited = session is None or received is None
        if session is None or received is None:
            session, received = self._current.wait_for_batch(running.cursor)
        tally = tally.plus(running.rows, received.bad)
        error = self._error(session, received, running, tally)
        batch = None if error is not None else received.batch
        # from here to the end of `progress` an exception costs the session, and `ready` is behind
        # it
        session.release()
        self.ready = Ready(running, running.taken, batch, error, tally)
        session.progress(waited)
        if batch is not None:
            self._stats.bytes += received.bytes
            if received.copied:
                self._copied(session)
        elif error is None:
            self._stats.passed += 1

    def _error(
        self, session: Session, received: Received, running: Pass, tally: ErrorBudget
    ) -> LoaderdError | None:
        """What is raised in the place of a batch. If the run is over, so is every later one."""
        if tally.bad:
            text = tally.verdict(
                session.welcome.max_errors,
                session.shape.world_size,
                epoch_ends=running.taken + 1 == running.steps,
            )
            if text:
                self.fatal = f"stream {self._arguments.stream!r}: {text}"
                return StreamFailedError(self.fatal)
        if received.failed:
            return sample_error(received.bad, running.cursor, self._arguments.stream)
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
