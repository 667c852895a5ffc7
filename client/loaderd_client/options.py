"""The arguments of a Loader, checked once."""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypedDict

from loaderd_client import config_keys, ranks
from loaderd_client.endpoint import Endpoint
from loaderd_wire.errors import ConfigError
from loaderd_wire.hints import few, nearest
from loaderd_wire.limits import (
    CLIENT_FIELDS,
    MAX_INT,
    MAX_PREFETCH,
    MAX_RANKS,
    MAX_ROWS,
    PART_FIELD,
)

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

# DataLoader's other arguments, and what to use here instead.
INSTEAD = {
    "dataset": "give the daemon's socket or its config file as the first argument",
    "shuffle": "set [streams.NAME] shuffle in the daemon's config",
    "sampler": (
        "set [streams.NAME] shuffle and split in the daemon's config; ranks are rank= and "
        "world_size=, or mesh="
    ),
    "batch_sampler": "use batch_size=, and [streams.NAME] shuffle and split in the daemon's config",
    "num_workers": "set [workers] num_workers in the daemon's config",
    "prefetch_factor": "use prefetch=, the number of finished batches ahead of the trainer",
    "collate_fn": (
        "set [streams.NAME] collate in the daemon's config, to the name of the function"
    ),
    "pin_memory_device": "leave it out: pin_memory=True is for the current GPU",
    "timeout": "use timeout_s=",
    "worker_init_fn": "set [workers] init in the daemon's config",
    "persistent_workers": "leave it out: the daemon's workers outlive every epoch",
    "multiprocessing_context": "set [workers] start_method in the daemon's config",
    "generator": "use seed=; the order is a function of (seed, epoch)",
    "in_order": "leave it out: batches always come in order",
    "snapshot_every_n_steps": "leave it out: state_dict() is exact after every step",
    "num_replicas": "use world_size=",
    "share": "use shared=, or set [streams.NAME] share in the daemon's config",
    "transform": "set [[streams.NAME.transforms]] in the daemon's config",
}
DEVICE = re.compile(r"auto|(cpu|cuda|xpu|mps)(:[0-9]{1,3})?")
DTYPES = ("float16", "bfloat16", "float32")
MAX_AHEAD = 64  # batches on the device


