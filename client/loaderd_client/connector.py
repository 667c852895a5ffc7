"""How a Loader comes to its sessions: the first one settles what all later ones must be."""

from __future__ import annotations

import importlib
import os
import sys
import weakref
from dataclasses import replace
from functools import partial
from typing import Any

from loaderd_client import embedded, ranks
from loaderd_client.closing import Closing
from loaderd_client.control_socket import ControlSocket
from loaderd_client.devices.placement import Placement
from loaderd_client.endpoint import outdated
from loaderd_client.handshake import Handshake
from loaderd_client.options import LoaderOptions
from loaderd_client.session import Session
from loaderd_client.signals import Held
from loaderd_client.state import LoaderState
from loaderd_client.wait import WaitLimits
from loaderd_wire import messages as m
from loaderd_wire.errors import ConfigError, LoaderdError, StreamChangedError, by_handler
from loaderd_wire.facts import apart_from_code, differences, edited_code, without_code
from loaderd_wire.slices import Cursor, EpochShape

TENSORS = "loaderd_client.torch_backend"
SHARED = {None: "", True: "yes", False: "no"}  # of a Hello, for each value of the argument
# of a Welcome, besides the fingerprints
DECIDING = ("samples", "batch_size", "seed", "drop_last", "form", "tail")


def _check_process() -> None:
    """Raises ConfigError where no Loader can be of use."""
    if _in_daemon():
        raise ConfigError(
            "a Loader was asked for batches by code that a process of the daemon imports or runs "
            "to make samples: put the training loop "
            'under `if __name__ == "__main__":`, or what makes samples into a module of its own'
        )
    if ranks.in_dataloader_worker():
        raise ConfigError(
            "a Loader inside a worker of torch's DataLoader would deliver every batch once in "
            "each worker; iterate over the Loader itself, "
            "or use DataLoader(..., num_workers=0)"
        )


def _in_daemon() -> bool:
    """True if this process is a daemon's fork server or worker, whose names begin so.

    It would wait for the daemon, which waits for it.
    """
    try:
        with open("/proc/self/comm", encoding="utf-8") as file:
            return file.read().startswith(("loaderd-templ", "loaderd-worker"))
    except OSError as error:
        if by_handler(error):
            raise
        return False


