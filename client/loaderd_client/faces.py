"""The faces of a Loader that a framework looks for: its iterator, a sampler that takes an epoch, a dataset that has a length."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loaderd_client.loader import Loader


class Batches:
    """An iterator of a Loader; after an error other than the end it may go on. State goes through it as through its loader."""

    def __init__(self, loader: Loader, take: Callable[[int], Any], number: int) -> None:
        self._loader = loader
        self._take = take
        self._number = number

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        """The next batch. Raises StopIteration at the epoch's end and once a newer iterator exists, and every error of `errors`."""
        return self._take(self._number)

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._loader.load_state_dict(state_dict)


class Sampler:
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        self._loader.set_epoch(epoch)


class Dataset:
    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        """Samples of an epoch, over all ranks."""
        return self._samples
