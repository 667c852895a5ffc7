"""The Loader: what a training loop iterates over."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, overload

from loaderd_client.batch import Array, BatchType, DictBatch, TupleBatch
from loaderd_client.dataloader_attributes import DataLoaderAttributes
from loaderd_client.delivery import Delivery
from loaderd_client.iterator import BatchIterator
from loaderd_client.options import LoaderOptions, check
from loaderd_client.state import LoaderState
from loaderd_client.stats import LoaderStats
from loaderd_wire.errors import ConfigError
from loaderd_wire.slices import MAX_EPOCH, steps_left

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from typing_extensions import Self, Unpack  # type checkers bring it themselves

    from loaderd_client.options import Keywords


class Loader(DataLoaderAttributes, Generic[BatchType]):
    """The batches of one stream of a loaderd daemon, for one rank of a training.

    Example:
        from loaderd import Loader

        loader = Loader("config.toml", stream="train", batch_size=256)
        for epoch in range(90):
            loader.set_epoch(epoch)
            for batch in loader:
                train_step(batch["image"].to(device), batch["label"].to(device))

    A Loader takes the place of `torch.utils.data.DataLoader` in a training loop. Making one
    only checks its arguments. The first `len()`, `next()`, `state_dict()`, or property that
    depends on the data connects it to the daemon.

    Batches: A batch is a dict of tensors by field name, or a tuple (`as_tuple`), with the
    attributes `epoch`, `step`, `rows`, `indices`, `sample_keys` and `errors`. Fields of numbers
    have the shape (rows, ...) and the dtype that the stream gives them; `print(batch)` shows both.
    Images are uint8 of shape (rows, channels, height, width) unless a transform makes them
    float32; with `output="numpy"` they are (rows, height, width, channels). Text is a list of str.
    Tensors belong to you: you may keep them and write to them.

    Order: Batches come in the order of their steps. The order of the samples is a function of
    seed and epoch. `state_dict()` says where the training is, also in the middle of an epoch;
    after `load_state_dict()` exactly the rest follows, also with another number of ranks.

    Errors: All are a `LoaderdError`. In a `for` loop an error ends the loop. After `SampleError`
    and `StallError` you may go on with `next()` of the same iterator.

        ConfigError         an argument, a setting or a state does not fit
        SampleError         this batch has samples that cannot be made; the next one may be good
        StallError          no batch came within `timeout_s`; the text says what it waits for
        DaemonGoneError     no daemon was there within `reconnect_s`
        RefusedError        the daemon does not admit this process: memory, user, version
        StreamFailedError   the stream has ended on a fault: too many bad samples, code that fails
        StreamChangedError  the data or the config changed during the training
        ProtocolError       the daemon sent an invalid message

    A daemon that goes away is waited for, and the batches go on at the same place. A Loader can be
    pickled. It cannot be used after a fork, nor by two threads at once.

    Types: `Loader` alone, for a type checker, gives dicts of tensors: `DictBatch[torch.Tensor]`.
    With `output="numpy"` or `as_tuple=True` it gives `DictBatch[numpy.ndarray]` or `TupleBatch`.
    """

    @overload
    def __init__(
        self: Loader[DictBatch[torch.Tensor]],
        source: str | os.PathLike[str],
        stream: str | None = None,
        *,
        as_tuple: Literal[False] | None = None,
        output: Literal["torch"] = "torch",
        **keywords: Unpack[Keywords],
    ) -> None: ...
    @overload
    def __init__(
        self: Loader[TupleBatch[torch.Tensor]],
        source: str | os.PathLike[str],
        stream: str | None = None,
        *,
        as_tuple: Literal[True],
        output: Literal["torch"] = "torch",
        **keywords: Unpack[Keywords],
    ) -> None: ...
    @overload
    def __init__(
        self: Loader[DictBatch[Array]],
        source: str | os.PathLike[str],
        stream: str | None = None,
        *,
        as_tuple: Literal[False] | None = None,
        output: Literal["numpy"],
        **keywords: Unpack[Keywords],
    ) -> None: ...
    @overload
    def __init__(
        self: Loader[TupleBatch[Array]],
        source: str | os.PathLike[str],
        stream: str | None = None,
        *,
        as_tuple: Literal[True],
        output: Literal["numpy"],
        **keywords: Unpack[Keywords],
    ) -> None: ...
    def __init__(
        self,
        source: str | os.PathLike[str],
        stream: str | None = None,
        *,
        batch_size: int | None = None,
        seed: int | None = None,
        drop_last: bool | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: DeviceMesh | None = None,
        prefetch: int = 4,
        fields: list[str] | tuple[str, ...] | None = None,
        as_tuple: bool | None = None,
        output: Literal["torch", "numpy"] = "torch",
        device: str | torch.device | None = None,
        device_prefetch: int = 1,
        pin_memory: bool = False,
        normalize: Mapping[str, Sequence[float] | Sequence[str]] | None = None,
        dtype: str | torch.dtype | None = None,
        shared: bool | None = None,
        timeout_s: float = 300,
        reconnect_s: float = 60,
        stall_warning_s: float = 10,
        **others: object,
    ) -> None:
        """Make a Loader. It connects to nothing yet.

        Args:
            source: Path of a daemon's socket, or of its config file (`.toml`). With a config
                file a daemon is started if none runs, and it leaves with its last user.
            stream: Name of one of the `[streams]` of the daemon's config. May be left out with a
                config file that has one stream.
            batch_size: Rows of a batch of this rank. None: as the stream says.
            seed: Decides the order of samples and random transforms. None: as the stream says.
            drop_last: Whether an epoch leaves out the rows at its end that do not fill a batch on
                every rank. None: as the stream says.
            rank: Which part of each step this process gets, from 0. None: as torch.distributed
                says if it is initialised, else as the environment variables RANK and WORLD_SIZE
                say, else 0 of 1.
            world_size: Number of ranks. Give both `rank` and `world_size`, or neither.
            mesh: Instead of both, the data-parallel dimension of a DeviceMesh, as in `mesh["dp"]`.
                Ranks that differ only in the mesh's other dimensions, such as those of tensor
                parallelism, get the same batches.
            prefetch: Number of finished batches ahead of the training. There is memory for
                `prefetch + 2` batches.
            fields: Names of the fields to deliver, in this order. None: all fields. "__index__"
                (int64) and "__key__" (str) are the place and the name of each sample.
                "__repeated__" (bool) is true for samples that another rank has, too.
                "__part__" (str) is the database that a sample comes from.
            as_tuple: True for tuples, False for dicts. None: as the stream says, which is a dict
                for every LMDB.
            output: "torch" for tensors, "numpy" for arrays.
            device: Where the tensors are to be: "cuda", "cuda:1", "xpu", "mps", "cpu", a
                torch.device, or "auto": the GPU of LOCAL_RANK, or the CPU where there is no GPU.
                Texts and bytes stay on the host. None: on the CPU.
            device_prefetch: Number of batches that are sent to a GPU ahead of the training, from 1
                to 64.
            pin_memory: CPU tensors lie in page-locked memory, so that
                `batch.to(device, non_blocking=True)` does not hold up the training. Does nothing
                with `device=`, which needs no such help.
            normalize: {"mean": [...], "std": [...]}: uint8 images become
                (image / 255 - mean) / std, on the device. One number a channel. With "fields":
                [...] only these images do.
            dtype: "float16", "bfloat16", "float32" or a torch.dtype: what uint8 images become on
                the device. None: float32 with `normalize`, else they stay uint8.
            shared: Whether trainers that want the same batches, such as several trials of one
                model, get each of them from one making. A batch is then copied for each trainer.
                None: as the stream says.
            timeout_s: Seconds that a call waits for its batch, or for a daemon that starts,
                before it raises StallError.
            reconnect_s: Seconds that a call waits where no daemon is, before it raises
                DaemonGoneError.
            stall_warning_s: Seconds of waiting after which the log says what is waited for.
            **others: Every other name is an error. For an argument of DataLoader it says what to
                use instead.

        Raises:
            ConfigError: An argument has a value that it cannot have, or a name that is unknown.
        """
        given = {
            "batch_size": batch_size,
            "seed": seed,
            "drop_last": drop_last,
            "rank": rank,
            "world_size": world_size,
            "mesh": mesh,
            "prefetch": prefetch,
            "fields": fields,
            "as_tuple": as_tuple,
            "output": output,
            "device": device,
            "device_prefetch": device_prefetch,
            "pin_memory": pin_memory,
            "normalize": normalize,
            "dtype": dtype,
            "shared": shared,
            "timeout_s": timeout_s,
            "reconnect_s": reconnect_s,
            "stall_warning_s": stall_warning_s,
        }
        self._set_up(check(source, stream, others, given), None)

    def _set_up(self, arguments: LoaderOptions, state: LoaderState | None) -> None:
        self._arguments = arguments
        self._delivery = Delivery(arguments, state)

    # Iteration

    def __iter__(self) -> BatchIterator[BatchType]:
        """Begin a pass through an epoch.

        The pass takes its epoch and position at its first `next()`. It ends an earlier iterator of
        this Loader. The pass after it goes through the next epoch.

        Returns:
            An iterator over the rest of the epoch; its `next()` returns a batch.

        Raises:
            LoaderdError: The Loader is closed, or was copied by a fork.
        """
        delivery = self._delivery
        return BatchIterator(self, delivery.next, delivery.iterate(), delivery.cursor)

    def __len__(self) -> int:
        """Number of batches of a whole epoch, the same on every rank. Connects to the daemon."""
        self._delivery.welcome()
        shape = self._delivery.shape
        return steps_left(shape, 0) if shape else 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass. The passes after it count on from there.

        An iterator that has not given a batch yet takes this epoch, too. The epoch of a state that
        was just loaded keeps the state's position.

        Args:
            epoch: From 0 to 2**60.

        Raises:
            ConfigError: `epoch` is no such number.
        """
        if (
            isinstance(epoch, bool)
            or not hasattr(epoch, "__index__")
            or not 0 <= epoch.__index__() <= MAX_EPOCH
        ):
            raise ConfigError(f"set_epoch({epoch!r}): use a whole number from 0 to 2**60")
        self._delivery.set_epoch(epoch.__index__())

    def state_dict(self) -> dict[str, Any]:
        """Say where the training is.

        It counts the batches that `next()` has returned, not those made ahead. Connects to the
        daemon if nothing has yet. Cheap, and may be called in a signal handler.

        Returns:
            What `load_state_dict` takes: a small dict of the types that JSON has, the same on
            every rank.
        """
        return self._delivery.state().to_dict()

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Go on where a state says, with the next `next()` of an iterator.

        `world_size` and `batch_size` may be others than those of the state.

        Args:
            state_dict: What `state_dict` returned.

        Raises:
            ConfigError: This is no state, or it belongs to another order of samples. If nothing
                has connected yet, the call that connects raises the second.
        """
        self._delivery.load(LoaderState.from_dict(state_dict))

    # What it is

    @property
    def epoch(self) -> int:
        """The epoch of the running pass, or of the next one if none runs."""
        return self._delivery.epoch

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the labels, by number; empty if the data has none. Connects to the daemon."""
        return self._delivery.welcome().classes

    def stats(self) -> LoaderStats:
        """What this Loader has done so far, in numbers.

        Returns:
            A dict with these entries:
                batches: Number of batches that `next()` returned.
                waited_s: Seconds spent waiting for a batch or for the daemon.
                started_s: Of these, seconds until a daemon that was not ready had started.
                wait_fraction: `waited_s` as a fraction of the time since the first `next()`.
                bytes: Size of the arrays of these batches.
                copied_batches: Batches that were copied because too many were held at once.
                passed_batches: Batches left out because they had lost all their rows.
                device_bytes: Bytes that a GPU has copied from the batches.
                device_copy_s: Seconds that it took for them.
                device_gb_per_s: The one by the other, in GB/s (10**9 bytes).
                verdict: Who waits for whom, as the daemon last said: such as "decode-bound: ...",
                    with what would help most.
                shared: Whether batches that other trainers want, too, are made once for all.
        """
        return self._delivery.stats_so_far()

    def close(self) -> None:
        """End the session with the daemon, and a `next()` that waits in another thread.

        Batches stay valid. A second call does nothing. `with Loader(...) as loader:` closes, too.
        """
        self._delivery.close()

    def __enter__(self) -> Self:
        """The Loader itself; it is closed at the end of the `with` block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """As `close`."""
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle its arguments and its place. The copy connects for itself."""
        return _restored, (type(self), self._arguments, self._delivery.state_so_far())

    def __repr__(self) -> str:
        """Its source and its stream."""
        return str(self._arguments)


def _restored(cls: type[Loader[Any]], arguments: LoaderOptions, state: LoaderState) -> Loader[Any]:
    loader = cls.__new__(cls)
    loader._set_up(arguments, state)  # pyright: ignore[reportPrivateUsage] - this is how a Loader comes out of a pickle
    return loader
