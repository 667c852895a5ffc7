"""One admitted session, from the daemon's welcome to its end."""

from __future__ import annotations

import mmap
import os
import time
from typing import Any, NamedTuple

from loaderd_client.batch import DictBatch, TupleBatch
from loaderd_client.batch_reader import BatchReader, Made
from loaderd_client.connection import Connection
from loaderd_client.daemon_reports import DaemonReports
from loaderd_client.devices.placement import Arrival, Placement
from loaderd_client.handshake import AdmittedSession
from loaderd_client.log import warn
from loaderd_client.options import LoaderOptions
from loaderd_client.protocol import ClientProtocol
from loaderd_client.ranks import Rank, settled_shape
from loaderd_client.session_memory import SessionMemory, unless_ended
from loaderd_client.shared_memory import SegmentView, tidy
from loaderd_client.wait import BatchWait, WaitLimits
from loaderd_wire import messages as m
from loaderd_wire.errors import BadSample, ProtocolError, StallError
from loaderd_wire.slices import Cursor, is_repetition

COPY_PAUSE_S = 0.002  # between looks at copies of a device that hold slots


class Received(NamedTuple):
    """What `Session.next_batch` gives.

    Attributes:
        batch: None if it has `failed`, or has no rows and the stream does not deliver such ones.
        bad: Its bad samples.
        failed: An error is raised in its place.
        bytes: Size of its arrays.
        copied: It is a copy, because the trainer holds nearly all slots.
        arrival: It is on its way to a device; or None.
    """

    batch: DictBatch[Any] | TupleBatch[Any] | None
    bad: tuple[BadSample, ...]
    failed: bool = False
    bytes: int = 0
    copied: bool = False
    arrival: Arrival | None = None


