"""One admitted session from its welcome to its end: its sockets, its memory, and where it stands."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Any

from loaderd_client.batch import DictBatch, TupleBatch
from loaderd_client.batch_reader import BatchReader
from loaderd_client.connection import Connection
from loaderd_client.handshake import AdmittedSession
from loaderd_client.log import warn
from loaderd_client.options import LoaderOptions
from loaderd_client.protocol import ClientProtocol
from loaderd_client.ranks import Rank
from loaderd_client.shared_memory import Lent, SegmentView, lend, settled, tidy
from loaderd_client.wait import BatchWait, WaitLimits
from loaderd_wire import messages as m
from loaderd_wire.errors import ConfigError, ProtocolError, StallError, from_name
from loaderd_wire.slices import Cursor, EpochShape, steps_left


class SessionEnded(Exception):
    """The daemon is gone; the text says how it went."""


class Session:
    """Not for two threads at once. returned: leases that have ended, appended by whatever thread dropped the last view.

    sound: no exception of a signal's handler has cut short a change of the session's state; else it must be given up. Waiting changes nothing.
    """

    def __init__(self, admitted: AdmittedSession, arguments: LoaderOptions, rank: Rank, cursor: Cursor) -> None:
        """Takes over what was admitted, also when it raises: ProtocolError for a welcome that makes no sense, ConfigError as Contents."""
        tidy()
        self.returned: deque[Lent] = deque()
        self.welcome = welcome = admitted.welcome
        self._name = f"stream {arguments.stream!r}"
        self._ended = self._farewell = ""
        self._failure: m.Failure | None = None
        self._pulse: m.Pulse | None = None
        self._taken: m.Descriptor | None = None  # the batch that is being handed out
        self._wait: BatchWait | None = None  # for the next batch, perhaps since a call that a signal's handler has cut short
        self.sound = True
        try:
            self.shape = _shape(welcome, rank, arguments.stream)
            self._contents = BatchReader(welcome, arguments.fields, arguments.as_tuple, arguments.output)
            slots = SegmentView(welcome.segment, admitted.fd, self._contents.arrays, welcome.batch_size)
            self.session = ClientProtocol(welcome.session, self.shape, arguments.prefetch, welcome.segment, cursor)
            self.connection = Connection(admitted.path, admitted.control, welcome.session, welcome.token)
        except BaseException:
            admitted.control.close()
            raise
        finally:
            os.close(admitted.fd)
        self._newest = slots
        self._slots = {welcome.segment.segment: slots}

    @property
    def mappings(self) -> list[Any]:
        return [s.mapping for s in self._slots.values()]

    def seek(self, cursor: Cursor) -> None:
        self.sound = False
        self._wait = None
        if self._taken is not None:  # of a call that was cut short
            self.give(None)
        self.session.seek(cursor)
        self.sound = True

    def take(self) -> m.Descriptor | None:
        """The next batch if it is here; its slot is leased from now on. It is given again until `give`."""
        if self._taken is not None:
            return self._taken
        self.sound = False
        if self.returned or len(self._slots) > 1:
            self.settle()
        batch = self._taken = self.session.take()
        if batch is not None:
            self._wait = None
        self.sound = True
        return batch

    def settle(self) -> None:
        """Hears of the leases that have ended, and lets go of segments that nothing is wanted of any more."""
        returned = self.returned
        while returned:
            self.session.release(*settled(returned.popleft()))
        if len(self._slots) > 1:
            live = self.session.live
            self._slots = {number: slots for number, slots in self._slots.items() if number in live}

    def give(self, slot: Any) -> None:
        """The batch that was taken last is handed out: its lease ends with the last view of the slot, or, without one, now."""
        batch, self._taken = self._taken, None
        assert batch is not None
        if slot is None:
            self.session.release(batch.segment, batch.slot, batch.generation)
        else:
            lend(slot, (batch.segment, batch.slot, batch.generation), self.returned)

    def read(self, batch: m.Descriptor, step: int, *, lend: bool) -> tuple[DictBatch[Any] | TupleBatch[Any], Any, int]:
        """As Contents.read."""
        slots = self._slots.get(batch.segment)
        if slots is None:
            raise ProtocolError(f"a batch in segment {batch.segment}, which is not there")
        return self._contents.read(slots, batch, step, lend=lend)

    def tell(self, *, again: bool = False, ping: bool = False, waiting: bool = False, stacks: bool = False) -> None:
        self.sound = False
        self.connection.send(self.session.progress(again=again, ping=ping, waiting=waiting, stacks=stacks))
        self.sound = True

    def tell_if_due(self, waited: bool) -> None:
        """waited: for the batch that was just taken; who does so needs whatever can be made, and others are told in twos, with what has
        arrived meanwhile, for the socket is touched anyway.
        """
        session = self.session
        if waited:
            self.tell()
        elif session.due:
            self._listen()
            if session.due:
                self.tell()

    def wait_for_batch(self, limits: WaitLimits, where: str) -> m.Descriptor:
        """Sleeps until the next batch is here and takes it.

        Raises Ended, StallError after timeout_s, ProtocolError, and what the stream has failed with. Pings once a second, and says
        then that whatever was announced may be announced again: a lost message costs a second, never a batch.
        """
        if self._wait is None:
            self._wait = BatchWait(time.monotonic(), limits, told=self.session.told)
        wait = self._wait
        wait.resume(time.monotonic())
        while True:
            if self._listen():
                wait.heard()
            batch = self.take()
            if batch is not None:
                return batch
            if self._failure is not None:
                raise from_name(self._failure.error, self._failure.text)
            if self._ended:
                raise SessionEnded(self._ended)
            asked = wait.message_due(self.session.dirty)
            if asked is not None:
                self.tell(again=asked.ping, ping=asked.ping, waiting=True, stacks=asked.stacks)
            self._complain(wait, limits, where)
            try:
                if self.connection.control.unread or self.connection.wait(wait.pause_s(limits.timeout_s)):
                    self._hear_control()
            finally:
                wait.turn(time.monotonic())

    def close(self) -> None:
        """The slots that the trainer still has views of stay mapped until the last one is gone."""
        self._slots = {}
        self.connection.close()

    def held(self) -> tuple[int, int]:
        """(slots that the trainer holds, all slots) of the newest segment."""
        slots = self._newest.segment.slots
        return slots - self.session.free_slots(), slots

    def _listen(self) -> bool:
        """Takes in what is here; True if there was anything."""
        self.sound = False
        messages = self.connection.received()
        for message in messages:
            if isinstance(message, m.Descriptor):
                self.session.receive(message)
            elif isinstance(message, m.Pulse):
                self._pulse = message
            else:
                self._failure = message
        self.sound = True
        return bool(messages)

    def _hear_control(self) -> None:
        self.sound = False
        for message in self.connection.controlled():
            if isinstance(message, m.Bye):
                self._farewell = "it drained" if message.reason == "drained" else f"it drained: {message.reason}"
            else:
                self._add(message)
        if self.connection.control.ended:
            self._ended = self._farewell or "it went without a word"
        self.sound = True

    def _add(self, segment: m.Segment) -> None:
        fd = self.connection.control.take_fd()
        try:
            slots = SegmentView(segment, fd, self._contents.arrays, self.shape.batch_size)
        finally:
            os.close(fd)
        if segment.segment in self._slots:
            raise ProtocolError(f"segment {segment.segment} came twice")
        self.session.add_segment(segment)
        self._newest = slots
        self._slots[segment.segment] = slots

    def _complain(self, wait: BatchWait, limits: WaitLimits, where: str) -> None:
        over = wait.over(limits.timeout_s)
        if not over and not wait.warning_due():
            return
        text = f"waiting {wait.waited_s:.0f} s for {where} of {self._name}: {self._story(wait)}"
        if not over:
            warn("%s", text)
            return
        self._wait = None  # who goes on has all the time again
        detail = self._pulse.detail if self._pulse is not None and not wait.silent else ""
        raise StallError(text + (f"\n{detail}" if detail else ""))

    def _story(self, wait: BatchWait) -> str:
        held, slots = self.held()
        if wait.silent:
            last = f"; before that: {self._pulse.story}" if self._pulse is not None and self._pulse.story else ""
            story = f"the daemon does not answer (for {wait.silence_s:.0f} s{last})"
        elif self._farewell:
            story = f"the daemon is leaving, {self._farewell}"
        elif self._pulse is not None and self._pulse.story:
            story = self._pulse.story
        else:
            story = "the daemon is there and does not say what the batch waits for"
        return story + (f"; you hold {held} of {slots} slots" if held >= slots - 1 else "")


def _shape(welcome: m.Welcome, rank: Rank, stream: str) -> EpochShape:
    try:
        shape = EpochShape(welcome.samples, welcome.batch_size, rank.rank, rank.world_size, welcome.drop_last)
    except ValueError as error:
        raise ProtocolError(str(error)) from None
    if not steps_left(shape, 0):
        raise ConfigError(
            f"an epoch of stream {stream!r} has no whole step: {shape.samples} samples, world_size={shape.world_size}, "
            f"batch_size={shape.batch_size}, drop_last=True; use drop_last=False or a smaller batch_size"
        )
    return shape
