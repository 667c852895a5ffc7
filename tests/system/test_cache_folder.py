"""The user's cache folder."""

from __future__ import annotations

import os

import pytest

from loaderd.system.cache_folder import cache_folder


def test_without_a_home_no_folder_is_called_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    # as for a uid that the machine does not know
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert cache_folder({}, "check") == f"/tmp/loaderd-{os.getuid()}/check"
    assert cache_folder({"XDG_RUNTIME_DIR": "/run/user/7"}, "a") == "/run/user/7/loaderd/a"
    assert cache_folder({"XDG_CACHE_HOME": "/cache"}, "keys") == "/cache/loaderd/keys"
