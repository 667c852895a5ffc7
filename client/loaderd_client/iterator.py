"""What a Loader gives to training loops and frameworks: its iterator, and the attributes of a
DataLoader that frameworks read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic

from loaderd_client.batch import BatchType
from loaderd_client.options import INSTEAD
from loaderd_wire.errors import ConfigError

if TYPE_CHECKING:
    from loaderd_client.loader import Loader

# Of what a Loader itself is asked for, and what to do instead of assigning it.
READ_ONLY = {
    "epoch": "use loader.set_epoch()",
    "batch_size": "give Loader batch_size=",
    "drop_last": "give Loader drop_last=",
    "prefetch": "give Loader prefetch=",
    "seed": "give Loader seed=",
    "rank": "give Loader rank= and world_size=",
    "world_size": "give Loader rank= and world_size=",
    "classes": "they come from the database",
    "stream": "give Loader stream=",
    "source": "give Loader the daemon's socket or its config file",
    "fields": "give Loader fields=",
    "as_tuple": "give Loader as_tuple=",
    "output": "give Loader output=",
    "timeout_s": "give Loader timeout_s=",
    "reconnect_s": "give Loader reconnect_s=",
    "stall_warning_s": "give Loader stall_warning_s=",
    "dataset": "set [streams.NAME] dataset or lmdb in the daemon's config",
}


class BatchIterator(Generic[BatchType]):
    """An iterator over the rest of an epoch; `iter(loader)` makes it.

    After an error it may go on with `next()`. Its state is that of its Loader.
    """

    def __init__(self, loader: Loader[BatchType], take: Callable[[int], Any], number: int) -> None:
        self._loader = loader
        self._take = take
        self._number = number

    def __iter__(self) -> BatchIterator[BatchType]:
        """The iterator itself."""
        return self

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
        return self._take(self._number)

    def state_dict(self) -> dict[str, object]:
        """As `Loader.state_dict`."""
        return self._loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """As `Loader.load_state_dict`."""
        self._loader.load_state_dict(state_dict)


class Fixed:
    """An object that is made anew each time that it is asked for: what is assigned to it would be
    lost, and is an error.
    """

    if not TYPE_CHECKING:  # which refuses on its own what is not there to be assigned

        def __setattr__(self, name: str, value: object) -> None:
            if not name.startswith("_"):
                raise unsettable(f"loader.{type(self).__name__.lower()}.{name}", value)
            super().__setattr__(name, value)


class Sampler(Fixed):
    """What `loader.sampler` is: frameworks call its `set_epoch`."""

    def __init__(self, loader: Loader[Any]) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        """As `Loader.set_epoch`."""
        self._loader.set_epoch(epoch)


class Dataset(Fixed):
    """What `loader.dataset` is: it has a length, and no samples to look at."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        """Number of samples of an epoch, of all ranks together."""
        return self._samples


def unsettable(what: str, value: object) -> ConfigError:
    name = what.rpartition(".")[2]
    how = {**INSTEAD, **READ_ONLY}.get(
        name, "it cannot be set here; it is made again each time that it is asked for"
    )
    return ConfigError(f"{what} = {value!r:.60}: {how}")


class LikeDataLoader:
    """Attributes of a DataLoader that frameworks read.

    To assign one is an error that says what to do instead.
    """

    batch_sampler = None  # batches are cut by the daemon
    num_workers = 0  # in this process
    collate_fn = None
    pin_memory = False
    pin_memory_device = ""
    timeout = 0
    worker_init_fn = None
    persistent_workers = False
    prefetch_factor = None
    multiprocessing_context = None
    generator = None

    if not TYPE_CHECKING:  # which refuses on its own what is not there to be assigned

        def __setattr__(self, name: str, value: object) -> None:
            if name in INSTEAD or name in READ_ONLY:  # any other one is its user's own
                raise unsettable(f"loader.{name}", value)
            super().__setattr__(name, value)
