"""The batches of one Loader, handed out in order."""

from __future__ import annotations

import inspect
import threading
from types import FrameType
from typing import Any

from loaderd_client import interactive
from loaderd_client.batch import DictBatch, TupleBatch
from loaderd_client.batch_maker import BatchMaker, Ready
from loaderd_client.closing import Closing
from loaderd_client.current_session import CurrentSession
from loaderd_client.epochs import EpochCursor, Pass
from loaderd_client.error_budget import ErrorBudget
from loaderd_client.options import LoaderOptions
from loaderd_client.session import Session
from loaderd_client.state import LoaderState
from loaderd_client.stats import LoaderStats, Stats
from loaderd_wire import messages as m
from loaderd_wire.errors import LoaderdError, StreamFailedError
from loaderd_wire.slices import Cursor, EpochShape

CUT_OFF = (
    "an iterator has ended before its epoch did, because a newer one of the same Loader was begun; "
    "for two passes at once make two Loaders"
)


class Delivery:
    """Which iterator may go on, through which epoch, and with which batch.

    One caller at a time: others wait. A signal handler that interrupts a call may ask for the
    state and close.

    An exception, also one that a signal handler raises at any point of a call, loses no batch and
    gives none twice.

    Attributes:
        stats: What was done so far.
    """

    def __init__(self, arguments: LoaderOptions, state: LoaderState | None) -> None:
        """Connect to nothing yet.

        Args:
            arguments: What the Loader was asked for.
            state: Where to begin. None: at the first batch of epoch 0.
        """
        self.stats = Stats()
        self._arguments = arguments
        self._passes = EpochCursor(state.cursor if state else Cursor(0, 0, 0))
        self._tally = ErrorBudget(state.rows, state.bad) if state else ErrorBudget()
        self._lock = threading.RLock()  # again in a signal handler, so that it may close
        self._closing = Closing()
        self._current = CurrentSession(arguments, state, self._closing, self.stats)
        self._maker = BatchMaker(arguments, self._current, self.stats)

    def iterate(self) -> int:
        """Begin a new iterator, and end an earlier one.

        Returns:
            Its number.
        """
        self._current.check_usable()
        with self._lock:
            self._maker.ready.clear()
            return self._passes.iterate()

    def next(self, number: int) -> DictBatch[Any] | TupleBatch[Any]:
        """Take the next batch for iterator `number`.

        Raises:
            StopIteration: The epoch is over, or a newer iterator exists.
            LoaderdError: Any of `errors`.
        """
        session = self._current.session
        if self._closing.done or (session is not None and session.lost):
            self._current.check_usable()
        self._not_inside()
        maker, before = self._maker, self._tally
        handed: Ready | None = None
        try:
            with self._lock:
                running = self._running(number)
                while True:
                    before, handed = self._tally, None
                    if running.taken >= running.steps:
                        self._tell_of_nothing(running)
                        self._passes.finish()
                        raise StopIteration
                    if not maker.ready:
                        maker.make(running, self._tally)
                    handed = maker.ready[0]
                    running.taken, self._tally = handed.taken + 1, handed.tally
                    maker.ready.popleft()
                    _, _, batch, error, _, arrival = handed
                    if batch is not None:
                        if arrival is not None:
                            maker.look_ahead(running, self._tally)
                            arrival.hand_over()
                        running.given += 1
                        self.stats.batches += 1
                        return batch
                    if error is not None:
                        running.given += 1
                        if isinstance(error, StreamFailedError):
                            maker.fatal = str(error)
                        break
        except BaseException:
            self._cut_short(handed, before)
            raise
        finally:
            if self._closing.done:
                self._give_up()
        raise error

    @property
    def epoch(self) -> int:
        """Of the running pass, or of the next one if none runs."""
        return self._passes.epoch

    def cursor(self) -> Cursor:
        """Where the training is: the next batch."""
        return self._passes.cursor

    def set_epoch(self, epoch: int) -> None:
        """The next pass goes through this epoch."""
        with self._lock:
            self._passes.set_epoch(epoch)

    def state(self) -> LoaderState:
        """Where the trainer is.

        Connects if nothing is known of the stream yet, but not in a signal handler that interrupts
        a call.

        Raises:
            LoaderdError: As `welcome`.
        """
        if not self._inside():
            self.welcome()
        return self.state_so_far()

    def state_so_far(self) -> LoaderState:
        """Where the trainer is, with what is known of the stream without asking the daemon."""
        return LoaderState(
            self._passes.cursor, *self._current.facts(), self._tally.rows, self._tally.bad
        )

    def load(self, state: LoaderState) -> None:
        """Go on where a state says.

        Raises:
            ConfigError: The state does not fit the stream; the text names what differs.
        """
        with self._lock:
            self._current.load(state)
            self._maker.ready.clear()
            self._maker.fatal = ""
            self._passes.load(state.cursor)
            self._tally = ErrorBudget(state.rows, state.bad)

    def welcome(self) -> m.Welcome:
        """What the daemon has said of the stream; connects if there was no session yet.

        Raises:
            LoaderdError: As CurrentSession.attach.
        """
        if self._current.welcome is not None:
            return self._current.welcome
        self._current.check_usable()
        self._not_inside()
        try:
            with self._lock:
                return self._current.welcome or self._attach().welcome
        finally:
            if self._closing.done:
                self._give_up()

    def stats_so_far(self) -> LoaderStats:
        """What was done so far, as the user sees it."""
        return self.stats.picture(self._current.verdict, shared=self._current.shared)

    @property
    def shape(self) -> EpochShape | None:
        """How epochs are cut into steps; None before `welcome`."""
        return self._current.shape

    def close(self) -> None:
        """End the session, and a call that waits in another thread. Idempotent."""
        self._closing.close()
        self._current.wake()
        # else this is a signal handler, and the call that it interrupts ends the session on its way
        # out
        if not self._inside():
            self._give_up()

    def make_way(self) -> None:
        """Give the session up, unless a call is under way. The next call gets another one."""
        if not self._inside() and self._lock.acquire(blocking=False):
            try:
                self._give_up()
            finally:
                self._lock.release()

    # How it works

    def _attach(self) -> Session:
        config = self._arguments.source.config
        if config and self._current.welcome is None:
            interactive.arrive(self, config)
        return self._current.attach(self._passes.cursor)

    def _running(self, number: int) -> Pass:
        """The pass that iterator `number` is in.

        Raises StopIteration once a newer one exists, and StreamFailedError where the run is over.
        """
        if number != self._passes.newest:
            if number == self._passes.cut_off:
                self._passes.cut_off = 0  # once
                self._current.warn([CUT_OFF])
            raise StopIteration
        if self._maker.fatal:
            raise StreamFailedError(self._maker.fatal)
        return self._passes.running or self._begin()

    def _begin(self) -> Pass:
        self.stats.started()
        current, passes = self._current, self._passes
        session = self._attach()
        current.check_rank()
        if passes.upcoming(session.shape).steps:
            session.seek(passes.start)
        running = passes.begin(session.shape)
        current.prepare()  # the first batches are made meanwhile
        return running

    def _tell_of_nothing(self, running: Pass) -> None:
        """A pass is over. Who trains on nothing is told why."""
        if running.given or not running.steps:
            return
        epoch = running.origin.epoch
        if self._tally.last:
            self._current.warn(
                [
                    f"epoch {epoch} gave no batch: all {running.steps} of its steps lost all "
                    f"their rows; the last bad sample: {self._tally.last[-1].line()}"
                ]
            )
        elif running.origin.position == 0:
            shape = running.shape
            self._current.warn(
                [
                    f"epoch {epoch} gave rank {shape.rank} no batch: it has {shape.samples} "
                    f'samples for {shape.world_size} ranks, and tail = "short" repeats none'
                ]
            )

    def _cut_short(self, handed: Ready | None, before: ErrorBudget) -> None:
        """A call ends with an exception: make sure that whoever goes on after it misses nothing.

        A session that was just being changed is closed; there will be a new one at the cursor.

        Args:
            handed: What was about to be returned and has not arrived, or None.
            before: The tally without it.
        """
        try:
            with self._lock:
                if handed is not None:
                    ready = self._maker.ready
                    if not ready or ready[0] is not handed:
                        ready.appendleft(handed)
                    handed.running.taken, self._tally = handed.taken, before
                session = self._current.session
                if session is not None and not session.sound:
                    self._current.drop()
        except BaseException:  # of another handler
            self._cut_short(handed, before)
            raise

    def _inside(self) -> bool:
        """This thread is in the middle of a call: what asks is a signal handler.

        Since Python 3.14 a handler may raise between `with` taking the lock and its block, which
        then never gives it back. The next call finds that out here, and gives it back.
        """
        lock: Any = self._lock
        if not lock._is_owned():  # what threading.Condition asks, too
            return False
        here: Any = inspect.currentframe()
        frame: FrameType | None = here
        while frame is not None and frame.f_code.co_filename == here.f_code.co_filename:
            frame = frame.f_back  # the call that asks
        while frame is not None:
            of_this_file = frame.f_code.co_filename == here.f_code.co_filename
            if of_this_file and frame.f_locals.get("self") is self:
                return True
            frame = frame.f_back
        while lock._is_owned():
            lock.release()
        return False

    def _not_inside(self) -> None:
        if self._inside():
            raise LoaderdError(
                f"{self._arguments} was used by a signal handler while it waits for a batch or "
                "connects; do that after the handler"
            )

    def _give_up(self) -> None:
        with self._lock:
            self._maker.ready.clear()
            self._current.close()
