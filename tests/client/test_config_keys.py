from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from loaderd.config.ray import RAY
from loaderd.config.schema import DAEMON, STREAM, WORKERS
from loaderd_client import ConfigError, Loader
from loaderd_client.config_keys import TABLES, every_key, table_of
from loaderd_client.options import INSTEAD, LoaderOptions


def test_they_are_the_keys_of_a_config() -> None:
    own = {"[daemon]": DAEMON, "[workers]": WORKERS, "[workers.ray]": RAY, "[streams.NAME]": STREAM}
    assert {name: sorted(keys.split()) for name, keys in TABLES.items()} == {
        name: sorted(table.keys) for name, table in own.items()
    }


@pytest.mark.parametrize(
    "key", sorted({*every_key()} - {each.name for each in fields(LoaderOptions)} - {*INSTEAD})
)
def test_a_key_of_the_config_as_an_argument_is_told_its_table(key: str) -> None:
    made: dict[str, Any] = {key: 8}
    with pytest.raises(ConfigError) as caught:
        Loader("/tmp/d.sock", "train", **made)
    assert str(caught.value) == (
        f"{key}=8: not an argument of Loader; set {table_of(key)} {key} in the daemon's config"
    )


def test_a_misspelt_key_of_the_config_gets_the_right_name_and_its_table() -> None:
    with pytest.raises(ConfigError, match=r"did you mean share_window in \[streams.NAME\] of the"):
        Loader("/tmp/d.sock", "train", share_windw=8)  # pyright: ignore[reportCallIssue]
