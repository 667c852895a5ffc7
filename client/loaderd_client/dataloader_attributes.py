"""The attributes of a DataLoader that frameworks read of a Loader."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from loaderd_client.options import INSTEAD
from loaderd_wire.errors import ConfigError
from loaderd_wire.slices import rows_of_epoch

if TYPE_CHECKING:
    from loaderd_client.delivery import Delivery
    from loaderd_client.options import LoaderOptions

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
    "device": "give Loader device=",
    "device_prefetch": "give Loader device_prefetch=",
    "pin_memory": "give Loader pin_memory=",
    "normalize": "give Loader normalize=",
    "dtype": "give Loader dtype=",
    "shared": "give Loader shared=",
    "timeout_s": "give Loader timeout_s=",
    "reconnect_s": "give Loader reconnect_s=",
    "stall_warning_s": "give Loader stall_warning_s=",
    "dataset": "set [streams.NAME] dataset or lmdb in the daemon's config",
}


class Fixed:
    """An object that is made anew each time that it is asked for.

    What is assigned to it would be lost, and is an error.
    """

    if not TYPE_CHECKING:  # which refuses on its own what is not there to be assigned

        def __setattr__(self, name: str, value: object) -> None:
            if not name.startswith("_"):
                raise unsettable(f"loader.{type(self).__name__.lower()}.{name}", value)
            super().__setattr__(name, value)


class Sampler(Fixed):
    """What `loader.sampler` is: frameworks call its `set_epoch`."""

    def __init__(self, loader: DataLoaderAttributes, delivery: Delivery) -> None:
        self._loader = loader
        self._delivery = delivery

    def set_epoch(self, epoch: int) -> None:
        """As `Loader.set_epoch`."""
        self._loader.set_epoch(epoch)

    def __len__(self) -> int:
        """Number of samples that this rank gets in an epoch. Connects to the daemon."""
        self._delivery.welcome()
        shape = self._delivery.shape
        return rows_of_epoch(shape) if shape else 0


class Dataset(Fixed):
    """What `loader.dataset` is: it has a length, and no samples to look at."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        """Number of samples of an epoch, of all ranks together."""
        return self._samples

    def __getitem__(self, index: object) -> NoReturn:
        """Refuse: the samples are in the daemon.

        Raises:
            ConfigError: Always.
        """
        raise no_sample("loader.dataset", index)


def no_sample(what: str, index: object) -> ConfigError:
    """The error for who asks for a single sample.

    Args:
        what: What was asked, as the user writes it.
        index: For which one.
    """
    return ConfigError(
        f"{what}[{index!r:.60}]: the samples are in the daemon; iterate over the Loader itself, "
        "without a DataLoader or a sampler around it"
    )


def unsettable(what: str, value: object) -> ConfigError:
    """The error for an assignment, which says where the setting is.

    Args:
        what: What was assigned to, as the user writes it.
        value: What was assigned.
    """
    name = what.rpartition(".")[2]
    how = {**INSTEAD, **READ_ONLY}.get(
        name, "it cannot be set here; it is made again each time that it is asked for"
    )
    return ConfigError(f"{what} = {value!r:.60}: {how}")


class DataLoaderAttributes:
    """What frameworks read of a `torch.utils.data.DataLoader`, with a Loader's own values.

    To assign one is an error that says where the setting is.

    Attributes:
        batch_sampler: None: the daemon cuts the batches.
        num_workers: 0: no worker belongs to this process.
        collate_fn: None: the daemon's workers collate.
    """

    batch_sampler = None
    num_workers = 0
    collate_fn = None
    pin_memory_device = ""
    timeout = 0
    persistent_workers = False
    prefetch_factor = None
    multiprocessing_context = None
    generator = None

    if TYPE_CHECKING:
        _arguments: LoaderOptions
        _delivery: Delivery

        def set_epoch(self, epoch: int) -> None:
            """As `Loader.set_epoch`."""

    else:  # type checkers refuse both on their own

        def __setattr__(self, name: str, value: object) -> None:
            if name in INSTEAD or name in READ_ONLY:  # any other one is its user's own
                raise unsettable(f"loader.{name}", value)
            super().__setattr__(name, value)

        def __getitem__(self, index: object) -> NoReturn:
            """Refuse: a DataLoader around a Loader asks for samples, which are in the daemon.

            Raises:
                ConfigError: Always.
            """
            raise no_sample("loader", index)

    @staticmethod
    def worker_init_fn(worker_id: int) -> None:
        """Nothing. The daemon's workers are seeded for each sample, and call `[workers] init`.

        It is there because Lightning sets one where there is none.
        """

    @property
    def in_order(self) -> NoReturn:
        """Refused: only who makes a DataLoader of a DataLoader's attributes asks for it.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            "this Loader was to be made into a DataLoader, but its samples are in the daemon: "
            "iterate over the Loader itself. Instead of accelerate's skip_first_batches() use "
            "loader.load_state_dict(); a Trainer of transformers needs ignore_data_skip=True"
        )

    @property
    def batch_size(self) -> int:
        """Rows of a batch of this rank. Connects to the daemon if the stream decides."""
        return self._arguments.batch_size or self._delivery.welcome().batch_size

    @property
    def drop_last(self) -> bool:
        """Whether an epoch leaves out rows at its end. Connects if the stream decides."""
        given = self._arguments.drop_last
        return self._delivery.welcome().drop_last if given is None else given

    @property
    def dataset(self) -> Dataset:
        """`len(loader.dataset)`: samples of an epoch, of all ranks. Connects to the daemon."""
        return Dataset(self._delivery.welcome().samples)

    @property
    def pin_memory(self) -> bool:
        """Whether CPU tensors were asked for in page-locked memory."""
        return self._arguments.pin_memory

    @property
    def sampler(self) -> Sampler:
        """Has `set_epoch`, where Lightning looks for it, and as its length this rank's samples."""
        return Sampler(self, self._delivery)
