"""The Loader: what a training loop iterates over."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from loaderd_client import ranks
from loaderd_client.batch import DictBatch, TupleBatch
from loaderd_client.closing import Closing
from loaderd_client.connector import Connector
from loaderd_client.epochs import EpochCursor, Pass
from loaderd_client.error_budget import ErrorBudget
from loaderd_client.errors import sample_error
from loaderd_client.iterator import BatchIterator, Dataset, LikeDataLoader, Sampler
from loaderd_client.log import warn
from loaderd_client.options import LoaderOptions, check
from loaderd_client.reconnect import ReconnectBudget
from loaderd_client.session import Session, SessionEnded
from loaderd_client.signals import Held
from loaderd_client.state import LoaderState
from loaderd_client.stats import Stats
from loaderd_client.wait import WaitLimits
from loaderd_wire import messages as m
from loaderd_wire.errors import ConfigError, LoaderdError, ProtocolError, StallError, StreamFailedError
from loaderd_wire.slices import MAX_EPOCH, Cursor, steps_left


class Ready(NamedTuple):
    """What next() gives, raises if it has `failed`, or passes over if it is None: the batch that follows `taken` others of the pass. tally: with its errors."""

    running: Pass
    taken: int
    made: Any
    failed: bool
    tally: ErrorBudget


class Loader(LikeDataLoader):
    """Batches of one stream of a daemon, for one rank.

    `source` is the daemon's socket, or its config file: then a daemon is started where none runs, and it leaves with its last user.
    Arguments that are None take the stream's own setting. Nothing is connected before the first `len()`, `next()` or `state_dict()`.
    Tensors belong to the caller: they may be kept and written to.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        stream: str | None = None,
        *,
        batch_size: int | None = None,
        seed: int | None = None,
        drop_last: bool | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        prefetch: int = 4,
        fields: Sequence[str] | None = None,
        as_tuple: bool | None = None,
        output: str = "torch",
        timeout_s: float = 300,
        reconnect_s: float = 60,
        stall_warning_s: float = 10,
        **others: Any,
    ) -> None:
        """Raises ConfigError for an argument that cannot be, and for DataLoader's, naming the setting to use instead."""
        given = {
            "batch_size": batch_size,
            "seed": seed,
            "drop_last": drop_last,
            "rank": rank,
            "world_size": world_size,
            "prefetch": prefetch,
            "fields": fields,
            "as_tuple": as_tuple,
            "output": output,
            "timeout_s": timeout_s,
            "reconnect_s": reconnect_s,
            "stall_warning_s": stall_warning_s,
        }
        self._set_up(check(source, stream, others, given), None)

    def _set_up(self, arguments: LoaderOptions, state: LoaderState | None) -> None:
        self._arguments = arguments
        self._limits = WaitLimits(arguments.timeout_s, arguments.reconnect_s, arguments.stall_warning_s)
        self._loaded = state  # not yet compared with the stream's own facts
        self._passes = EpochCursor(state.cursor if state else Cursor(0, 0, 0))
        self._tally = ErrorBudget(state.rows, state.bad) if state else ErrorBudget()
        self._stats = Stats()
        self._lock = threading.RLock()  # one caller at a time; again in a signal's handler, so that it may close
        self._line: Session | None = None
        self._closing = Closing()
        self._connector = Connector(arguments, self._closing)
        self._ready: Ready | None = None  # made, and not handed out because a signal came between
        self._fatal = ""  # why the run is over: too many bad samples
        self._warned = False
        self._ending: weakref.finalize[..., Any] | None = None
        weakref.finalize(self, self._connector.close).atexit = False

    # Iteration

    def __iter__(self) -> BatchIterator:
        """A pass through the epoch. It takes its epoch and position at its first `next()`; an earlier iterator is ended."""
        self._usable()
        with self._lock:
            self._ready = None
            return BatchIterator(self, self._next, self._passes.iterate())

    def __len__(self) -> int:
        """Batches of a whole epoch of this rank."""
        self._known()
        shape = self._connector.shape()
        return steps_left(shape, 0) if shape else 0

    def set_epoch(self, epoch: int) -> None:
        """The next pass, also one whose iterator exists but gave nothing yet, goes through this epoch; counting goes on from there."""
        if isinstance(epoch, bool) or not hasattr(epoch, "__index__") or not 0 <= epoch.__index__() <= MAX_EPOCH:
            raise ConfigError(f"set_epoch({epoch!r}): use a whole number from 0 to 2**60")
        with self._lock:
            self._passes.set_epoch(epoch.__index__())

    def state_dict(self) -> dict[str, Any]:
        """Where the trainer is, in JSON's types: batches already yielded. Costs nothing; fit to be called in a signal's handler."""
        if not self._inside():  # a handler that comes before the daemon's first answer gets what is known until then
            self._known()
        return self._state().to_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on there: whoever asks next, an iterator that exists or a new one. Raises ConfigError naming what does not fit."""
        state = LoaderState.from_dict(state_dict)
        with self._lock:
            first = self._connector.first
            if first is not None:
                self._warn(state.fits(first.order, first.content, first.samples))
            self._loaded = None if first else state
            self._ready = None
            self._passes.load(state.cursor)
            self._tally = ErrorBudget(state.rows, state.bad)
            self._fatal = ""

    # What it is

    @property
    def batch_size(self) -> int:
        return self._arguments.batch_size or self._known().batch_size

    @property
    def drop_last(self) -> bool:
        return self._known().drop_last if self._arguments.drop_last is None else self._arguments.drop_last

    @property
    def epoch(self) -> int:
        """Of the running pass, or of the next one if none runs."""
        return self._passes.epoch

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the labels, as the data's metadata has them; empty if it has none."""
        return self._known().classes

    @property
    def dataset(self) -> Dataset:
        return Dataset(self._known().samples)

    @property
    def sampler(self) -> Sampler:
        """Where Lightning looks for `set_epoch`."""
        return Sampler(self)

    def stats(self) -> dict[str, int | float]:
        """batches, waited_s, started_s, wait_fraction (of the time since the first next()), bytes, copied_batches, passed_batches."""
        return self._stats.picture()

    def close(self) -> None:
        """Ends the session, and a `next()` that waits in another thread; tensors stay valid. Idempotent."""
        self._closing.ring()
        self._connector.wake()
        line = self._line
        if line is not None and not line.connection.lost:
            line.connection.control.shut()
        if not self._inside():  # else this is a signal's handler in the middle of a call, which ends the session on its way out
            self._give_up()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """As its arguments and cursor; the copy connects for itself."""
        return _restored, (type(self), self._arguments, self._state())

    def __repr__(self) -> str:
        source = self._arguments.source
        return f"Loader({source.config or source.socket!r}, stream={self._arguments.stream!r})"

    # How it works

    def _next(self, number: int) -> Any:
        """The next batch for iterator `number`."""
        line = self._line
        if self._closing.done or (line is not None and line.connection.lost):
            self._usable()
        self._not_inside()
        before = self._tally
        handed: Ready | None = None
        try:
            with self._lock:
                running = self._running(number)
                made, failed = None, False
                while made is None:
                    before, handed = self._tally, None
                    if running.taken >= running.steps:
                        self._tell_of_nothing(running)
                        self._passes.finish()
                        raise StopIteration
                    if self._ready is None:
                        self._make(running)
                    handed = self._ready
                    assert handed is not None
                    running.taken, self._tally, self._ready = handed.taken + 1, handed.tally, None
                    _, _, made, failed, _ = handed
                running.given += 1
                if not failed:
                    self._stats.batches += 1
        except BaseException:
            self._cut_short(handed, before)
            raise
        finally:
            if self._closing.done:
                self._give_up()
        if failed:
            raise made
        return made

    def _running(self, number: int) -> Pass:
        """The pass that iterator `number` is in. Raises StopIteration once a newer one exists, and StreamFailedError where the run is over."""
        if number != self._passes.newest:
            raise StopIteration
        if self._fatal:
            raise StreamFailedError(self._fatal)
        return self._passes.running or self._begin()

    def _cut_short(self, handed: Ready | None, before: ErrorBudget) -> None:
        """An error, or an exception of a signal's handler, at no matter what point of a call: whoever goes on after it misses nothing. The
        session is kept, unless it was just being changed: then there will be a new one at the cursor.
        """
        try:
            with self._lock:
                if handed is not None:  # and has not arrived
                    self._ready, handed.running.taken, self._tally = handed, handed.taken, before
                if self._line is not None and not self._line.sound:
                    self._detach()
        except BaseException:  # of another handler
            self._cut_short(handed, before)
            raise

    def _inside(self) -> bool:
        """This thread is in the middle of a call: what asks is a signal's handler."""
        return self._lock._is_owned()  # type: ignore[attr-defined] # pyright: ignore - what threading.Condition asks, too

    def _not_inside(self) -> None:
        if self._inside():
            raise LoaderdError(f"{self!r} was used by a signal's handler while it waits for a batch or connects; do that after the handler")

    def _give_up(self) -> None:
        with self._lock:
            self._ready = None
            self._detach()
            self._connector.close()

    def _tell_of_nothing(self, running: Pass) -> None:
        """A pass is over. Who trains on nothing shall know why."""
        if running.given or not running.steps:
            return
        last = self._tally.last[-1].line() if self._tally.last else "unknown"
        self._warn(
            [
                f"epoch {running.origin.epoch} gave no batch: all {running.steps} of its steps lost all their rows; the last bad sample: {last}"
            ]
        )

    def _begin(self) -> Pass:
        self._stats.started()
        line = self._attached()
        if self._connector.rank is not None:
            ranks.still(self._connector.rank)
        line.sound = False  # until it stands where the pass does
        running = self._passes.begin(line.shape)
        if running.steps:
            line.seek(running.origin)
            line.tell(waiting=True)
        line.sound = True
        self._connector.prepare()  # the first batches are made meanwhile
        return running

    def _make(self, running: Pass) -> None:
        """The next batch, or what is to be raised in its place, into `_ready`."""
        line = self._line
        batch = line.take() if line is not None else None
        waited = line is None or batch is None
        if line is None or batch is None:
            batch = self._wait(running)
            line = self._attached()
        made: DictBatch[Any] | TupleBatch[Any] | LoaderdError | None
        slot, crowded, size = None, False, 0
        tally = self._tally.plus(running.rows, batch.bad)
        text = ""
        if tally.bad:
            text = tally.verdict(line.welcome.max_errors, line.shape.world_size, epoch_ends=running.taken + 1 == running.steps)
        failed = True
        if text:
            self._fatal = f"stream {self._arguments.stream!r}: {text}"
            made = StreamFailedError(self._fatal)
        elif batch.failed:
            made = sample_error(batch, running.cursor, self._arguments.stream)
        elif batch.filled == 0 and line.welcome.empty != "deliver":
            made, failed = None, False
            self._stats.passed += 1
        else:
            failed, crowded = False, line.session.free_slots() == 0
            try:
                made, slot, size = line.read(batch, running.origin.step + running.taken, lend=not crowded)
            except ProtocolError:
                self._detach()  # a new session gets that batch anew
                raise
        line.sound = False
        line.give(slot)
        self._ready = Ready(running, running.taken, made, failed, tally)
        line.sound = True
        self._stats.bytes += size
        if crowded:
            self._crowded(line)
        try:
            line.tell_if_due(waited)
        except ProtocolError:
            self._detach()  # what is ready is handed out by the next call, and a new session goes on behind it
            raise

    def _wait(self, running: Pass) -> m.Descriptor:
        """The next batch, whatever it takes: a daemon that went away is waited for, and the stream goes on where it was."""
        began_s, waited_s = time.monotonic(), self._stats.waited_s
        cursor = running.cursor
        where = f"step {cursor.step} of epoch {cursor.epoch}"
        reconnects = ReconnectBudget(began_s, self._limits, where)
        try:
            while True:
                limits = reconnects.left(time.monotonic())
                line = self._attached(reconnects.last, limits)
                try:
                    return line.wait_for_batch(limits, where)
                except SessionEnded as ended:
                    self._usable()
                    reconnects.add(self._connector.end_text(str(ended)))
                    self._detach()
                pause_s = reconnects.pause_s(time.monotonic())
                warn("the daemon is gone (%s); going on with its successor at %s", reconnects.last, where)
                self._closing.sleep(pause_s)
        except LoaderdError as error:
            if not isinstance(error, StallError):  # after which the same session may go on
                self._detach()
            if self._closing.done:
                raise
            raise self._connector.explained(reconnects.told(error)) from None
        finally:
            self._stats.waited_s = waited_s + time.monotonic() - began_s  # what `_attached` counts is part of it

    def _crowded(self, line: Session) -> None:
        self._stats.copied += 1
        if not self._warned:
            self._warned = True
            held = line.held()[1] - 1
            warn(
                "%d batches are held at once, so that further ones are copied, which is slower; drop batches that are no longer "
                "needed, or give prefetch=%d",
                held,
                self._arguments.prefetch * 2,
            )

    # Sessions

    def _attached(self, lost: str = "", limits: WaitLimits | None = None) -> Session:
        """The session, a new one at the cursor if there is none. The others: as Door.open, whose errors it raises."""
        if self._line is not None:
            return self._line
        self._usable()
        began_s = time.monotonic()
        try:
            self._connector.connect(lost, limits or self._limits)
            with Held():
                line, warnings = self._connector.open(self._passes.cursor, self._loaded)
                self._line, self._loaded = line, None
                self._ending = weakref.finalize(self, line.close)  # for who never closes; at exit the kernel does it
                self._ending.atexit = False
                self._warn(warnings)
        except LoaderdError as error:
            self._usable()
            raise self._connector.explained(error) from None
        finally:
            self._stats.connected(time.monotonic() - began_s, started=self._connector.started)
        return line

    def _detach(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            with Held():
                if self._ending is not None:
                    self._ending.detach()
                self._connector.shut(line)

    def _known(self) -> m.Welcome:
        """What the first session was welcomed with; connects if there was none."""
        if self._connector.first is not None:
            return self._connector.first
        self._usable()
        self._not_inside()
        try:
            with self._lock:
                return self._connector.first or self._attached().welcome
        finally:
            if self._closing.done:
                self._give_up()

    def _warn(self, warnings: list[str]) -> None:
        for text in warnings:
            warn("stream %r: %s", self._arguments.stream, text)

    def _state(self) -> LoaderState:
        known = self._connector.first or self._loaded
        order, content = (known.order, known.content) if known else (None, None)
        return LoaderState(self._passes.cursor, order, content, self._tally.rows, self._tally.bad)

    def _usable(self) -> None:
        if self._closing.done:
            raise LoaderdError(f"{self!r} is closed; make a new one")
        if self._line is not None and self._line.connection.lost:
            raise LoaderdError(
                f"{self!r} belongs to another process and was copied into process {os.getpid()} by a fork; make a Loader here, or iterate "
                "over it where it was made (with torch's DataLoader: num_workers=0)"
            )


def _restored(cls: type[Loader], arguments: LoaderOptions, state: LoaderState) -> Loader:
    loader = cls.__new__(cls)
    loader._set_up(arguments, state)  # pyright: ignore[reportPrivateUsage] - this is how a Loader comes out of a pickle
    return loader
