"""What a config says of workers on other hosts, which Ray starts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loaderd.config.table import Table, key, keys_of
from loaderd.config.types import Flag, Say, Text, Whole, join, port, show

RESOURCES = "a table of Ray's resources with amounts: {CPU = 1}"


@dataclass(frozen=True, slots=True)
class Resources:
    """A table of resources, each with an amount above 0."""

    def read(self, value: Any, say: Say) -> Any:
        """The table as written: resource -> amount, an int or a float."""
        if not isinstance(value, dict):
            say("", f"{show(value)} is not {RESOURCES}")
            return {}
        for name, amount in value.items():
            if not name:
                say(join("", name), "is not the name of a resource")
            elif type(amount) not in (int, float) or not math.isfinite(amount) or amount <= 0:
                say(join("", name), f"{show(amount)} is not an amount above 0")
        return value

    def schema(self) -> dict[str, Any]:
        """Amounts above 0."""
        return {
            "type": "object",
            "propertyNames": {"minLength": 1},
            "additionalProperties": {"type": "number", "exclusiveMinimum": 0},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RayConfig:
    """The table [workers.ray]."""

    address: str = key(
        Text(
            r"auto|(ray://)?([^:/\s]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}",
            '"auto", "host:port" or "ray://host:port"',
            port,
        ),
        'The Ray cluster: "auto" for the one that this host belongs to, the "host:port" of its '
        'head, or "ray://host:port" from outside of it.',
        "auto",
    )
    num_workers: int = key(
        Whole(1, 1024),
        "Workers on other hosts of the cluster, beside those on this one. As many are used as Ray "
        "finds room for.",
        1,
    )
    resources: Mapping[str, float] = key(
        Resources(), "What each of them takes of Ray's resources.", {"CPU": 1}
    )
    stage: bool = key(
        Flag(),
        "Whether a node copies the databases to its own disk before it reads them.",
        False,
    )


RAY = Table(keys_of(RayConfig))


@dataclass(frozen=True, slots=True)
class RaySection:
    """The table [workers.ray], read as a `RayConfig`."""

    def read(self, value: Any, say: Say) -> Any:
        """What the table says, with every default in place."""
        return RayConfig(**RAY.read(value, say))

    def schema(self) -> dict[str, Any]:
        """That of the table."""
        return RAY.schema()
