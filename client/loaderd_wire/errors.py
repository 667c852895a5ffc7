"""What a user may have to catch. Both sides raise these; the wire carries them as (class name, text, bad samples)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BadSample:
    """One sample that could not be made.

    index: its place in the dataset. key: its name (source name, LMDB key or index). position: its place in the epoch's order.
    stage: "read", "decode", "transform", "write", "collate" or "check". traceback: the worker's, as text, may be empty.
    substitute: with on_error = "replace" the index that took its place, else None.
    """

    index: int
    key: str
    position: int
    stage: str
    error: str
    message: str
    traceback: str = ""
    substitute: int | None = None

    def line(self) -> str:
        return f"sample {self.key!r} (index {self.index}) failed in {self.stage}: {self.error}: {self.message}"


class LoaderdError(RuntimeError):
    """Base of all errors that loaderd raises."""


class ConfigError(LoaderdError, ValueError):
    """An argument, a config value or a state that does not fit."""


class Refused(LoaderdError):
    """The daemon will not admit this client: memory, user, protocol version."""


class StreamFailed(LoaderdError):
    """The stream has ended on a fault: max_errors, a crash loop, user code that cannot boot."""


class StallError(LoaderdError):
    """No batch within timeout_s; the text tells what it waited for. The iterator may go on."""


class DaemonGone(LoaderdError):
    """The daemon left and none came back within reconnect_s."""


class StreamChanged(LoaderdError):
    """The data or the config is no longer what this stream began with."""


class ProtocolError(LoaderdError):
    """A peer said something that the protocol does not know."""


class SampleError(LoaderdError):
    """A batch that holds bad samples under on_error = "raise". The iterator may go on with the next batch.

    `index`, `key`, `stage` and `remote_traceback` are those of the first bad sample; `errors` has all of them.
    """

    def __init__(self, text: str, errors: tuple[BadSample, ...] = ()) -> None:
        super().__init__(text)
        self.errors = errors
        first = errors[0] if errors else None
        self.index = first.index if first else None
        self.key = first.key if first else None
        self.stage = first.stage if first else None
        self.remote_traceback = first.traceback if first else ""

    def __reduce__(self) -> tuple[type[SampleError], tuple[str, tuple[BadSample, ...]]]:
        return SampleError, (str(self), self.errors)


CLASSES: dict[str, type[LoaderdError]] = {
    cls.__name__: cls for cls in (ConfigError, Refused, StreamFailed, StallError, DaemonGone, StreamChanged, ProtocolError, SampleError)
}


def by_handler(error: BaseException, package: str = "") -> bool:
    """Whether an error that was just caught was raised by a signal's handler that ran inside the `try`, and not by what was called there: C code,
    or code of `package`. Whoever turns errors into others must let those of a handler pass.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace is error.__traceback__:
        return False
    name: str = trace.tb_frame.f_globals.get("__name__", "")
    return not package or name.split(".")[0] != package


def from_name(name: str, text: str) -> LoaderdError:
    """The error that a peer named; an unknown name becomes a ProtocolError that quotes it."""
    cls = CLASSES.get(name)
    return cls(text) if cls else ProtocolError(f"the daemon reported an unknown error {name!r}: {text}")
