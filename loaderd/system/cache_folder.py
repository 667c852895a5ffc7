"""Where this user's programs keep what they can make again."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Mapping

from loaderd_wire import paths

KEPT_S = 30 * 86400.0  # what nobody has used for so long is removed; it can be made again


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


def age_s(written_s: float) -> float:
    """How long ago a file was written, by the clock that its time was taken from.

    Args:
        written_s: Its time of modification, in seconds since 1970.
    """
    return time.time() - written_s


def mark_used(path: str) -> None:
    """Have a kept file stay for `KEPT_S` more.

    Args:
        path: The file.
    """
    with contextlib.suppress(OSError):  # another user's, or gone meanwhile
        os.utime(path)


def remove_unused(folder: str) -> None:
    """Remove what nobody has used for `KEPT_S`.

    Whoever has mapped such a file keeps what it has mapped. Whoever opens it later makes it again.

    Args:
        folder: From `cache_folder`.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # another process removes it, too
                if age_s(_last_used_s(entry)) <= KEPT_S:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)


def _last_used_s(entry: os.DirEntry[str]) -> float:
    """When it, or the latest of what lies in it, was written or marked."""
    latest = entry.stat(follow_symlinks=False).st_mtime
    if entry.is_dir(follow_symlinks=False):
        with os.scandir(entry.path) as inside:
            latest = max([latest, *(each.stat(follow_symlinks=False).st_mtime for each in inside)])
    return latest
