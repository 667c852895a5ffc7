"""What other processes say to a test."""

from __future__ import annotations

import subprocess
from typing import AnyStr


def line_of(process: subprocess.Popen[AnyStr]) -> AnyStr:
    """The next line that a process writes; its stdout is a pipe."""
    assert process.stdout is not None
    return process.stdout.readline()
