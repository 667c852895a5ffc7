"""RLIMIT_AS (`ulimit -v`): how many bytes a process may map, libraries included."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence

WAIT_S = 120.0


def limit() -> int | None:
    """The bytes that this process may map; None for any number."""
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def too_small(modules: Sequence[str]) -> str:
    """ "" or why these modules cannot be loaded.

    Some libraries end the process if they cannot, so a child tries it. Without a limit that costs
    nothing.
    """
    most = limit()
    if most is None:
        return ""
    child = [sys.executable, "-c", f"import {', '.join(['numpy', *modules])}"]
    import subprocess  # only a limit needs it

    try:
        done = subprocess.run(child, capture_output=True, timeout=WAIT_S, check=False)
    except subprocess.TimeoutExpired:
        return ""  # a machine as slow as that is no sign of a small limit
    except OSError as error:
        return f"{_said(most)}, and no process can be started: {error.strerror}; raise it"
    if done.returncode == 0:
        return ""
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    why = f": {lines[-1]}" if lines else ""
    return f"{_said(most)}, too little for the libraries of a worker; raise it or lift it{why}"


def hint() -> str:
    """What to add to the reason for which a process could not start; "" without a limit."""
    most = limit()
    return "" if most is None else f"; {_said(most)}, which may be too little"


def _said(most: int) -> str:
    return f"this process may map {most >> 20:,} MiB in all (ulimit -v)"
