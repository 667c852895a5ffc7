"""Where the batches of a Loader are put: page-locked host memory, or a device."""

from __future__ import annotations

import importlib
import os
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, cast

from loaderd_client.devices.interface import Device, Mark, Tensor, Uses
from loaderd_client.log import warn
from loaderd_client.options import LoaderOptions
from loaderd_client.stats import Stats
from loaderd_wire.errors import ConfigError


class Arrival:
    """A batch that is on its way to a device, or there.

    Attributes:
        copied: Behind the copies from its slot; None where they are over.
    """

    __slots__ = ("_device", "_ready", "_tensors", "copied")

    def __init__(
        self, device: Device, copied: Mark | None, ready: Mark, sent: list[Tensor]
    ) -> None:
        self.copied = copied
        self._device = device
        self._ready = ready
        self._tensors = sent

    def hand_over(self) -> None:
        """The trainer gets it: its current stream waits until the batch is there."""
        self._device.hand_over(self._ready, self._tensors)


class _Copy(NamedTuple):
    begin: Mark
    end: Mark
    bytes: int


class Placement:
    """What a Loader wants of a device, for all of its sessions.

    Attributes:
        device: None before `open`, and where there is nothing to do.
        sends: Batches are copied to the device. Else they stay in host memory.
    """

    def __init__(self, arguments: LoaderOptions, stats: Stats) -> None:
        """Look at no device yet.

        Args:
            arguments: What the Loader was asked for.
            stats: Where the copies are counted.
        """
        self.device: Device | None = None
        self._arguments = arguments
        self._stats = stats
        self._under_way: deque[_Copy] = deque()
        self._finish: Any = None
        self._finished: tuple[str, ...] = ()  # names of the fields that are normalized or converted
        asked = arguments
        self.sends = bool(asked.normalize or asked.dtype or asked.device not in (None, "cpu"))
        self._wanted = self.sends or asked.pin_memory

    @property
    def ahead(self) -> int:
        """How many batches are sent ahead of the one that the trainer asks for."""
        running = self.sends and self.device is not None and self.device.asynchronous
        return self._arguments.device_prefetch if running else 0

    def open(self, images: Mapping[str, int]) -> None:
        """Look for the device, before the first batch. Imports torch.

        Args:
            images: Names of the fields that hold uint8 images -> number of channels, 0 where each
                batch may have another.

        Raises:
            ConfigError: There is no such device, or nothing that `normalize` or `dtype` are for.
        """
        if not self._wanted or self.device is not None:
            return
        from loaderd_client import torch_backend

        asked = self._arguments
        self._finished = _images_to_finish(asked, images)
        self._finish = torch_backend.Finish(asked.normalize, asked.dtype)
        self.device = _found(asked.device or "cpu") if self.sends else _pinning()
        self._wanted = False

    def send(
        self, values: Mapping[str, Any], pictures: Collection[str], *, shared: bool = False
    ) -> tuple[dict[str, Any], Arrival]:
        """Begin to copy a batch to the device.

        Args:
            values: Field name -> array, list of arrays, or list of texts.
            pictures: Names of the fields that are images, (rows, height, width, channels).
            shared: The arrays may change once this has returned: they are copied on the host first.

        Returns:
            The fields as tensors on the device, and the way that they are on.
        """
        from loaderd_client import torch_backend

        device = self.device
        assert device is not None
        self._count()
        sent: list[Tensor] = []
        size = 0
        with device.copying():
            begin = device.mark()

            def put(array: Any, picture: bool) -> Tensor:
                nonlocal size
                size += array.nbytes
                there = device.send(device.pinned(array) if shared else torch_backend.tensor(array))
                if picture:
                    there = torch_backend.channels_first(there)
                sent.append(there)
                return there

            there: dict[str, Any] = {}
            for name, value in values.items():
                if not isinstance(value, list):
                    there[name] = put(value, name in pictures)
                    continue
                items = cast("list[Any]", value)
                arrays = bool(items) and hasattr(items[0], "nbytes")
                there[name] = [put(each, name in pictures) for each in items] if arrays else items
            copied = device.mark()
            for name in self._finished:
                there[name] = self._finish(there[name])
            ready = device.mark() if self._finished else copied
        if device.asynchronous:
            self._under_way.append(_Copy(begin, copied, size))
        return there, Arrival(device, copied if device.asynchronous else None, ready, sent)

    def uses(self) -> Uses | None:
        """Keeps in mind which work reads a batch in page-locked memory; else None."""
        return Uses(self.device) if self.device is not None and not self.sends else None

    def _count(self) -> None:
        """Count the copies that are over."""
        device, under_way = self.device, self._under_way
        assert device is not None
        while under_way and not device.capturing() and under_way[0].end.done():
            copy = under_way.popleft()
            self._stats.copied_to_device(copy.bytes, device.busy_s(copy.begin, copy.end))


