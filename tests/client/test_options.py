from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaderd_client import ConfigError, Loader
from loaderd_client.options import INSTEAD


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("batch_size", 0),
        ("batch_size", True),
        ("batch_size", 2.0),
        ("batch_size", 1 << 21),
        ("seed", -1),
        ("seed", "1"),
        ("drop_last", 1),
        ("as_tuple", "yes"),
        ("prefetch", 0),
        ("prefetch", None),
        ("fields", "image"),
        ("fields", []),
        ("fields", ["a", "a"]),
        ("fields", [1]),
        ("output", "jax"),
        ("timeout_s", 0),
        ("timeout_s", float("nan")),
        ("reconnect_s", "60"),
        ("stall_warning_s", True),
        ("rank", 0),
        ("world_size", 2),
        ("stream", ""),
        ("stream", 3),
        ("source", 7),
        ("source", ""),
        ("batchsize", 8),
        ("device", "gpu"),
        ("device", 0),
        ("device_prefetch", 0),
        ("pin_memory", 1),
        ("dtype", "int8"),
        ("shared", 1),
        ("normalize", (0, 1)),
        *((name, 1) for name in INSTEAD),
    ],
)
def test_a_bad_argument_is_named_with_its_value(argument: str, value: Any) -> None:
    arguments = {"source": "/tmp/d.sock", "stream": "train", argument: value}
    with pytest.raises(ConfigError) as caught:
        Loader(**arguments)
    assert argument in str(caught.value)
    assert repr(value) in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_a_misspelt_argument_gets_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="batch_size"):
        Loader("/tmp/d.sock", "train", batchsize=8)  # pyright: ignore[reportCallIssue]


def test_a_dataset_instead_of_a_config_is_told_where_its_class_is_named() -> None:
    class Squares:
        def __getitem__(self, index: int) -> int:
            return index * index

    with pytest.raises(ConfigError, match=r'\[streams.NAME\] dataset = "pkg.module:Class"'):
        Loader(Squares(), "train")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "normalize",
    [
        {"mean": [0.5]},
        {"mean": [0.5], "std": [0]},
        {"mean": [0.5], "std": [0.5, 0.5]},
        {"mean": [0.5], "std": [0.5], "fields": ["a", "a"]},
        {"mean": [float("nan")], "std": [0.5]},
        {"mean": [0.5], "std": [0.5], "scale": 1},
        "imagenet",
    ],
)
def test_how_images_are_normalized_must_be_complete(normalize: Any) -> None:
    with pytest.raises(ConfigError, match=r"one number a channel|different field names"):
        Loader("/tmp/d.sock", "train", normalize=normalize)


@pytest.mark.parametrize(
    "options",
    [
        {"device": "cuda"},
        {"pin_memory": True},
        {"normalize": {"mean": [0.5], "std": [0.5]}},
        {"dtype": "float16"},
    ],
)
def test_what_is_for_tensors_is_refused_with_arrays(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="needs output='torch'"):
        Loader("/tmp/d.sock", "train", output="numpy", **options)


def test_a_cpu_with_a_number_as_accelerate_says_it_is_the_cpu() -> None:
    one, other = (Loader("/tmp/d.sock", "train", device=name) for name in ("cpu:1", "cpu"))
    assert one._arguments == other._arguments


def test_an_impossible_rank_names_both() -> None:
    with pytest.raises(ConfigError, match=r"rank=2.*world_size=2"):
        Loader("/tmp/d.sock", "train", rank=2, world_size=2)


def test_numpys_whole_numbers_are_whole_numbers() -> None:
    numbers: Any = {"batch_size": np.int64(8), "rank": np.int32(0), "world_size": np.int32(1)}
    loader = Loader("/tmp/d.sock", "train", **numbers)
    assert loader.batch_size == 8
    assert type(loader.batch_size) is int


def test_a_path_too_long_for_a_socket_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="too long"):
        Loader("/tmp/" + "x" * 120, "train")


def test_a_config_that_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such config"):
        Loader(tmp_path / "none.toml", "train")
    with pytest.raises(ConfigError, match="a folder; give the daemon's socket or its config file"):
        Loader(tmp_path, "train")


def test_a_relative_path_is_resolved_at_construction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loader = Loader("d.sock", "train")
    monkeypatch.chdir("/")
    assert os.path.join(tmp_path, "d.sock") in repr(loader)


def test_torch_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match="torch is not installed here; install it, or use output='numpy'"
    ):
        Loader("/tmp/d.sock", "train")
    Loader("/tmp/d.sock", "train", output="numpy")


@pytest.mark.parametrize(
    "streams", ["[streams.train]\nlmdb = 'x'\n", "[streams]\ntrain = {lmdb = 'x'}"]
)
def test_the_only_stream_of_a_config_needs_no_name(tmp_path: Path, streams: str) -> None:
    config = tmp_path / "c.toml"
    config.write_text(streams)
    assert "stream='train'" in repr(Loader(config))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[streams.train]\n[streams.val]",
            r"^stream=None: which one\? there are 'train', 'val', as in stream='train'$",
        ),
        (
            "[streams]",
            r"^stream=None: which one\? name one of the \[streams\] of the daemon's config, as in "
            r"stream='train'$",
        ),
        ("streams = 3", "which one"),
        ("[streams", "not TOML"),
    ],
)
def test_a_stream_that_does_not_go_without_saying_is_asked_for(
    tmp_path: Path, text: str, words: str
) -> None:
    config = tmp_path / "c.toml"
    config.write_text(text)
    with pytest.raises(ConfigError, match=words):
        Loader(config)


def test_of_a_socket_the_daemon_knows_the_only_stream(tmp_path: Path) -> None:
    assert repr(Loader(tmp_path / "d.sock")) == f"Loader('{tmp_path}/d.sock')"
    with pytest.raises(ConfigError, match="which one"):
        Loader(tmp_path / "d.sock", "")
