"""What makes the bytes of a stream's samples in this process, and a hash over some of them."""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import loaderd
import loaderd_wire
from loaderd.data import native_library
from loaderd.engine.scoreboard import StatusWriter
from loaderd.worker.probe import GOOD, rows_of
from loaderd.worker.streams import WorkerStream

SAMPLES = "samples"  # the name of the hash


def makers_of(stream: WorkerStream, line: StatusWriter) -> str:
    """Versions of all that has a say in the bytes of samples, and a hash over the first samples.

    Args:
        stream: An open stream that was probed: its first samples end no process.
        line: The worker's line of the status board.

    Returns:
        Names and texts, as JSON.
    """
    count = len(stream.first_indices(GOOD))
    rows = rows_of(stream, line, 0, count)
    digest = hashlib.blake2b(digest_size=8)
    for row in range(count):
        _feed(digest, rows.make(row))
    line.idle()
    found = {
        "loaderd": f"{loaderd.__version__} ({own_code()})",
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "numpy": np.__version__,
        "OpenCV": importlib.import_module("cv2").__version__,
        "Pillow": importlib.import_module("PIL").__version__,
        "simplejpeg": version("simplejpeg"),
        "native parts": ", ".join(name for name, there in native_library.present().items() if there)
        or "none",
    }
    torch: Any = sys.modules.get("torch")
    if torch is not None and stream.sample_pipeline.user_code:
        found["torch"] = str(torch.__version__)
    return json.dumps(found | {SAMPLES: digest.hexdigest()})


@functools.cache
def own_code() -> str:
    """A hash over the sources of loaderd, as they are installed here."""
    digest = hashlib.blake2b(digest_size=6)
    for package in (loaderd, loaderd_wire):
        folder = Path(str(package.__file__)).parent
        for path in sorted(folder.rglob("*.py")):
            digest.update(str(path.relative_to(folder)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    """Add a sample, or a part of one, to a hash."""
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        digest.update(f"{value.dtype.str}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, dict):
        for name in sorted(value, key=str):
            digest.update(str(name).encode("utf-8", "backslashreplace"))
            _feed(digest, value[name])
    elif isinstance(value, list | tuple):
        for each in value:
            _feed(digest, each)
    elif isinstance(value, bytes | bytearray | memoryview):
        digest.update(bytes(value))
    elif isinstance(value, str | int | float | bool | np.generic):
        digest.update(repr(value).encode("utf-8", "backslashreplace"))
    elif hasattr(value, "__array__"):  # a picture, or a tensor
        _feed(digest, np.asarray(value))
    else:  # of no known kind: what it holds is left to the versions
        digest.update(type(value).__name__.encode())
