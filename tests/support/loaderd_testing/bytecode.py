"""Bytecode for the processes that tests start.

Where Python is told to write none, each of them would compile torch and loaderd anew.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
IMPORTED = ("cv2", "lmdb", "msgpack", "numpy", "PIL.Image", "simplejpeg", "torch", "zmq")
COMPILE = """
import compileall, importlib, sys
for folder in sys.argv[1].split(","):
    compileall.compile_dir(folder, quiet=2)
for name in sys.argv[2].split(","):
    try:
        importlib.import_module(name)
    except Exception:  # the tests that need it will say so
        pass
"""


def lacks_bytecode(name: str) -> bool:
    """Whether a package is there without bytecode, and its folder can be written to."""
    found = importlib.util.find_spec(name)
    if found is None or not found.origin:
        return False
    return not os.path.exists(importlib.util.cache_from_source(found.origin)) and os.access(
        os.path.dirname(found.origin), os.W_OK
    )


def write_bytecode() -> None:
    """Compiles the product, and the packages that it and the tests import if that has not been done
    yet.

    What tests write into folders of their own (modules that they edit at once) is not compiled: the
    setting of the environment stays.
    """
    if not sys.dont_write_bytecode:
        return  # the first process to import a module writes it
    packages = [name for name in IMPORTED if lacks_bytecode(name.partition(".")[0])]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    folders = ",".join(str(ROOT / name) for name in ("loaderd", "client"))
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILE, folders, ",".join(packages)],
        env=env,
        check=True,
        stdout=subprocess.DEVNULL,
    )
