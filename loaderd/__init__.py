"""loaderd: a daemon that makes batches, and the `Loader` that takes them.

`from loaderd import Loader` is the same as `from loaderd_client import Loader`, and imports the
client only then. README.md beside this file is the architecture.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loaderd_client import (
        BadSample,
        Batch,
        ConfigError,
        DaemonGoneError,
        DictBatch,
        Loader,
        LoaderdError,
        ProtocolError,
        RefusedError,
        SampleError,
        StallError,
        StreamChangedError,
        StreamFailedError,
        TupleBatch,
        normalize,
    )

__version__ = "0.1.0"

__all__ = [
    "BadSample",
    "Batch",
    "ConfigError",
    "DaemonGoneError",
    "DictBatch",
    "Loader",
    "LoaderdError",
    "ProtocolError",
    "RefusedError",
    "SampleError",
    "StallError",
    "StreamChangedError",
    "StreamFailedError",
    "TupleBatch",
    "__version__",
    "normalize",
]

if not TYPE_CHECKING:  # a type checker must see which names exist

    def __getattr__(name: str) -> object:
        """A public name of the client, which is imported now.

        Raises AttributeError for any other name.
        """
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import loaderd_client

        return getattr(loaderd_client, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
