"""Where this user's programs keep what they can make again."""

from __future__ import annotations

import os
from collections.abc import Mapping

from loaderd_wire import paths


def cache_folder(env: Mapping[str, str], name: str) -> str:
    """The folder `name` of loaderd's in the user's cache folder; it need not exist.

    Args:
        env: The environment.
        name: What is kept there.
    """
    base = env.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.cache")
    if not os.path.isabs(base):  # nobody knows a home of this user
        return os.path.join(paths.run_folder(env, os.getuid()), name)
    return os.path.join(base, "loaderd", name)
