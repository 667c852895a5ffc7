"""One stream opened in this very process, and samples made as a worker makes them.

It is for `preview` and `check --index`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any

from loaderd.cli.exit_codes import NO_START, USAGE, CommandError
from loaderd.config.load import Config
from loaderd.config.stream import StreamConfig
from loaderd.core.jobs import Job, JobKind, Stage
from loaderd.data.errors import SourceError
from loaderd.data.user_code import find
from loaderd.data.user_modules import imported, put_first
from loaderd.engine.messages import OpenError, StreamInfo
from loaderd.engine.scoreboard import StatusWriter
from loaderd.worker.imports import Imports
from loaderd.worker.probe import probe
from loaderd.worker.sample_runner import SampleRunner
from loaderd.worker.stage_timer import Stopwatch
from loaderd.worker.streams import OpenStreams, WorkerStream
from loaderd_wire.hints import few

LIKE_A_WORKER = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}


def like_a_worker(args: argparse.Namespace) -> None:
    """Start over with the environment of a worker.

    Sets of strings have an order that depends on it, and so may user code.
    """
    if args.argv is not None and any(os.environ.get(name) is None for name in LIKE_A_WORKER):
        sys.stdout.flush()
        os.execve(
            sys.executable,
            [sys.executable, "-m", "loaderd", *args.argv],
            {**LIKE_A_WORKER, **os.environ},
        )


def chosen(config: Config, name: str | None) -> StreamConfig:
    """The stream of this name, or the only one. Raises CommandError."""
    names = few([plan.name for plan in config.streams])
    found = [plan for plan in config.streams if name in (None, plan.name)]
    if not found:
        raise CommandError(f"{config.path}: no stream {name!r}; there are: {names}", USAGE)
    if len(found) > 1:
        raise CommandError(
            f"{config.path}: the config has several streams; choose one, such as --stream "
            f"{found[0].name}: {names}",
            USAGE,
        )
    return found[0]


class NullStatusLine:
    """A `StatusWriter` where nobody supervises.

    on_stage is told each stage of each row as it begins.
    """

    def __init__(self, on_stage: Callable[[int, Stage], None] = lambda row, stage: None) -> None:
        self._on_stage = on_stage

    def stamp(self, job: int, row: int, stage: int, candidate: int = 0) -> None:
        """Tell the stage of the row; of idleness nobody is told."""
        if stage != Stage.IDLE:
            self._on_stage(row, Stage(stage))

    def name(self, row: int, key: str) -> None:
        """Tell nobody."""

    def idle(self) -> None:
        """Tell nobody."""

    def importing(self, on: bool) -> None:
        """Tell nobody."""


class LocalStream:
    """The stream, open.

    Raises CommandError that names what is wrong, with the user's own traceback.
    """

    def __init__(self, config: Config, plan: StreamConfig) -> None:
        put_first(config.folder)
        self._open_streams = OpenStreams([plan], 0, 1)
        self._plan = plan
        self._imported = imported(config.folder)
        Imports(NullStatusLine(), self._open_streams.torch_came).watch()
        try:
            if config.workers.init:
                find(config.workers.init, "init")(0)
            self.stream: WorkerStream = self._open_streams.get(plan.name)
        except SourceError as error:
            raise CommandError(
                f"stream {plan.name!r}: {error}\n{error.traceback}".strip(), NO_START
            ) from error
        except ValueError as error:  # a split that is empty
            raise CommandError(f"stream {plan.name!r}: {error}", NO_START) from error

    def probe(self) -> StreamInfo:
        """Make the first samples, as the daemon does before it serves.

        From then on samples must have their fields.

        Raises:
            CommandError: They cannot be made.
        """
        found = probe(
            self._plan.name, self._open_streams, NullStatusLine(), self._plan, self._imported
        )
        if isinstance(found, OpenError):
            raise CommandError(f"{found.text}\n{found.traceback}".strip(), NO_START)
        self.stream.sample_pipeline.fix(found.sample_specs)
        return found

    def rows(
        self,
        seed: int,
        epoch: int,
        start: int,
        rows: int,
        status: StatusWriter,
        *,
        epoch_samples: int = 0,
        policy: str = "",
    ) -> SampleRunner:
        """What makes rows [0, rows) of the batch that begins at position `start`."""
        job = Job(
            1,
            JobKind.TRIAL,
            self.stream.plan.name,
            0,
            0,
            seed,
            epoch,
            start,
            rows,
            0,
            rows,
            epoch_samples=epoch_samples,
        )
        return SampleRunner(self.stream, job, status, Stopwatch(), policy=policy)

    def label(self, sample: Any) -> str:
        """The sample's class, as far as one can tell.

        It is `label`, or the only whole number that it has.
        """
        whole = [
            name
            for name, value in sample.items()
            if getattr(value, "shape", None) == () and value.dtype.kind in "iu"
        ]
        name = "label" if "label" in whole else whole[0] if len(whole) == 1 else ""
        if not name:
            return ""
        number, classes = int(sample[name]), self.stream.source.classes
        return classes[number] if 0 <= number < len(classes) else str(number)
