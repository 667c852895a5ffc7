from __future__ import annotations

import os
from pathlib import Path

import pytest

from loaderd_client import ConfigError
from loaderd_client.endpoint import Endpoint, outdated
from loaderd_wire.paths import default_socket


def test_a_config_without_a_socket_has_the_default_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/9")
    config = tmp_path / "c.toml"
    config.write_text("[daemon]\ndrain_s = 1\n")
    assert Endpoint.of(str(config)).find() == default_socket(str(config), os.environ, os.getuid())


def test_a_configs_socket_is_relative_to_its_folder_and_expanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAME", "mine")
    config = tmp_path / "c.toml"
    config.write_text('[daemon]\nsocket = "run/${NAME}.sock"\n')
    link = tmp_path / "other.toml"
    link.symlink_to(config)
    assert Endpoint.of(str(link)).find() == str(tmp_path / "run/mine.sock")


def test_a_regular_file_of_any_name_is_a_config(tmp_path: Path) -> None:
    config = tmp_path / "train.conf"
    config.write_text("")
    assert Endpoint.of(str(config)).config == str(config)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[daemon", "not TOML"),
        ('daemon.socket = "${UNSET_NAME}/x"', "UNSET_NAME"),
        (f'daemon.socket = "{"x" * 120}"', "too long"),
    ],
)
def test_a_config_whose_socket_cannot_be_found_is_named(
    tmp_path: Path, text: str, words: str
) -> None:
    config = tmp_path / "c.toml"
    config.write_text(text)
    with pytest.raises(ConfigError, match=words):
        Endpoint.of(str(config)).find()


@pytest.mark.parametrize("text", ["daemon = 3", "[daemon]\nsocket = 3", ""])
def test_what_else_is_wrong_with_a_config_is_the_daemons_to_say(tmp_path: Path, text: str) -> None:
    config = tmp_path / "c.toml"
    config.write_text(text)
    assert Endpoint.of(str(config)).find().endswith(".sock")


def test_a_python_without_a_toml_parser_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    config = tmp_path / "c.toml"
    config.write_text("")
    monkeypatch.setattr("loaderd_client.endpoint.import_module", missing)
    with pytest.raises(ConfigError, match=r"pip install 'loaderd\[daemon\]'"):
        Endpoint.of(str(config)).find()


@pytest.mark.parametrize(("later_s", "warned"), [(-1, False), (0, False), (1, True)])
def test_a_config_written_to_after_its_daemon_began_to_serve_it_is_outdated(
    tmp_path: Path, later_s: int, warned: bool
) -> None:
    config, socket = tmp_path / "c.toml", tmp_path / "d.sock"
    for path, time_s in ((config, 1000 + later_s), (socket, 1000)):
        path.touch()
        os.utime(path, (time_s, time_s))
    text = outdated(str(config), str(socket))
    assert bool(text) == warned
    assert not warned or text.startswith(f"{config} has changed since its daemon started, ")
    socket.unlink()
    assert outdated(str(config), str(socket)) == ""
