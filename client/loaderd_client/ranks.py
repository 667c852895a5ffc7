"""Which rank of how many this process is, and how its epochs are cut into steps."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loaderd_wire.errors import ConfigError, ProtocolError
from loaderd_wire.messages import Welcome
from loaderd_wire.slices import EpochShape, steps_left


@dataclass(frozen=True, slots=True)
class Rank:
    """Which rank of how many.

    Attributes:
        rank: From 0.
        world_size: Number of ranks.
        origin: Who told: "argument", "torch.distributed", "environment" or "default".
    """

    rank: int
    world_size: int
    origin: str


def settle(rank: int | None, world_size: int | None, env: Mapping[str, str]) -> Rank:
    """Find the rank of this process.

    It is that of the arguments, else that of torch.distributed if it is initialised, else that of
    RANK and WORLD_SIZE, else 0 of 1.

    Args:
        rank: As given to the Loader, or None.
        world_size: Likewise.
        env: The environment variables.

    Raises:
        ConfigError: The environment says only half of it, or what cannot be.
    """
    if rank is not None and world_size is not None:
        return Rank(rank, world_size, "argument")
    group = process_group()
    if group is not None:
        return Rank(*group, "torch.distributed")
    texts = {name: env[name] for name in ("RANK", "WORLD_SIZE") if env.get(name)}
    numbers: dict[str, int] = {}
    for name, text in texts.items():
        if not (text.isascii() and text.isdigit()):
            raise ConfigError(
                f"environment variable {name}={text!r} is not a whole number; correct it, or give "
                "rank= and world_size="
            )
        numbers[name] = int(text)
    if set(numbers) == {"RANK", "WORLD_SIZE"}:
        if numbers["RANK"] >= numbers["WORLD_SIZE"]:
            raise ConfigError(
                f"RANK={texts['RANK']} is not below WORLD_SIZE={texts['WORLD_SIZE']}; correct it, "
                "or give rank= and world_size="
            )
        return Rank(numbers["RANK"], numbers["WORLD_SIZE"], "environment")
    if "RANK" in numbers:
        raise ConfigError(
            f"RANK={texts['RANK']} is set without WORLD_SIZE; set both, or give rank= and "
            "world_size="
        )
    if numbers.get("WORLD_SIZE", 1) != 1:
        raise ConfigError(
            f"WORLD_SIZE={texts['WORLD_SIZE']} is set without RANK; set both, initialise "
            "torch.distributed first, or give rank= and world_size="
        )
    return Rank(0, 1, "default")


def still(settled: Rank) -> None:
    """Compare a rank that was settled with the process group's. An explicit argument is kept.

    Raises:
        ConfigError: A process group has come up since that says otherwise.
    """
    if settled.origin == "argument":
        return
    group = process_group()
    if group is not None and group != (settled.rank, settled.world_size):
        raise ConfigError(
            f"this Loader settled on rank {settled.rank} of {settled.world_size} (by "
            f"{settled.origin}), torch.distributed says rank "
            f"{group[0]} of {group[1]}; initialise the process group before the Loader's first "
            "use, or give rank= and world_size="
        )


def of_mesh(mesh: Any) -> tuple[int, int]:
    """Find the rank of this process in one dimension of a DeviceMesh, and the size of that.

    Args:
        mesh: A torch.distributed DeviceMesh of one dimension, such as `mesh["dp"]`.

    Raises:
        ConfigError: It is none, has several dimensions, or this process is not in it.
    """
    try:
        names, dimensions = mesh.mesh_dim_names, mesh.ndim
        place, size = mesh.get_coordinate(), mesh.size()
    except AttributeError:
        raise ConfigError(
            f"mesh={mesh!r:.80}: give one dimension of a torch.distributed DeviceMesh, as in "
            'mesh["dp"]'
        ) from None
    if dimensions != 1:
        which = ", ".join(names) if names else f"{dimensions} without names"
        raise ConfigError(
            f"mesh= has several dimensions ({which}): give the one of the data-parallel ranks, as "
            'in mesh["dp"]'
        )
    if place is None:
        raise ConfigError(
            f"this process is not in the mesh= of {size} ranks: give one that it is in, or rank= "
            "and world_size="
        )
    return int(place[0]), int(size)


def process_group() -> tuple[int, int] | None:
    """(rank, world size) of torch.distributed.

    torch is not imported for it: who has a process group has torch loaded.
    """
    if "torch" not in sys.modules:
        return None
    from loaderd_client import torch_backend

    return torch_backend.process_group()


def in_dataloader_worker() -> bool:
    """True inside a worker process of torch's DataLoader."""
    if "torch" not in sys.modules:
        return False
    from loaderd_client import torch_backend

    return torch_backend.in_dataloader_worker()


def epoch_shape(welcome: Welcome, rank: Rank) -> EpochShape:
    """How the epochs of a session are cut into steps.

    Raises:
        ValueError: The welcome has impossible numbers.
    """
    return EpochShape(
        welcome.samples,
        welcome.batch_size,
        rank.rank,
        rank.world_size,
        welcome.drop_last,
        uneven_tail=welcome.tail == "short",
        whole_batches=welcome.whole_batches,
    )


def settled_shape(welcome: Welcome, rank: Rank, label: str) -> EpochShape:
    """How the epochs of a new session are cut into steps.

    Args:
        welcome: What the daemon has admitted it with.
        rank: Which rank of how many this is.
        label: The stream in a text.

    Raises:
        ProtocolError: The welcome has impossible numbers.
        ConfigError: An epoch has no step.
    """
    try:
        shape = epoch_shape(welcome, rank)
    except ValueError as error:
        raise ProtocolError(str(error)) from None
    if not steps_left(shape, 0):
        raise ConfigError(
            f"an epoch of {label} has no whole step: {shape.samples} samples, "
            f"world_size={shape.world_size}, "
            f"batch_size={shape.batch_size}, drop_last=True; use drop_last=False or a smaller "
            "batch_size"
        )
    return shape
