"""Names of the sockets: the same from everywhere, different for different configs, never too long
in silence.
"""

from __future__ import annotations

import posixpath

import pytest

from loaderd_wire.paths import (
    BAD,
    LOCK,
    LOG,
    MAX_SOCKET_BYTES,
    MESSAGES,
    default_socket,
    run_folder,
    run_folders,
    too_long,
)


def test_sockets_lie_in_the_users_runtime_folder_or_in_a_private_one_under_tmp() -> None:
    assert run_folder({"XDG_RUNTIME_DIR": "/run/user/1000"}, 1000) == "/run/user/1000/loaderd"
    assert run_folder({}, 1000) == "/tmp/loaderd-1000"
    assert run_folder({"XDG_RUNTIME_DIR": ""}, 0) == "/tmp/loaderd-0"
    assert run_folder({"XDG_RUNTIME_DIR": "relative/run"}, 5) == "/tmp/loaderd-5", (
        "a relative runtime folder was believed"
    )


def test_a_default_socket_names_its_config_and_its_absolute_path() -> None:
    socket = default_socket("/data/my config.v2.toml", {}, 7)
    assert socket == "/tmp/loaderd-7/my-config-v2-" + socket[-13:-5] + ".sock"
    assert socket == default_socket("/data/my config.v2.toml", {}, 7)
    assert socket[-13:-5].isalnum()


def test_two_configs_of_one_name_have_two_sockets() -> None:
    assert default_socket("/a/train.toml", {}, 7) != default_socket("/b/train.toml", {}, 7)


def test_a_default_socket_has_not_changed_since_it_was_frozen() -> None:
    assert (
        default_socket("/data/train.toml", {"XDG_RUNTIME_DIR": "/run/user/7"}, 7) == GOLDEN_SOCKET
    )


@pytest.mark.parametrize(
    "config",
    ["/data/.toml", "/data/日本.toml", "/data/" + "x" * 200 + ".toml", "/data/***.toml", "/"],
)
def test_a_strange_config_name_still_makes_a_short_plain_socket_name(config: str) -> None:
    socket = default_socket(config, {}, 4_000_000_000)
    assert too_long(socket) is None
    assert socket.isascii()
    assert " " not in socket


def test_a_relative_config_is_refused() -> None:
    with pytest.raises(ValueError, match="absolute"):
        default_socket("train.toml", {}, 7)


def test_a_default_socket_fits_however_long_the_runtime_folder_is() -> None:
    for size in range(20, 120):
        env = {"XDG_RUNTIME_DIR": "/" + "r" * size}
        for config in ("/data/t.toml", f"/data/{'t' * 40}.toml"):
            socket = default_socket(config, env, 7)
            assert too_long(socket) is None
            assert posixpath.dirname(socket) in run_folders(env, 7)
    assert run_folders({"XDG_RUNTIME_DIR": "/run/user/7"}, 7) == ("/run/user/7/loaderd",)


def test_a_path_is_too_long_by_the_bytes_of_the_longer_socket() -> None:
    fits = "/" + "s" * (MAX_SOCKET_BYTES - len(MESSAGES) - 1)
    assert too_long(fits) is None
    assert f"has {MAX_SOCKET_BYTES + 1} bytes" in (too_long(fits + "s") or "")
    assert too_long("/" + "ß" * 60) is not None, "characters were counted, not bytes"


def test_what_lies_beside_the_socket_has_names_of_its_own() -> None:
    assert len({MESSAGES, LOCK, LOG, BAD}) == 4


GOLDEN_SOCKET = "/run/user/7/loaderd/train-90f806b4.sock"
