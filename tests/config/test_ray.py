"""What a config says of workers on other hosts."""

from __future__ import annotations

import jsonschema
import pytest

from loaderd.config.load import parse, tomllib
from loaderd.config.ray import RayConfig, Resources
from loaderd_wire.errors import ConfigError

STREAM = '[streams.a]\nlmdb = "x"\n[workers.ray]\n'
SCHEMA = jsonschema.Draft202012Validator(Resources().schema())


def read(text: str) -> RayConfig | None:
    return parse(STREAM + text, "/c/run.toml", {}, 7).workers.ray


@pytest.mark.parametrize(
    ("resources", "told"),
    [
        ('"CPU"', ': "CPU" is not a table of Ray\'s resources with amounts: {CPU = 1}'),
        ("{CPU = 0}", ".CPU: 0 is not an amount above 0"),
        ("{CPU = -1}", ".CPU: -1 is not an amount above 0"),
        ("{CPU = true}", ".CPU: true is not an amount above 0"),
        ('{CPU = "1"}', '.CPU: "1" is not an amount above 0'),
        ('{"" = 1}', '."": is not the name of a resource'),
    ],
)
def test_resources_that_cannot_be_are_told(resources: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(f"resources = {resources}")
    assert str(caught.value) == f"/c/run.toml: workers.ray.resources{told}"
    assert not SCHEMA.is_valid(tomllib.loads(f"resources = {resources}")["resources"])


@pytest.mark.parametrize("resources", ["{}", "{CPU = 1}", '{GPU = 0.5, "a b" = 2}'])
def test_resources_are_what_is_written(resources: str) -> None:
    written = tomllib.loads(f"resources = {resources}")["resources"]
    ray = read(f"resources = {resources}")
    assert ray is not None
    assert ray.resources == written
    assert SCHEMA.is_valid(written)
