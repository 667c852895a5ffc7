"""Which client gets a session: from its Hello until it is admitted, waits, or is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from loaderd.core.actions import StreamBroken
from loaderd.server import rank_agreement, share_agreement
from loaderd.server.admission import AdmittedStream, OpenedStream, admit, check_known
from loaderd.server.segment_budget import SegmentBudget
from loaderd.server.sessions import SessionRegistry
from loaderd.server.source_changes import SourceChanges, data_changed
from loaderd.server.waiting_clients import WaitingClients
from loaderd.system import file_limits, resource_limits
from loaderd.system.control_socket import ControlListener, Peer
from loaderd.system.logs import WriteLog
from loaderd.system.loop import Loop
from loaderd.system.rate_limit import RateLimit
from loaderd_wire.errors import (
    ConfigError,
    LoaderdError,
    RefusedError,
    StreamChangedError,
    from_name,
)
from loaderd_wire.messages import Hello, Starting

MAX_NAMED = 32  # different refusals that the log tells within a minute
MAX_REFUSAL = 4000  # characters: it may quote what the client said
LONG_RESERVATION = 256 << 20  # bytes; a client that waits for more is told what for

REPLAYS = (
    "the daemon repeats its first batches, because loaderd bench --replay runs: do not train with "
    "it, only measure"
)


class NoRoomYet(Exception):
    """The segments of the daemon before are still there."""


class AdmissionControl:
    """Answers every Hello.

    Before `open` clients are told to wait; after `close` nobody comes in.

    Attributes:
        broken: Name of each stream that has ended on a fault -> name of the error, text.
    """

    def __init__(
        self,
        loop: Loop,
        control: ControlListener,
        budget: SegmentBudget,
        registry: SessionRegistry,
        *,
        config_path: str,
        names: Sequence[str],
        wanted: Callable[[str], object],
        progress: Callable[[], str],
        edited: Callable[[], list[str]],
        outdated: Callable[[str], object] | None,
        most: int,
        log: WriteLog,
        replay: bool = False,
    ) -> None:
        """Begin with nobody.

        Args:
            loop: The daemon's loop.
            control: Where clients say Hello.
            budget: The memory of segments.
            registry: Where those that are admitted go.
            config_path: The config file; "" for none.
            names: Of all streams.
            wanted: Called with the name of a stream that somebody asks for and that has not been
                opened, or is to be opened anew: its data has changed, and those who had begun with
                it are gone. `opened` or `not_opened` answers.
            progress: Returns what clients that wait are told.
            edited: Returns the files of the user's code that were edited after their import.
            outdated: Called with the reason when somebody comes, nobody else is here, and the
                config file or code that was imported has changed: whoever comes gets another
                daemon. None: the daemon goes on.
            most: Sessions that the file descriptors suffice for.
            log: Its log.
            replay: The first batches are handed out again and again.
        """
        self._loop = loop
        self._control = control
        self._budget = budget
        self._registry = registry
        # as the wire spells what is not UTF-8
        self._config_path = config_path.encode("utf-8", "backslashreplace").decode()
        self._names = names
        self._wanted = wanted
        self._changes = SourceChanges(config_path, edited)
        self._outdated = outdated
        self._most = most
        self._log = log
        self._replay = replay
        self._rarely = RateLimit(max_keys=MAX_NAMED)
        self._waiting = WaitingClients(
            loop, control, lambda: progress() or "waiting for the memory of the daemon before it"
        )
        self._before_bytes: int | None = None  # of segments of the daemon before, while it lives
        self._streams: Mapping[str, OpenedStream] | None = None
        self.broken: dict[str, tuple[str, str]] = {}

    def open(self, streams: Mapping[str, OpenedStream]) -> None:
        """From now on clients are admitted, first of all those that have waited.

        Args:
            streams: Those that have been opened; it grows.
        """
        self._streams = streams
        for peer, hello in self._waiting.take(None):
            self.hello(peer, hello)

    def opened(self, stream: str) -> None:
        """One that was wanted."""
        self.broken.pop(stream, None)
        for peer, hello in self._waiting.take(stream):
            self.hello(peer, hello)

    def not_opened(self, stream: str, error: LoaderdError) -> None:
        """One that was wanted cannot be had now.

        The next client that asks for it has it tried again.
        """
        for peer, _ in self._waiting.take(stream):
            self._refuse(peer, error)

    def share_memory(self, held_bytes: int) -> None:
        """The daemon before lives, and so do its segments.

        Who does not fit beside them waits until `own_memory`.

        Args:
            held_bytes: What they take.
        """
        self._before_bytes = held_bytes

    def own_memory(self) -> None:
        """The daemon before is gone."""
        self._before_bytes = None
        for peer, hello in self._waiting.take(None):
            self.hello(peer, hello)

    def stream_broken(self, action: StreamBroken) -> None:
        """A stream has ended on a fault: nobody gets it any longer."""
        self.broken[action.stream] = (action.error, action.text)
        text = f"stream {action.stream!r} has ended: {action.error}: {action.text}"
        self._log("error", "stream_failed", text, stream=action.stream, error=action.error)

    @property
    def all_broken(self) -> bool:
        """Whether no stream is left."""
        return len(self.broken) == len(self._names)

    def close(self) -> None:
        """Who waits to be admitted sees EOF and starts over."""
        for peer in self._waiting.peers:
            self._control.drop(peer)

    # -- what clients do

    def hello(self, peer: Peer, hello: Hello) -> None:
        """A client asks to be admitted."""
        if not hello.stream and len(self._names) == 1:
            hello = replace(hello, stream=next(iter(self._names)))
        if self._streams is None:
            self._waiting.add(peer, hello)
            return
        alone = not self._registry.sessions
        why = self._changes.why_outdated() if self._outdated and hello.config and alone else ""
        if self._outdated and why:
            self._outdated(why)
            self._control.drop(peer)  # it starts over
            return
        short = file_limits.shortage(file_limits.A_SESSION)
        if short and hello.order:
            self._control.drop(peer)  # it has had a session, and comes again
            return
        try:
            if short:
                raise RefusedError(short)
            check_known(hello, self._names, self._config_path)
            stream = self._streams.get(hello.stream)
            if stream is None or self._is_of_the_past(hello.stream, stream):
                self._wanted(hello.stream)
                self._waiting.add(peer, hello)
                return
            admitted = self._admit(hello, stream)
        except NoRoomYet:
            self._waiting.add(peer, hello)
            return
        except LoaderdError as error:
            self._refuse(peer, self._explained(error, hello))
            return
        self._register(peer, hello, stream, admitted)

    def gone(self, peer: Peer) -> None:
        """The peer's connection has ended, perhaps while it waited."""
        self._waiting.forget(peer)
        self._registry.gone(peer)

    # -- inside

    def _is_of_the_past(self, name: str, stream: OpenedStream) -> bool:
        """Whether its data has changed since it was opened, and who began with it is gone."""
        if self._registry.of_stream(name):
            return False
        error, _ = self.broken.get(name, ("", ""))
        return error == StreamChangedError.__name__ or data_changed(stream)

    def _admit(self, hello: Hello, stream: OpenedStream) -> AdmittedStream:
        """Raises LoaderdError."""
        try:
            admitted = admit(hello, stream, self._budget.number(), replay=self._replay)
        except (ValueError, OverflowError) as error:
            raise (
                error
                if isinstance(error, LoaderdError)
                else ConfigError(f"stream {hello.stream!r}: {error}")
            ) from None
        if hello.stream in self.broken:
            raise from_name(*self.broken[hello.stream])
        sessions = len(self._registry.sessions)
        if sessions >= self._most:
            raise RefusedError(
                f"{sessions} sessions are open, which is all that RLIMIT_NOFILE allows; "
                "raise the hard limit (ulimit -Hn)"
            )
        # A client that comes back to a successor still pins memory of the old one with the batch
        # that it holds: had it to wait until that fits into the ceiling beside the new segment, it
        # would wait for itself. The system's own limits still count.
        held = 0 if hello.order else hello.held_bytes
        held += self._before_bytes or 0
        if self._registry.group_for(hello.stream, admitted):
            return admitted  # its memory is reserved, or on the way
        shared = admitted.share_window > 0
        what = f"stream {hello.stream!r}"
        why = self._budget.shortage(what, admitted.segment, held, shared=shared)
        if why and self._before_bytes is not None:
            raise NoRoomYet
        if why:
            raise RefusedError(why)
        return admitted

    def _register(
        self, peer: Peer, hello: Hello, stream: OpenedStream, admitted: AdmittedStream
    ) -> None:
        """Make a session of a client that may have one."""
        group = self._registry.group_for(hello.stream, admitted)
        if admitted.bytes > LONG_RESERVATION and not (group and group.attached):
            self._control.send(
                peer, Starting(f"reserving {resource_limits.size(admitted.bytes)} of shared memory")
            )
        if peer.ended:
            return  # found out just now, and nothing has been made for it yet
        warnings = self._warnings(hello.stream, stream, admitted)
        self._registry.register(peer, hello, stream, admitted, warnings, group)

    def _warnings(
        self, name: str, stream: OpenedStream, admitted: AdmittedStream
    ) -> tuple[str, ...]:
        """What the user of a new session has to know."""
        others = [other.admitted for other in self._registry.of_stream(name)]
        unlike = rank_agreement.disagreement(name, admitted, others)
        if unlike:
            self._log("warning", "ranks_differ", unlike, stream=name)
        alone = share_agreement.disagreement(name, admitted, others)
        alone = alone or self._registry.why_apart(name, admitted)
        if alone:
            self._log("warning", "shares_with_nobody", alone, stream=name)
        shared = bool(self._outdated and self._registry.sessions)
        old_code = self._changes.old_code(shared=shared) if stream.facts.code else ""
        replay = REPLAYS if self._replay else ""
        return tuple(text for text in (old_code, unlike, alone, replay) if text)

    def _explained(self, error: LoaderdError, hello: Hello) -> LoaderdError:
        """With a note where a daemon that reads the config now might not refuse the client."""
        if (
            not isinstance(error, ConfigError)
            or hello.config not in ("", self._config_path)
            or not self._changes.config_changed()
        ):
            return error
        return ConfigError(
            f"{error}\n{self._config_path} has changed since this daemon started, which goes on "
            f"with the old settings (`loaderd drain {self._config_path}` ends it)"
        )

    def _refuse(self, peer: Peer, error: LoaderdError) -> None:
        text = str(error) if len(str(error)) <= MAX_REFUSAL else f"{str(error)[:MAX_REFUSAL]} ..."
        more = self._rarely.ask(text, self._loop.now_s())
        if more is not None:
            self._log("warning", "client_refused", f"client ({peer}) refused: {text}{more}")
        self._control.reject(peer, type(error).__name__, text)
