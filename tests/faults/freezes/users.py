"""What users bring: a module with a `Data` class of theirs, a config around it, and their training
scripts as processes.
"""

from __future__ import annotations

import subprocess
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loaderd_client import Loader, SampleError
from loaderd_testing.daemon_harness import TOP, Site, plain
from loaderd_testing.python_processes import TRAINING, python

HEAD = """
import ctypes, multiprocessing, os, re, select, signal, subprocess, sys, threading, time
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))

def place(name):
    return os.path.join(HERE, name)

def mark(name):
    # True for the first caller of this name in the whole test, in whatever process
    try:
        os.close(os.open(place(name), os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False

def wait_for(name, seconds=50):
    end = time.monotonic() + seconds
    while not os.path.exists(place(name)):
        if time.monotonic() > end:
            raise TimeoutError("nobody made " + name)
        select.select([], [], [], 0.01)
"""

CONFIG = (
    TOP
    + """{source}
batch_size = {batch}
{stream}
"""
)


def bring(
    site: Site,
    module: str,
    *,
    workers: int = 2,
    timeout: float = 30.0,
    batch: int = 8,
    daemon: str = "",
    pool: str = "",
    source: str = 'dataset = "mine:Data"',
    stream: str = "",
    transform: str = "",
) -> Site:
    """Write the user's module `mine` and a config whose stream `train` uses it.

    stream: more lines of that stream, or further tables.
    """
    (site.folder / "mine.py").write_text(HEAD + textwrap.dedent(module))
    if transform:
        stream += f'\n[[streams.train.transforms]]\ncall = "{transform}"\n'
    text = CONFIG.format(
        daemon=daemon,
        workers=workers,
        timeout=timeout,
        pool=pool,
        source=source,
        batch=batch,
        stream=stream,
    )
    site.config.write_text(text)
    site.num_workers = workers
    return site


def pull(loader: Loader[Any]) -> tuple[list[dict[str, Any]], list[SampleError]]:
    """One epoch: its batches, copied, and what was raised in place of the others."""
    got: list[dict[str, Any]] = []
    errors: list[SampleError] = []
    batches = iter(loader)
    while True:
        try:
            got.append(plain(next(batches)))
        except SampleError as error:
            errors.append(error)
        except StopIteration:
            return got, errors


@contextmanager
def trainer(
    code: str, *args: str, imports: tuple[str, ...] = TRAINING, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """A training script in a process and a session of its own, killed at the end.

    The tests' modules and loaderd are there to import.
    """
    head = f"import sys\nsys.path[:0] = {[str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / 'support')]!r}\nfrom loaderd_client import *\n"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = python(
        "-c",
        head + textwrap.dedent(code),
        *args,
        imports=imports,
        text=True,
        start_new_session=True,
        **{**pipes, **options},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def status_of(pid: int) -> Mapping[str, str]:
    """/proc/<pid>/status as a mapping."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def anonymous_bytes(pid: int) -> int:
    return int(status_of(pid)["RssAnon"].split()[0]) * 1024
