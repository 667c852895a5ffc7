"""Every sample made twice, in processes that know nothing of each other.

What differs, what fails, how long it takes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from loaderd.cli.check.field_tally import FieldTally
from loaderd.cli.check.local_run import LocalRun, LocalSession, half_of_the_workers
from loaderd.cli.check.local_segments import BatchView
from loaderd.config.load import Config
from loaderd.config.stream import StreamConfig
from loaderd.data.stream_order import once, stream_order
from loaderd.engine.messages import OpenError, StreamInfo
from loaderd.system.loop import Loop
from loaderd_wire.errors import BadSample
from loaderd_wire.messages import Segment
from loaderd_wire.slices import EpochShape, steps_left

ROWS = 32  # of a batch of the check, unless the stream collates


@dataclass(slots=True)
class Difference:
    """A sample whose two makings differ in these fields.

    `only_once` is what failed in one of them and not in the other, or "".
    """

    index: int
    key: str
    fields: tuple[str, ...]
    only_once: str = ""


@dataclass(slots=True)
class Findings:
    """What came out.

    Attributes:
        plan: The stream.
        facts: None if it could not be opened; then `end` says why.
        of: Samples of the split.
        samples: Made so far.
        bad: Bad samples, by index.
        differ: Where two makings are not the same.
        end: Why it was given up, or "".
        refused: Why no trainer could be served with this stream, good as its samples may be.
        seconds: By stage of the workers.
        rows: Rows that these seconds were spent on.
        roomiest: The segment with the largest slots that the batches of a collated stream needed.
        tally: What the fields of the samples have in common.
        advice: What to do next, in lines.
    """

    plan: StreamConfig
    facts: StreamInfo | None = None
    of: int = 0
    samples: int = 0
    bad: dict[int, BadSample] = field(default_factory=dict[int, BadSample])
    differ: list[Difference] = field(default_factory=list[Difference])
    end: str = ""
    refused: list[str] = field(default_factory=list[str])
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    rows: int = 0
    roomiest: Segment | None = None
    tally: FieldTally = field(default_factory=FieldTally)
    advice: list[str] = field(default_factory=list[str])

    @property
    def fine(self) -> bool:
        """Nothing was found that a trainer would meet, and nothing ended the check early."""
        return not self.bad and not self.differ and not self.end and not self.refused


def check(
    config: Config,
    plan: StreamConfig,
    samples: int | None,
    *,
    progress: Callable[[int, int], None],
    say: Callable[[str, str], None],
) -> Findings:
    """Make so many samples of the stream, spread over all of it (None: every one), twice each."""
    findings = Findings(plan)
    made = replace(once(plan), on_error="skip", max_errors=0.0, shuffle=0 if samples is None else 1)
    with Loop() as loop, ExitStack() as stack:
        run = DeterminismRun(loop, findings, samples, progress)
        run.runs = [
            stack.enter_context(
                LocalRun(
                    loop,
                    config,
                    made,
                    half_of_the_workers(config),
                    on_open=lambda found, n=n: run.opened(n, found),
                    say=say if n == 0 else lambda level, text: None,  # both would say the same
                )
            )
            for n in range(2)
        ]
        loop.run()
        findings.differ.sort(key=lambda difference: difference.index)
        for session in run.sessions:
            findings.rows += session.rows
            if findings.facts is not None and findings.facts.collated:
                findings.roomiest = session.roomiest
            for stage, seconds in session.seconds.items():
                findings.seconds[stage] = findings.seconds.get(stage, 0.0) + seconds
    return findings


class DeterminismRun:
    """Two runs in step.

    A batch is looked at when both have made it, and given back by both at once.
    """

    def __init__(
        self,
        loop: Loop,
        findings: Findings,
        samples: int | None,
        progress: Callable[[int, int], None],
    ) -> None:
        self.runs: list[LocalRun] = []
        self.sessions: list[LocalSession] = []  # both, once both streams are open
        self._loop = loop
        self._findings = findings
        self._samples = samples
        self._progress = progress
        self._open: dict[int, StreamInfo] = {}
        self._here: dict[int, set[int]] = {}
        self._steps = 0

    def end(self, text: str) -> None:
        """Stop the loop; the first text stays, as `Findings.end`."""
        self._findings.end = self._findings.end or text
        self._loop.stop()

    def opened(self, n: int, found: StreamInfo | OpenError) -> None:
        """Run `n` (0 or 1) has opened its stream, or could not; both begin once the second has."""
        if isinstance(found, OpenError):
            self.end(f"{found.text}\n{found.traceback}".strip())
            return
        self._open[n] = found
        if len(self._open) < 2:
            return
        plan, facts = self.runs[0].stream, self._open[0]
        try:
            order = stream_order(plan, facts)
        except ValueError as error:
            self.end(f"stream {plan.name!r}: {error}")
            return
        self._findings.facts, self._findings.of = facts, order.samples
        samples = order.samples if self._samples is None else min(self._samples, order.samples)
        self._shape = EpochShape(
            samples, min(plan.batch_size if facts.collated else ROWS, samples), 0, 1, False
        )
        self._steps = steps_left(self._shape, 0)
        self.sessions = [
            run.begin(
                facts,
                order,
                self._shape,
                on_batch=functools.partial(self.arrived, n),
                on_end=self.end,
            )
            for n, run in enumerate(self.runs)
        ]

    def arrived(self, n: int, session: LocalSession, k: int) -> None:
        """Run `n` has made batch `k`; what both have is compared and given back."""
        if k >= self._steps or self._findings.end:
            return
        self._here.setdefault(k, set()).add(n)
        # in order, so that what is released is always the oldest
        while (
            len(self._here.get(done := self._findings.samples // self._shape.batch_size, ())) == 2
        ):
            del self._here[done]
            self._compare(done)

    def _compare(self, k: int) -> None:
        first, second = (session.read(k) for session in self.sessions)
        findings = self._findings
        findings.samples = min(findings.samples + self._shape.batch_size, self._shape.samples)
        for session in self.sessions:
            findings.bad |= session.bad
        if first.batch.filled or second.batch.filled:
            findings.differ += differences(
                first, second, findings.bad, collated=bool(self._open[0].collated)
            )
            if not self._open[0].collated:
                findings.tally.add(first.fields, len(first.indices))
        del first, second  # views of the slots
        for session in self.sessions:
            session.release(k)
        self._progress(findings.samples, self._shape.samples)
        if k + 1 == self._steps:
            self._loop.stop()


def differences(
    first: BatchView, second: BatchView, bad: dict[int, BadSample], *, collated: bool
) -> list[Difference]:
    """Where two makings of a batch are not the same, sample by sample.

    A collated batch is looked at as a whole.
    """
    if first.indices.tolist() == second.indices.tolist() and all(
        _same(first.fields[name], second.fields.get(name)) for name in first.fields
    ):
        return []
    rows = [{int(index): row for row, index in enumerate(made.indices)} for made in (first, second)]
    found: list[Difference] = []
    for index in sorted(rows[0].keys() | rows[1].keys()):
        at = [there.get(index) for there in rows]
        known = next(made for made, row in zip((first, second), at, strict=True) if row is not None)
        key = (
            str(index)
            if known.keys is None
            else known.keys[next(row for row in at if row is not None)]
        )
        if None in at:
            found.append(
                Difference(
                    index, key, (), bad[index].line() if index in bad else "it was made only once"
                )
            )
        elif not collated:
            names = tuple(
                name
                for name in first.fields
                if not _same(first.fields[name][at[0]], second.fields[name][at[1]])
            )
            if names:
                found.append(Difference(index, key, names))
    if collated and not found:
        names = tuple(
            name for name in first.fields if not _same(first.fields[name], second.fields.get(name))
        )
        found.append(
            Difference(int(first.indices[0]), f"batch of {len(first.indices)} rows", names)
        )
    return found


def _same(one: Any, other: Any) -> bool:
    """Byte for byte, so that NaN is NaN."""
    if isinstance(one, (np.ndarray, np.generic)) and isinstance(other, (np.ndarray, np.generic)):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and one == other