@dataclass(frozen=True, slots=True)
class Normalization:
    """How images are normalized on the device.

    Attributes:
        mean: One number a channel.
        std: One number above 0 a channel.
        fields: Names of the images; empty: all with so many channels.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """A Loader's arguments, as given; None means the stream's own setting."""

    source: Endpoint
    stream: str
    batch_size: int | None
    seed: int | None
    drop_last: bool | None
    rank: int | None
    world_size: int | None
    prefetch: int
    fields: tuple[str, ...] | None
    as_tuple: bool | None
    output: str
    device: str | None
    device_prefetch: int
    pin_memory: bool
    normalize: Normalization | None
    dtype: str | None
    shared: bool | None
    timeout_s: float
    reconnect_s: float
    stall_warning_s: float

    def __str__(self) -> str:
        """As the Loader prints that has them."""
        named = f", stream={self.stream!r}" if self.stream else ""
        return f"Loader({self.source.config or self.source.socket!r}{named})"

    @property
    def label(self) -> str:
        """The stream in a text."""
        return f"stream {self.stream!r}" if self.stream else "the only stream"

    @property
    def asked(self) -> tuple[str, ...] | None:
        """The fields to ask the daemon for, and "__part__", for which it must say what it knows."""
        if self.fields is None:
            return None
        return tuple(f for f in self.fields if f not in CLIENT_FIELDS or f == PART_FIELD)


class Keywords(TypedDict, total=False):
    """Keyword arguments of Loader as type checkers see them; its docstring says what they mean."""

    batch_size: int | None
    seed: int | None
    drop_last: bool | None
    rank: int | None
    world_size: int | None
    mesh: DeviceMesh | None
    prefetch: int
    fields: list[str] | tuple[str, ...] | None
    timeout_s: float
    reconnect_s: float
    stall_warning_s: float
    device: str | torch.device | None
    device_prefetch: int
    pin_memory: bool
    normalize: Mapping[str, Sequence[float] | Sequence[str]] | None
    dtype: str | torch.dtype | None
    shared: bool | None


def check(
    source: Any, stream: Any, others: dict[str, object], given: dict[str, Any]
) -> LoaderOptions:
    """Raises ConfigError: the first argument that cannot be, its value, and what to change."""
    _strangers(others)
    if not isinstance(source, (str, os.PathLike)) or not os.fspath(source):
        dataset = (
            '; a Dataset is named in that file: [streams.NAME] dataset = "pkg.module:Class"'
            if hasattr(type(source), "__getitem__")  # pyright: ignore[reportUnknownArgumentType] - anything may be given
            and not isinstance(source, (str, bytes))
            else ""
        )
        raise ConfigError(
            f"source={source!r:.80}: give the path of the daemon's socket or of its config file "
            f"(.toml){dataset}"
        )
    found = Endpoint.of(os.fspath(source))
    stream = _stream(stream, found)
    mesh = given.pop("mesh")
    if mesh is not None:
        if given["rank"] is not None or given["world_size"] is not None:
            raise ConfigError("mesh= is given with rank= or world_size=: give one of them")
        given["rank"], given["world_size"] = ranks.of_mesh(mesh)
    for name, low, high in (
        ("batch_size", 1, MAX_ROWS),
        ("seed", 0, MAX_INT),
        ("rank", 0, MAX_RANKS),
        ("world_size", 1, MAX_RANKS),
    ):
        if given[name] is not None:
            given[name] = _whole(name, given[name], low, high, " or None")
    given["prefetch"] = _whole("prefetch", given["prefetch"], 1, MAX_PREFETCH)
    for name in ("drop_last", "as_tuple", "shared"):
        if given[name] is not None and not isinstance(given[name], bool):
            raise ConfigError(
                f"{name}={given[name]!r}: use True, False, or None for the stream's own"
            )
    if not isinstance(given["pin_memory"], bool):
        raise ConfigError(f"pin_memory={given['pin_memory']!r}: use True or False")
    for name in ("timeout_s", "reconnect_s", "stall_warning_s"):
        given[name] = _seconds(name, given[name])
    _ranks(given["rank"], given["world_size"])
    given["fields"] = _fields(given["fields"])
    _output(given["output"])
    _device(given)
    return LoaderOptions(source=found, stream=stream, **given)


def _stream(stream: Any, source: Endpoint) -> str:
    """The stream's name.

    Left out, it is the only one of a config, or "" for the only one of a daemon: of a socket nobody
    knows yet which there are.
    """
    if isinstance(stream, str) and stream:
        return stream
    names = source.streams() if stream is None else ()
    if len(names) == 1:
        return names[0]
    if stream is None and not source.config:
        return ""
    which = (
        f"there are {few([repr(name) for name in names])}"
        if names
        else "name one of the [streams] of the daemon's config"
    )
    raise ConfigError(
        f"stream={stream!r}: which one? {which}, as in stream={names[0] if names else 'train'!r}"
    )


def _strangers(others: dict[str, object]) -> None:
    for name, value in others.items():
        table = config_keys.table_of(name)
        instead = INSTEAD.get(name, f"set {table} {name} in the daemon's config" if table else "")
        if instead:
            raise ConfigError(f"{name}={value!r:.80}: not an argument of Loader; {instead}")
        known = [f.name for f in fields(LoaderOptions)] + ["mesh"]
        near = nearest(name, [*known, *config_keys.every_key()])
        hint = (
            f"known are {', '.join(known)}"
            if near is None
            else f"did you mean {near}=?"
            if near in known
            else f"did you mean {near} in {config_keys.table_of(near)} of the daemon's config?"
        )
        raise ConfigError(f"{name}={value!r:.80}: no such argument; {hint}")


def _whole(name: str, value: Any, low: int, high: int, also: str = "") -> int:
    try:
        number = None if isinstance(value, bool) else value.__index__()
    except AttributeError:
        number = None
    if number is None or not low <= number <= high:
        raise ConfigError(f"{name}={value!r}: use a whole number from {low} to {high}{also}")
    return number


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ConfigError(f"{name}={value!r}: use a number of seconds above 0")
    return float(value)


def _ranks(rank: int | None, world_size: int | None) -> None:
    if (rank is None) != (world_size is None):
        raise ConfigError(f"rank={rank!r}, world_size={world_size!r}: give both or neither")
    if rank is not None and world_size is not None and rank >= world_size:
        raise ConfigError(f"rank={rank}: must be below world_size={world_size}")


def _output(output: Any) -> None:
    if output not in ("torch", "numpy"):
        raise ConfigError(f"output={output!r}: use 'torch' or 'numpy'")
    if output == "torch" and importlib.util.find_spec("torch") is None:
        raise ConfigError(
            "output='torch': torch is not installed here; install it, or use output='numpy'"
        )


def _device(given: dict[str, Any]) -> None:
    """Check what says where batches are put. A torch.device or torch.dtype becomes its name."""
    device, dtype = given["device"], given["dtype"]
    given["device_prefetch"] = _whole("device_prefetch", given["device_prefetch"], 1, MAX_AHEAD)
    if device is not None:
        given["device"] = str(device)
        if not DEVICE.fullmatch(given["device"]):
            raise ConfigError(
                f"device={device!r}: use 'cuda', 'cuda:1', 'xpu', 'mps', 'cpu', 'auto' for the "
                "GPU of LOCAL_RANK if there is one, or None"
            )
        if given["device"].startswith("cpu:"):  # frameworks number the processes of a host
            given["device"] = "cpu"
    if dtype is not None:
        given["dtype"] = str(dtype).removeprefix("torch.")
        if given["dtype"] not in DTYPES:
            raise ConfigError(f"dtype={dtype!r}: use {' or '.join(map(repr, DTYPES))}, or None")
    given["normalize"] = _normalization(given["normalize"])
    if given["output"] == "numpy":
        for name in ("device", "pin_memory", "normalize", "dtype"):
            if given[name] and given[name] != "cpu":
                raise ConfigError(
                    f"{name}={given[name]!r} needs output='torch'; leave it out with output='numpy'"
                )


def _normalization(value: Any) -> Normalization | None:
    if value is None:
        return None
    wrong = ConfigError(
        f"normalize={value!r:.80}: use {{'mean': [...], 'std': [...]}} with one number a channel, "
        "those of std above 0, and perhaps 'fields': [...] with names of images"
    )
    try:
        entries: dict[str, Any] = dict(value)
        mean, std = (tuple(float(n) for n in entries.pop(name)) for name in ("mean", "std"))
        fields = _fields(entries.pop("fields", None)) or ()
    except (KeyError, TypeError, ValueError):
        raise wrong from None
    finite = all(map(math.isfinite, (*mean, *std)))
    if entries or not mean or len(mean) != len(std) or not finite or min(std) <= 0:
        raise wrong
    return Normalization(mean, std, fields)


def _fields(names: Any) -> tuple[str, ...] | None:
    if names is None:
        return None
    if isinstance(names, (list, tuple)):
        asked: list[Any] = list(names)  # pyright: ignore[reportUnknownArgumentType] - checked here
        if asked and all(isinstance(n, str) and n for n in asked) and len(set(asked)) == len(asked):
            return tuple(asked)
    raise ConfigError(
        f"fields={names!r}: use a list of different field names, as in ['image', 'label'], or "
        "None for all"
    )
