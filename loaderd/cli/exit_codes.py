"""How a command ends: exit codes, and the error that carries one."""

from __future__ import annotations

import importlib.util
import os

from loaderd.system import address_space

FINE, FAULTS, USAGE, NO_START, FAULT = 0, 1, 2, 3, 4
BROKEN_OFF = 130  # by Ctrl-C, as a shell has it

# What the extra brings, by the name it is imported under.
EXTRA = {
    "lmdb": "lmdb",
    "simplejpeg": "simplejpeg",
    "cv2": "opencv-python-headless",
    "PIL": "pillow",
    "rich": "rich",
    "tomli": "tomli",
}


class CommandError(Exception):
    """One to three lines for the user, with the setting to change, and the exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def need(*modules: str) -> None:
    """Look whether these modules of the extra can be had; imports none of them.

    Raises CommandError that names the extra, if one is not installed, or `ulimit -v`, if that keeps
    them from being loaded.
    """
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise missing(module)
    small = address_space.too_small(modules)
    if small:
        raise CommandError(small, NO_START)


def need_proc() -> None:
    """Check that the kernel tells of processes: workers are started and watched by that.

    Raises:
        CommandError: It does not.
    """
    if not os.path.exists("/proc/self/stat"):
        raise CommandError(
            "/proc is not mounted, or does not show this process: mount it (mount -t proc proc "
            "/proc)",
            NO_START,
        )


def missing(module: str) -> CommandError:
    """The error for a module of the extra [daemon] that is not installed; returned, not raised."""
    return CommandError(
        f"{EXTRA[module]} is not installed: pip install 'loaderd[daemon]'", NO_START
    )
