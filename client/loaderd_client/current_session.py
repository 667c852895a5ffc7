"""The session that a Loader has now, and a new one in its place when the daemon was lost."""

from __future__ import annotations

import os
import time
import weakref
from typing import Any

from loaderd_client import ranks
from loaderd_client.closing import Closing
from loaderd_client.connector import Connector
from loaderd_client.daemon_reports import SessionEnded
from loaderd_client.devices.page_locks import sweep
from loaderd_client.devices.placement import Placement
from loaderd_client.log import warn
from loaderd_client.options import LoaderOptions
from loaderd_client.reconnect import ReconnectBudget
from loaderd_client.session import Received, Session
from loaderd_client.signals import Held
from loaderd_client.state import LoaderState
from loaderd_client.stats import Stats
from loaderd_client.wait import WaitLimits
from loaderd_wire import messages as m
from loaderd_wire.errors import LoaderdError, StallError
from loaderd_wire.slices import Cursor, EpochShape

COPIES_END_S = 1.0  # for which a Loader that is closed waits for copies to a device


class CurrentSession:
    """The session, if there is one. Not for two threads at once, except `wake`.

    Attributes:
        session: None before the first one, and after one was lost or closed.
        placement: Where the batches are put.
    """

    def __init__(
        self, arguments: LoaderOptions, loaded: LoaderState | None, closing: Closing, stats: Stats
    ) -> None:
        """Connect to nothing yet.

        Args:
            arguments: What the Loader was asked for.
            loaded: A state to go on from, not yet compared with the stream's own facts; or None.
            closing: Ends the waits.
            stats: Where the seconds that were waited are added.
        """
        self.session: Session | None = None
        self._arguments = arguments
        self._loaded = loaded
        self._closing = closing
        self._stats = stats
        self._limits = WaitLimits(
            arguments.timeout_s, arguments.reconnect_s, arguments.stall_warning_s
        )
        self.placement = Placement(arguments, stats)
        self._connector = Connector(arguments, closing, self.placement)
        self._verdict = ""  # of the sessions before
        self._ending: weakref.finalize[..., Any] | None = None
        weakref.finalize(self, self._connector.close).atexit = False

    @property
    def welcome(self) -> m.Welcome | None:
        """What the first session was admitted with; None before it."""
        return self._connector.first

    @property
    def shape(self) -> EpochShape | None:
        """How epochs are cut into steps; None before the first session."""
        return self._connector.shape()

    @property
    def verdict(self) -> str:
        """Who waits for whom, as a daemon last said; "" before one has."""
        return (self.session.verdict if self.session is not None else "") or self._verdict

    @property
    def shared(self) -> bool:
        """Whether the batches are shared with other trainers, as the daemon last said."""
        last = self.welcome if self.session is None else self.session.welcome
        return last is not None and last.shared

    def facts(self) -> tuple[dict[str, str] | None, dict[str, str] | None]:
        """The fingerprints that a state of now belongs to.

        Returns:
            (order, content), each None where it is not known yet.
        """
        known = self._connector.first or self._loaded
        return (known.order, known.content) if known else (None, None)

    def load(self, state: LoaderState) -> None:
        """Go on from a state from now on.

        Raises:
            ConfigError: It belongs to another order. Before the first session, that comes later.
        """
        first = self._connector.first
        if first is not None:
            self.warn(state.fits(first.order, first.content, first.samples))
        self._loaded = None if first else state

    def attach(self, cursor: Cursor, lost: str = "", limits: WaitLimits | None = None) -> Session:
        """The session; a new one at the cursor if there is none.

        Args:
            cursor: The next batch.
            lost: Why the last daemon is gone.
            limits: How long to wait; the Loader's own if None.

        Raises:
            LoaderdError: As Connector.connect and Connector.open.
        """
        if self.session is not None:
            return self.session
        self.check_usable()
        began_s = time.monotonic()
        try:
            self._connector.connect(lost, limits or self._limits)
            with Held():
                session, warnings = self._connector.open(cursor, self._loaded)
                self.session, self._loaded = session, None
                # For who never closes; at exit the kernel does it.
                self._ending = weakref.finalize(self, session.close)
                self._ending.atexit = False
                self.warn(warnings)
        except LoaderdError as error:
            self.check_usable()
            raise self._connector.explained(error) from None
        finally:
            self._stats.connected(time.monotonic() - began_s, started=self._connector.started)
        return session

    def wait_for_batch(self, cursor: Cursor) -> tuple[Session, Received]:
        """The batch at the cursor, and the session that it is of.

        A daemon that went away is waited for, and the stream goes on where it was.

        Raises:
            StallError: It did not come within `timeout_s`; the same session may go on.
            LoaderdError: As `attach` and Session.next_batch.
        """
        began_s, waited_s = time.monotonic(), self._stats.waited_s
        where = f"step {cursor.step} of epoch {cursor.epoch}"
        reconnects = ReconnectBudget(began_s, self._limits, where)
        try:
            while True:
                limits = reconnects.left(time.monotonic())
                session = self.attach(cursor, reconnects.last, limits)
                try:
                    received = session.next_batch(cursor.step, limits)
                    assert received is not None
                    return session, received
                except SessionEnded as ended:
                    self.check_usable()
                    reconnects.add(self._connector.end_text(str(ended)))
                    self.drop()
                pause_s = reconnects.pause_s(time.monotonic())
                warn(
                    "the daemon is gone (%s); going on with its successor at %s",
                    reconnects.last,
                    where,
                )
                self._closing.sleep(pause_s)
        except LoaderdError as error:
            if not isinstance(error, StallError):  # after which the same session may go on
                self.drop()
            if self._closing.done:
                raise
            raise self._connector.explained(reconnects.told(error)) from None
        finally:
            # What `attach` has counted is part of it.
            self._stats.waited_s = waited_s + time.monotonic() - began_s

    def prepare(self) -> None:
        """What takes long and needs no batch: the import of torch."""
        self._connector.prepare()

    def check_rank(self) -> None:
        """Compare the rank with the process group's.

        Raises:
            ConfigError: A process group has come up since that says otherwise.
        """
        if self._connector.rank is not None:
            ranks.still(self._connector.rank)

    def check_usable(self) -> None:
        """Ask whether the Loader can be used.

        Raises:
            LoaderdError: It is closed, or was copied by a fork.
        """
        if self._closing.done:
            raise LoaderdError(f"{self._arguments} is closed; make a new one")
        if self.session is not None and self.session.lost:
            raise LoaderdError(
                f"{self._arguments} belongs to another process and was copied into process "
                f"{os.getpid()} by a fork; make a Loader here, or "
                "iterate over it where it was made (with torch's DataLoader: num_workers=0)"
            )

    def wake(self) -> None:
        """From any thread, or a signal handler: whatever waits for the daemon ends."""
        self._connector.wake()

    def drop(self) -> None:
        """Close the session, if there is one. The next `attach` gets another one."""
        if self.session is None:
            return
        with Held():
            session, self._verdict, self.session = self.session, self.verdict, None
            if self._ending is not None:
                self._ending.detach()
            self._connector.end(session)

    def close(self) -> None:
        """Close the session, and give up what is under way."""
        self.drop()
        self._connector.close()
        if self.placement.device is not None:
            sweep(wait_s=COPIES_END_S)

    def warn(self, warnings: list[str]) -> None:
        """Log these lines with the name of the stream."""
        label = self._arguments.label
        for text in warnings:
            warn("%s: %s", label, text.removeprefix(f"{label}: "))  # the daemon may have named it
