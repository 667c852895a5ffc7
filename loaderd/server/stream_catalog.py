"""The streams of a config.

Which are open, which are being opened, and why others could not be opened.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from loaderd.config.stream import StreamConfig
from loaderd.core.class_names import disagreement
from loaderd.core.jobs import Job
from loaderd.core.scheduler import StreamRules
from loaderd.core.snapshot import SchedulerSnapshot
from loaderd.engine.base import Engine
from loaderd.engine.messages import OpenError, StreamInfo
from loaderd.server import status
from loaderd.server.admission import OpenedStream
from loaderd.server.startup import StartupReporter
from loaderd.server.status_report import StreamStatus
from loaderd.system.logs import WriteLog

UNKNOWN = -1  # the index of a sample that can't be found out any more


class StreamCatalog:
    """Opens streams when they are wanted.

    Attributes:
        opened: The streams that are open, by name.
        opening: Names of those that are being opened.
        faults: Name -> why it could not be opened when that was last tried.
    """

    def __init__(
        self,
        configs: Sequence[StreamConfig],
        engine: Engine,
        startup: StartupReporter,
        *,
        answered: Callable[[str], object],
        log: WriteLog,
    ) -> None:
        """Open nothing yet.

        Args:
            configs: What the config says of all streams.
            engine: What opens them.
            startup: Tells what is waited for.
            answered: Called with a name when that stream is open or can't be.
            log: Its log.
        """
        self._configs = {config.name: config for config in configs}
        self._engine = engine
        self._startup = startup
        self._answered = answered
        self._log = log
        self.opened: dict[str, OpenedStream] = {}
        self.opening: set[str] = set()
        self.faults: dict[str, str] = {}

    @property
    def names(self) -> list[str]:
        """As the config has them."""
        return list(self._configs)

    def want(self, name: str) -> None:
        """Have a stream opened, or opened anew, unless that is going on."""
        if name in self.opening:
            return
        self.opening.add(name)
        self.faults.pop(name, None)
        self._startup.opens(self.opening)
        self._engine.open(name, functools.partial(self._found, name))

    def reject(self, name: str, why: str) -> None:
        """An open stream is not served."""
        del self.opened[name]
        self.faults[name] = why

    def disagreement(self) -> str:
        """What is wrong between the class names of the open streams; "" if nothing is."""
        return disagreement(
            {name: stream.facts.classes for name, stream in self._in_order().items()}
        )

    def counts(self) -> str:
        """The open streams and how many samples each has."""
        return status.stream_counts(
            (name, stream.facts.samples) for name, stream in self._in_order().items()
        )

    def rules(self, name: str) -> StreamRules:
        """What the scheduler must know of an open stream."""
        stream = self.opened[name]
        return StreamRules(name, stream.plan.on_error, stream.facts.collated, stream.facts.samples)

    def index_of(self, job: Job, row: int, candidate: int) -> int:
        """As the scheduler asks; UNKNOWN where a table of the order was cut off."""
        # and with it numpy: nobody asks before a sample has hung or killed its worker
        from loaderd.data.selection.tables import TableError
        from loaderd.data.stream_order import stream_order

        opened = self.opened[job.stream]
        try:
            order = stream_order(opened.plan, opened.facts, job.epoch_samples, job.rows)
        except TableError as error:
            self._log("error", "table_cut", str(error), stream=job.stream)
            return UNKNOWN
        return order.candidate(job.seed, job.epoch, job.start + row, candidate)

    def status(
        self, inside: SchedulerSnapshot, broken: Mapping[str, tuple[str, str]]
    ) -> dict[str, StreamStatus]:
        """Every stream of the config.

        Args:
            inside: What the scheduler knows.
            broken: Name of each stream that has ended on a fault -> name of the error, text.
        """
        return {
            name: status.stream(
                config,
                self.opened.get(name),
                ": ".join(broken[name]) if name in broken else self.faults.get(name, ""),
                inside.streams.get(name),
            )
            for name, config in self._configs.items()
        }

    def _in_order(self) -> dict[str, OpenedStream]:
        """The open streams in the order of the config: that of their opening is chance."""
        return {name: self.opened[name] for name in self._configs if name in self.opened}

    def _found(self, name: str, found: StreamInfo | OpenError) -> None:
        self.opening.discard(name)
        if self.opening:
            self._startup.opens(self.opening)
        if isinstance(found, OpenError):
            self.faults[name] = f"{found.text}\n{found.traceback}".strip()
        else:
            self._opened(name, found)
        self._answered(name)

    def _opened(self, name: str, found: StreamInfo) -> None:
        """Serve it, unless the tables of its order cannot be mapped.

        They are mapped now, and stay so: somebody may remove their files later, and `index_of`
        must not fail.
        """
        paths = [path for each in (found, *found.sources) for path in each.selection.tables]
        if paths:
            from loaderd.data.selection.tables import TableError, open_table  # and with it numpy

            try:
                for path in paths:
                    open_table(path)
            except TableError as error:
                self.faults[name] = str(error)
                return
        plan = StreamConfig.from_json(found.plan) if found.plan else self._configs[name]
        self.opened[name] = OpenedStream(plan, found)
        for text in found.warnings:
            self._log("warning", "stream_warning", f"stream {name!r}: {text}", stream=name)
