"""The errors that users may have to catch, and the record of a bad sample.

Both sides raise these. A message carries an error as (class name, text).
"""

from __future__ import annotations

from dataclasses import dataclass

from loaderd_wire.plain_text import one_line


@dataclass(frozen=True, slots=True)
class BadSample:
    """A sample that could not be made.

    Attributes:
        index: Its place in the dataset.
        key: Its name: source name, LMDB key or index.
        position: Its place in the order of the epoch.
        stage: "read", "decode", "transform", "write", "collate" or "check".
        error: Name of the exception's class.
        message: Text of the exception.
        traceback: The worker's traceback as text; may be empty.
        substitute: With on_error = "replace" the index of the sample in its place, else None.
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
        """The sample and what is wrong with it, in one line."""
        return one_line(
            f"sample {self.key!r} (index {self.index}) failed in {self.stage}: {self.error}: "
            f"{self.message}"
        )


class LoaderdError(RuntimeError):
    """Base of all errors that loaderd raises."""


class ConfigError(LoaderdError, ValueError):
    """An argument, a config value or a loaded state does not fit."""


class RefusedError(LoaderdError):
    """The daemon does not admit this client: memory, user, or protocol version."""


class StreamFailedError(LoaderdError):
    """The stream has ended on a fault: max_errors, dying workers, user code that cannot start."""


class StallError(LoaderdError):
    """No batch came within timeout_s. The text says what it waited for. The iterator may go on."""


class DaemonGoneError(LoaderdError):
    """The daemon left, and none came back within reconnect_s."""


class StreamChangedError(LoaderdError):
    """The data or the config is no longer what this stream began with."""


class ProtocolError(LoaderdError):
    """A peer sent something that the protocol does not allow."""


class SampleError(LoaderdError):
    """A batch holds bad samples, with on_error = "raise". The iterator may go on behind it.

    Attributes:
        errors: All bad samples of the batch.
        index: `index` of the first one.
        key: `key` of the first one.
        stage: `stage` of the first one.
        remote_traceback: `traceback` of the first one.
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
    cls.__name__: cls
    for cls in (
        ConfigError,
        RefusedError,
        StreamFailedError,
        StallError,
        DaemonGoneError,
        StreamChangedError,
        ProtocolError,
        SampleError,
    )
}


def by_handler(error: BaseException, package: str = "") -> bool:
    """Whether an exception was raised by a signal handler that ran within the `try`.

    Code that turns errors into others must let such an exception pass.

    Args:
        error: The exception, just caught.
        package: The package that was called in the `try`; "" if that was C code. An exception that
            its code has raised is not a handler's.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace is error.__traceback__:
        return False
    name: str = trace.tb_frame.f_globals.get("__name__", "")
    return not package or name.split(".")[0] != package


def from_name(name: str, text: str) -> LoaderdError:
    """The error that a peer has named.

    Args:
        name: Name of a class of this module. An unknown one becomes a ProtocolError that quotes it.
        text: Its text.
    """
    cls = CLASSES.get(name)
    return (
        cls(text)
        if cls
        else ProtocolError(f"the daemon reported an unknown error {name!r}: {text}")
    )