class Connector:
    """How a Loader gets its sessions: what the first one has settled is asked of each later one.

    Attributes:
        first: What the daemon said when it admitted the first session; None before.
        rank: As settled then; None before.
        started: The last `connect` found no daemon that was ready to serve.
    """

    def __init__(self, arguments: LoaderOptions, closing: Closing, placement: Placement) -> None:
        """Connect to nothing yet.

        Args:
            arguments: What the Loader was asked for.
            closing: Ends the waits.
            placement: Where the batches are put.
        """
        self._placement = placement
        self._arguments = arguments
        self._closing = closing
        # under way, perhaps since a call that a signal handler has cut short
        self._handshake: Handshake | None = None
        self._control: ControlSocket | None = None  # of the session that was opened last
        self._path = ""  # of the socket, once it was looked for
        self._life = ""  # of the daemon of the session that was opened last; "" while one is sought
        # memory of ended sessions that tensors may still pin
        self._dead: list[weakref.ref[Any]] = []
        self._told: set[str] = set()  # what daemons have warned of
        self.first: m.Welcome | None = None
        self.rank: ranks.Rank | None = None
        self.started = False

    def connect(self, lost: str, limits: WaitLimits) -> None:
        """Wait until a session is admitted; `open` takes it.

        What a signal handler raises comes out while it waits. The next call goes on where it was.

        Args:
            lost: Why the last daemon is gone; "" if there was none.
            limits: How long to wait.

        Raises:
            ConfigError: The rank is not clear, or this is a worker of DataLoader or of a daemon.
            LoaderdError: As Handshake.run.
        """
        if self._handshake is None or self._handshake.lost:
            _check_process()
            rank = self.rank or ranks.settle(
                self._arguments.rank, self._arguments.world_size, os.environ
            )
            hello = partial(self._hello, rank)
            self._handshake = Handshake(
                self._arguments.source, limits, hello, lost, self.prepare, self._closing
            )
            self._asked = rank
        handshake = self._handshake
        self._life = ""
        try:
            handshake.run()
        except LoaderdError:
            self._handshake = None
            raise
        finally:
            self._path, self.started = handshake.path or self._path, handshake.started

    def open(self, cursor: Cursor, loaded: LoaderState | None) -> tuple[Session, list[str]]:
        """Take the session that was admitted.

        Args:
            cursor: The next batch.
            loaded: A state to compare with the stream's own facts, or None.

        Returns:
            The session, and warnings for the user.

        Raises:
            StreamChangedError: The daemon's successor has another stream.
            ConfigError: The state does not fit.
            LoaderdError: As Session.
        """
        assert self._handshake is not None
        admitted, self._handshake = self._handshake.take(), None
        welcome = admitted.welcome
        try:
            warnings = self._looked_at(welcome, loaded)
        except BaseException:
            admitted.close()
            raise
        session = Session(admitted, self._arguments, self._asked, cursor, self._placement)
        self._control, self._life = admitted.control, welcome.daemon
        if self.first is None and self._arguments.source.config:
            stale = outdated(self._arguments.source.config, admitted.path)
            warnings += [stale] if stale else []
        # A code that has changed is told once. It belongs to states saved from now on, and so does
        # what it has made of samples.
        self.first = (
            replace(self.first, order=welcome.order, content=welcome.content)
            if self.first is not None
            else welcome
        )
        self.rank = self._asked
        return session, warnings

    def _looked_at(self, welcome: m.Welcome, loaded: LoaderState | None) -> list[str]:
        """Warnings. Raises StreamChangedError and ConfigError as `open`."""
        warnings = [text for text in welcome.warnings if text not in self._told]
        self._told.update(welcome.warnings)
        if self.first is not None:
            self._compare(self.first, welcome)
            edited = edited_code(self.first.content, welcome.content)
            if edited:
                warnings.append(
                    f"code has changed since this training began: {edited}; going on with the new "
                    "code"
                )
        return warnings + (
            loaded.fits(welcome.order, welcome.content, welcome.samples)
            if loaded is not None
            else []
        )

    def wake(self) -> None:
        """End `connect`, and any wait of the session that was opened last.

        May be called from any thread, and in a signal handler.
        """
        handshake, control = self._handshake, self._control
        if handshake is not None and not handshake.lost:
            handshake.shut()
        if control is not None:
            control.shut()

    def close(self) -> None:
        """Give up a session that is not admitted yet."""
        if self._handshake is not None:
            self._handshake.close()
            self._handshake = None

    def explained(self, error: LoaderdError) -> LoaderdError:
        """The same error, with the end of the embedded daemon's log where that may explain it.

        Nobody else sees that log.
        """
        if (
            not self._path
            or not self._arguments.source.config
            or isinstance(error, (ConfigError, StreamChangedError))
        ):
            return error
        return embedded.explained(error, self._path, self._arguments.stream, self._life)

    def end_text(self, how: str) -> str:
        """How the daemon ended, with the last line of its log if that is a warning or an error.

        That line may be the reason.

        Args:
            how: How it ended.
        """
        named = self._arguments.source.config
        words = embedded.last_words(self._path, self._life) if named else ""
        return f"{how}; its log ends with: {words}" if words else how

    def end(self, session: Session) -> None:
        """Close the session, and remember which of its memory may still be held."""
        self._dead = [ref for ref in self._dead if ref() is not None]
        self._dead += [weakref.ref(mapping) for mapping in session.mappings]
        session.close()

    def shape(self) -> EpochShape | None:
        """How epochs are cut; None before the first session."""
        first, rank = self.first, self.rank
        return ranks.epoch_shape(first, rank) if first and rank else None

    def _hello(self, rank: ranks.Rank) -> m.Hello:
        """What is asked of the daemon.

        After the first session the stream's own settings no longer decide how epochs are cut.
        """
        arguments, first = self._arguments, self.first
        return m.Hello(
            protocol=m.PROTOCOL,
            stream=arguments.stream,
            batch_size=first.batch_size if first else arguments.batch_size,
            seed=arguments.seed,
            drop_last=first.drop_last if first else arguments.drop_last,
            rank=rank.rank,
            world_size=rank.world_size,
            prefetch=arguments.prefetch,
            fields=arguments.asked,
            held_bytes=sum(len(mapping) for ref in self._dead if (mapping := ref()) is not None),
            order=first.order if first else {},
            content=first.content if first else {},
            config=arguments.source.config,
            shared=SHARED[arguments.shared],
        )

    def prepare(self) -> None:
        """Import torch if tensors are asked for.

        Signals wait: an exception in the middle of that import would crash the process.
        """
        if self._arguments.output == "torch" and TENSORS not in sys.modules:
            with Held():
                importlib.import_module(TENSORS)

    def _compare(self, first: m.Welcome, welcome: m.Welcome) -> None:
        old, new = ({n: str(getattr(w, n)) for n in DECIDING} for w in (first, welcome))
        edited = edited_code(first.content, welcome.content)
        differing = differences(
            apart_from_code(first.order, edited) | without_code(first.content) | old,
            apart_from_code(welcome.order, edited) | without_code(welcome.content) | new,
        )
        if differing:
            raise StreamChangedError(
                f"{self._arguments.label} has changed since this training began: {differing}"
            )
