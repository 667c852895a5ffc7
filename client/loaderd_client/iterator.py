"""The faces of a Loader that a framework looks for: its iterator, a sampler that takes an epoch, a dataset that has a length."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

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


class BatchIterator:
    """An iterator of a Loader; after an error other than the end it may go on. State goes through it as through its loader."""

    def __init__(self, loader: Loader, take: Callable[[int], Any], number: int) -> None:
        self._loader = loader
        self._take = take
        self._number = number

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> Any:
        """The next batch. Raises StopIteration at the epoch's end and once a newer iterator exists, and every error of `errors`."""
        return self._take(self._number)

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._loader.load_state_dict(state_dict)


class Fixed:
    """A face that says nothing but what it is: whatever is assigned to it would be lost."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            raise unsettable(f"loader.{type(self).__name__.lower()}.{name}", value)
        super().__setattr__(name, value)


class Sampler(Fixed):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        self._loader.set_epoch(epoch)


class Dataset(Fixed):
    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        """Samples of an epoch, over all ranks."""
        return self._samples


def unsettable(what: str, value: Any) -> ConfigError:
    name = what.rpartition(".")[2]
    how = {**INSTEAD, **READ_ONLY}.get(name, "it cannot be set here; it is made anew each time that it is asked for")
    return ConfigError(f"{what} = {value!r:.60}: {how}")


class LikeDataLoader:
    """What frameworks read of a DataLoader, and what its users assign to one. Only reading is of any use here."""

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

    def __setattr__(self, name: str, value: Any) -> None:
        if name in INSTEAD or name in READ_ONLY:  # any other one is its user's own
            raise unsettable(f"loader.{name}", value)
        super().__setattr__(name, value)