def _images_to_finish(asked: LoaderOptions, images: Mapping[str, int]) -> tuple[str, ...]:
    """Which fields `normalize` and `dtype` are for. Raises ConfigError if there is none."""
    normalize = asked.normalize
    if normalize is None and asked.dtype is None:
        return ()
    what = "dtype" if normalize is None else "normalize"
    if not images:
        raise ConfigError(
            f"{what}=: this stream delivers no uint8 images, which is what it is for; leave it out"
        )
    if normalize is None:
        return tuple(images)
    channels = len(normalize.mean)
    named = normalize.fields or tuple(n for n, c in images.items() if c in (0, channels))
    for name in named or tuple(images)[:1]:
        if images.get(name, -1) not in (0, channels):
            has = f"{images[name]} channels" if name in images else "no uint8 images"
            raise ConfigError(
                f"normalize=: mean and std have {channels} numbers, and field {name!r} has {has}; "
                "give one number a channel"
            )
    return named


def _gpu(name: str, index: int | None = None) -> Device:
    """The GPU of this name, "cuda" or "cuda:1".

    Args:
        name: Its name; without a number it is the current one.
        index: Its number, if the name is not to be asked.

    Raises:
        ConfigError: It is not there.
    """
    cuda = importlib.import_module("loaderd_client.devices.cuda")
    if not cuda.available():
        raise ConfigError(
            f"device={name!r}: torch finds no GPU here (torch.cuda.is_available() is False); use "
            "device='auto' for a GPU where there is one, or leave it out"
        )
    _, _, written = name.partition(":")
    number = int(written) if written else cuda.current() if index is None else index
    if number >= cuda.devices():
        raise ConfigError(
            f"device={name!r}: there is no GPU {number}; this process sees {cuda.devices()} "
            "(CUDA_VISIBLE_DEVICES, LOCAL_RANK)"
        )
    return cuda.CudaDevice(number)


def _gpu_of_rank(name: str) -> Device:
    """The GPU of LOCAL_RANK; the CPU where there is no GPU."""
    cuda = importlib.import_module("loaderd_client.devices.cuda")
    if not cuda.available():
        return _other("cpu")
    rank = os.environ.get("LOCAL_RANK") or "0"
    if not (rank.isascii() and rank.isdigit()):
        raise ConfigError(
            f"environment variable LOCAL_RANK={rank!r} is not a whole number; correct it, or give "
            "device='cuda:0'"
        )
    return _gpu(name, int(rank))


def _other(name: str) -> Device:
    plain = importlib.import_module("loaderd_client.devices.plain")
    try:
        return plain.PlainDevice(name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(f"device={name!r}: torch cannot use it here: {first}") from None


FINDERS: dict[str, Callable[[str], Device]] = {"cuda": _gpu, "auto": _gpu_of_rank}


def _found(name: str) -> Device:
    """Raises ConfigError where there is no such device."""
    return FINDERS.get(name.partition(":")[0], _other)(name)


def _pinning() -> Device | None:
    """The current GPU, whose driver page-locks memory; None without one, which is told."""
    try:
        return _found("cuda")
    except ConfigError:
        warn("pin_memory=True does nothing here: torch finds no GPU")
        return None
