"""What `iter(loader)` returns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, NoReturn

from loaderd_client.batch import BatchType
from loaderd_wire.slices import Cursor

if TYPE_CHECKING:
    from loaderd_client.loader import Loader

_modules = sys.modules  # torch's profiler can be on only where torch is imported


class BatchIterator(Generic[BatchType]):
    """An iterator over the rest of an epoch; `iter(loader)` makes it.

    After an error it may go on with `next()`. Its state is that of its Loader.
    """

    def __init__(
        self,
        loader: Loader[BatchType],
        take: Callable[[int], Any],
        number: int,
        cursor: Callable[[], Cursor],
    ) -> None:
        self._loader = loader
        self._take = take
        self._number = number
        self._cursor = cursor

    def __iter__(self) -> BatchIterator[BatchType]:
        """The iterator itself."""
        return self

    def __len__(self) -> int:
        """As that of its Loader: the batches of a whole epoch."""
        return len(self._loader)

    def __next__(self) -> BatchType:
        """Take the next batch; waits for it.

        Returns:
            A `DictBatch` or a `TupleBatch`.

        Raises:
            StopIteration: The epoch is over, or a newer iterator of this Loader exists.
            SampleError: The batch has samples that cannot be made. The next call goes on behind it.
            StallError: It did not come within `timeout_s`. The next call waits again.
            LoaderdError: Any other error; `help(Loader)` lists them.
        """
        autograd: Any = _modules.get("torch._C._autograd")
        if autograd is None or not autograd._profiler_enabled():
            return self._take(self._number)
        from loaderd_client.torch_backend import profiled_next

        with profiled_next(self._cursor()):
            return self._take(self._number)

    def __reduce__(self) -> NoReturn:
        """Refused: a session with the daemon cannot be copied."""
        raise TypeError(
            "an iterator of a Loader cannot be pickled or copied: pickle the Loader, which keeps "
            "its place"
        )

    def state_dict(self) -> dict[str, Any]:
        """As `Loader.state_dict`."""
        return self._loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """As `Loader.load_state_dict`."""
        self._loader.load_state_dict(state_dict)
