"""What the harnesses share.

Each is run by hand, as long as one likes; needs `pip install atheris`, which is no part of the
tests:

    python tests/fuzz/codec.py -max_total_time=600

libFuzzer's options. It starts from a few valid inputs and stops at the first crash, hang or
exception that the contract does not name; what it finds becomes a test. crop.c, jpeg.c and rows.c
are for the code in C: `make fuzz` (run.py) builds and runs those.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

atheris: Any = import_module("atheris")  # no part of what the checks have installed


def fuzz(target: Callable[[bytes], None], seeds: Iterable[bytes]) -> None:
    """Does not return."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    for i, seed in enumerate(seeds):
        (folder / f"seed-{i}").write_bytes(seed)
    atheris.Setup([*sys.argv, str(folder)], target)
    atheris.Fuzz()