class Session:
    """One admitted session. Not for two threads at once.

    Its owner takes a batch with `next_batch`, says with `release` that it was handed out, and then
    lets the daemon know with `progress`. `seek` changes which batch is next. Where an exception, or
    a signal handler that raises, cuts a call short:

    - `sound` is True: the session can go on. A batch that was not released is given again.
    - `sound` is False, also between `release` and `progress`: the owner must close the session. A
      new one begins at the owner's cursor.

    Attributes:
        welcome: What the daemon has admitted it with.
        shape: How its epochs are cut into steps.
        sound: See above.
    """

    def __init__(
        self,
        admitted: AdmittedSession,
        arguments: LoaderOptions,
        rank: Rank,
        cursor: Cursor,
        placement: Placement,
    ) -> None:
        """Takes over what was admitted, also when it raises.

        Args:
            admitted: The daemon's answer, with the socket and the memory that came with it.
            arguments: What the Loader was asked for.
            rank: Which rank of how many this is.
            cursor: The next batch.
            placement: Where the batches are put.

        Raises:
            ProtocolError: The welcome makes no sense.
            ConfigError: The stream has no such field, or no whole step in an epoch.
        """
        tidy()
        self.welcome = welcome = admitted.welcome
        self.sound = True
        self._sends = placement.sends
        self._name = arguments.label
        self._epoch = cursor.epoch
        self._reports = DaemonReports()
        self._taken: m.Descriptor | None = None  # the batch that is being handed out
        self._made: Made | None = None  # what was made of it
        # for the next batch, perhaps since a call that a signal handler has cut short
        self._wait: BatchWait | None = None
        self._waited_s = 0.0  # for the batches before that
        try:
            self.shape = settled_shape(welcome, rank, arguments.label)
            self._contents = BatchReader(
                welcome, arguments.fields, arguments.as_tuple, arguments.output, placement
            )
            first = self._view(welcome.segment, admitted.fd)
            self._protocol = ClientProtocol(
                welcome.session,
                self.shape,
                arguments.prefetch,
                welcome.segment,
                cursor,
                shared=welcome.shared,
            )
            self._memory = SessionMemory(self._protocol, first, placement)
            self._connection = Connection(
                admitted.path, admitted.control, welcome.session, welcome.token
            )
        except BaseException:
            admitted.control.close()
            raise
        finally:
            os.close(admitted.fd)

    @property
    def lost(self) -> bool:
        """This process is a fork of the one whose session it is."""
        return self._connection.lost

    @property
    def verdict(self) -> str:
        """Who waits for whom, as the daemon last said; "" before it has."""
        return self._reports.verdict

    @property
    def mappings(self) -> list[mmap.mmap]:
        """The memory of its segments."""
        return self._memory.mappings

    # The five verbs

    def next_batch(self, step: int, limits: WaitLimits | None = None) -> Received | None:
        """Take the next batch; it is given again until `release`.

        Args:
            step: Its number in the epoch.
            limits: How long to wait for it. None: not at all.

        Returns:
            The batch. None if `limits` is None, and it is not here or the session has just ended.

        Raises:
            SessionEnded: The daemon is gone.
            StallError: It did not come within `limits.timeout_s`.
            ProtocolError: The daemon sent what it must not.
            LoaderdError: What the daemon says that the stream has failed with.
        """
        batch = self._take()
        if batch is None:
            if limits is None:
                return None
            batch = self._wait_for_batch(limits, step)
        if not self.welcome.shared:
            return self._read(batch, step)
        received = unless_ended(
            lambda: self._read(batch, step), lambda: self._connection.control.hung_up
        )
        if received is not None:
            return received
        self.sound = True
        if limits is not None:
            self._hear_control()
            self._reports.check()
        return None

    def release(self) -> None:
        """The batch that was taken is handed out.

        Its slot is given back with the last view of it, or now if there is none.
        """
        self.sound = False  # until the daemon is told
        batch, made = self._taken, self._made
        self._taken = self._made = None
        assert batch is not None
        self._memory.lend(batch, made)

    def seek(self, cursor: Cursor) -> None:
        """Make the batch at `cursor` the next one.

        A batch that was taken and not released is given up.
        """
        self.sound = False
        if self._wait is not None:
            self._end_wait(self._wait)
        if self._taken is not None:
            if self._made is not None and self._made.arrival is None:
                self._made = None
            self.release()
        self._epoch = cursor.epoch
        self._protocol.seek(cursor)
        self._tell(waiting=True)
        self.sound = True

    def progress(self, waited: bool) -> None:
        """Tell the daemon what has been taken and released, if it needs to know now.

        Args:
            waited: The batch that was taken last was waited for: the daemon is told at once, for
                every free slot counts. Else it is told for two batches together, and what has
                arrived meanwhile is taken in, for the socket is touched anyway.

        Raises:
            ProtocolError: The daemon sent what it must not.
        """
        self.sound = False
        protocol = self._protocol
        if waited:
            self._tell()
        elif protocol.due:
            self._listen()
            if protocol.due:
                self._tell()
        self.sound = True

    def close(self) -> None:
        """End the session.

        Slots that the trainer still has views of stay mapped until the last one is gone.
        """
        self._memory.close()
        self._connection.close()

    # How it works

    def _take(self) -> m.Descriptor | None:
        """The next batch if it is here; its slot is leased from now on.

        It is given again until it is released.
        """
        if self._taken is not None:
            return self._taken
        self.sound = False
        self._memory.settle()
        batch = self._taken = self._protocol.take()
        if batch is not None and self._wait is not None:
            self._end_wait(self._wait)
        self.sound = True
        return batch

    def _read(self, batch: m.Descriptor, step: int) -> Received:
        """Raises ProtocolError for a batch that cannot be read; then `sound` is False."""
        if batch.failed or (batch.filled == 0 and self.welcome.empty != "deliver"):
            return Received(None, batch.bad, batch.failed)
        self._contents.prepare()
        crowded = self._protocol.free_slots() == 0
        try:
            made = self._made = self._contents.read(
                self._memory.view_of(batch),
                batch,
                step,
                lend=self._sends or not crowded,
                repeated=is_repetition(self.shape, batch.start),
            )
        except ProtocolError:
            self.sound = False
            raise
        copied = crowded and made.arrival is None
        return Received(made.batch, batch.bad, False, made.bytes, copied, made.arrival)

    def _tell(
        self,
        *,
        again: bool = False,
        ping: bool = False,
        waiting: bool = False,
        stacks: bool = False,
    ) -> None:
        sound, self.sound = self.sound, False
        waited_s = self._waited_s + (0.0 if self._wait is None else self._wait.waited_s)
        self._connection.send(
            self._protocol.progress(
                again=again, ping=ping, waiting=waiting, stacks=stacks, waited_s=waited_s
            )
        )
        self.sound = sound

    def _wait_for_batch(self, limits: WaitLimits, step: int) -> m.Descriptor:
        """Sleeps until the next batch is here and takes it. Raises as `next_batch`.

        Pings once a second, and says then that whatever was announced may be announced again: a
        lost message costs a second, never a batch.
        """
        if self._wait is None:
            self._wait = BatchWait(time.monotonic(), limits, told=self._protocol.told)
        wait = self._wait
        wait.resume(time.monotonic())
        while True:
            if self._listen():
                wait.heard()
            batch = self._take()
            if batch is not None:
                return batch
            self._reports.check()
            asked = wait.message_due(self._protocol.dirty)
            if asked is not None:
                self._tell(again=asked.ping, ping=asked.ping, waiting=True, stacks=asked.stacks)
            self._complain(wait, limits, step)
            try:
                control = self._connection.control
                pause_s = wait.pause_s(limits.timeout_s)
                if self._memory.busy:
                    pause_s = min(pause_s, COPY_PAUSE_S)
                if control.unread or self._connection.wait(pause_s):
                    self._hear_control()
            finally:
                wait.turn(time.monotonic())

    def _end_wait(self, wait: BatchWait) -> None:
        self._waited_s += wait.waited_s
        self._wait = None

    def _listen(self) -> bool:
        """Takes in what is here; True if there was anything."""
        sound, self.sound = self.sound, False
        messages = self._connection.received()
        for message in messages:
            if isinstance(message, m.Descriptor):
                self._protocol.receive(message)
                if message.verdict:
                    self._reports.verdict = message.verdict
            else:
                self._reports.hear(message)
        self.sound = sound
        return bool(messages)

    def _hear_control(self) -> None:
        self.sound = False
        for message in self._connection.controlled():
            if isinstance(message, m.Bye):
                self._reports.hear(message)
            else:
                self._add(message)
        if self._connection.control.ended:
            self._reports.connection_closed()
        self.sound = True

    def _add(self, segment: m.Segment) -> None:
        fd = self._connection.control.take_fd()
        try:
            view = self._view(segment, fd)
        finally:
            os.close(fd)
        self._memory.add(segment, view)

    def _view(self, segment: m.Segment, fd: int) -> SegmentView:
        return SegmentView(
            segment,
            fd,
            self._contents.arrays,
            self.shape.batch_size,
            shared=self.welcome.shared,
        )

    def _complain(self, wait: BatchWait, limits: WaitLimits, step: int) -> None:
        """Say what is waited for, where that is due. Raises StallError after `timeout_s`."""
        over = wait.over(limits.timeout_s)
        if not over and not wait.warning_due():
            return
        held, slots = self._memory.held
        text = (
            f"waiting {wait.waited_s:.0f} s for step {step} of epoch {self._epoch} of "
            f"{self._name}: {self._reports.story(wait)}"
            + (f"; you hold {held} of {slots} slots" if held >= slots - 1 else "")
        )
        if not over:
            warn("%s", text)
            return
        self._end_wait(wait)  # who goes on has all the time again
        detail = self._reports.detail(wait)
        raise StallError(text + (f"\n{detail}" if detail else ""))
