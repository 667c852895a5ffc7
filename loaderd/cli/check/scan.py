"""Every sample of a stream made once, by all workers: what is bad, and what all of it comes to.

May be broken off, and goes on from there.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from loaderd.cli.check.local_run import LocalRun, LocalSession, all_workers
from loaderd.cli.check.scan_state import ScanState
from loaderd.cli.check.scan_stats import ScanStats
from loaderd.config.load import Config
from loaderd.config.stream import StreamConfig
from loaderd.core.order import StreamOrder
from loaderd.data.stream_order import once, stream_order
from loaderd.engine.messages import OpenError, StreamInfo
from loaderd.server.admission import OpenedStream, content_facts, order_facts
from loaderd.system.loop import Loop
from loaderd_wire.errors import BadSample
from loaderd_wire.slices import EpochShape, steps_left

PREFETCH = 4  # batches under way: many workers share each
BATCH_S = 0.5  # of all workers' work in a batch
FEWEST, MOST = 8, 512  # samples in a batch
SAVED_S = 5.0


@dataclass(slots=True)
class Scan:
    """What came out.

    Attributes:
        tally: What was seen, in numbers.
        of: Samples of the split.
        done: Made by now.
        bad: Of them.
        resumed_at: Of those made, by an earlier run.
        end: Why it was given up, or "".
        broken_off: It was told to stop; the same command goes on from there.
        seconds: Of this run.
        changed: Facts that differ from those of an earlier run, which is then begun anew.
    """

    tally: ScanStats
    of: int = 0
    done: int = 0
    bad: int = 0
    resumed_at: int = 0
    end: str = ""
    broken_off: bool = False
    seconds: float = 0.0
    changed: tuple[str, ...] = field(default=())


def scan(
    config: Config,
    plan: StreamConfig,
    facts: StreamInfo,
    saved: ScanState,
    *,
    row_s: float,
    verified: str,
    progress: Callable[[int, int], None],
    say: Callable[[str, str], None],
) -> Scan:
    """Make all samples of the stream that an earlier run has not.

    Args:
        config: The config.
        plan: The stream.
        facts: What it was found to be.
        saved: The files of the scan.
        row_s: Seconds that a sample takes a worker, 0 if unknown.
        verified: To be kept.
        progress: Called as (done, of).
        say: (level, text).
    """
    made = replace(
        once(plan),
        on_error="skip",
        max_errors=0.0,
        collate="stack",
        pad={},
        ragged=(),
        survey={
            "specs": [asdict(spec) for spec in facts.sample_specs],
            "collated": plan.whole_samples,
            "free": sorted(plan.free_fields),
        },
    )
    order = stream_order(made, facts)
    found = Scan(ScanStats(len(facts.sample_specs)), of=order.samples)
    known = OpenedStream(plan, facts)
    fingerprint = (
        order_facts(known, plan.seed) | content_facts(known, None) | {"state": facts.state}
    )
    _take_up(found, saved, fingerprint)
    workers = all_workers(config)
    rows = min(MOST, max(FEWEST, round(BATCH_S * workers / row_s) if row_s else FEWEST))
    if found.done >= found.of:
        return found
    with Loop() as loop:
        run = ScanRun(
            loop,
            found,
            order,
            saved,
            rows,
            {"fingerprint": fingerprint, "verified": verified},
            made,
            progress,
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.on_signal(number, run.break_off)
        with LocalRun(
            loop, config, made, workers, on_open=lambda found: run.opened(local, found), say=say
        ) as local:
            loop.run()
            found.seconds = loop.now_s() - run.begin_s
    run.save()
    return found


def _take_up(found: Scan, saved: ScanState, fingerprint: dict[str, str]) -> None:
    """Go on where an earlier run was broken off, if everything still is as it was."""
    state = saved.state
    if "done" not in state:
        return
    was = state["fingerprint"]
    found.changed = tuple(
        name for name in sorted(was.keys() | fingerprint) if was.get(name) != fingerprint.get(name)
    )
    if found.changed:
        saved.forget()
        return
    found.done = found.resumed_at = state["done"]
    found.bad = state["bad_count"]
    found.tally = ScanStats.from_dict(state["tally"])


class ScanRun:
    """Takes batches in order, one by one."""

    def __init__(
        self,
        loop: Loop,
        found: Scan,
        order: StreamOrder,
        saved: ScanState,
        rows: int,
        kept: dict[str, Any],
        stream: StreamConfig,
        progress: Callable[[int, int], None],
    ) -> None:
        self._loop = loop
        self._found = found
        self._order = order
        self._spool = saved
        self._kept = kept
        self._stream = stream.name
        self._seed = stream.seed
        self._progress = progress
        self._shape = EpochShape(order.samples, min(rows, order.samples), 0, 1, False)
        self._steps = steps_left(self._shape, found.done)
        self._begin = found.done
        self._next = 0
        self._here: set[int] = set()
        self._saved_s = self.begin_s = loop.now_s()

    def end(self, text: str) -> None:
        """Stop the loop; the first text stays, as `Scan.end`."""
        self._found.end = self._found.end or text
        self._loop.stop()

    def break_off(self) -> None:
        """Stop the loop; what is done counts, and the next run goes on from there."""
        self._found.broken_off = True
        self._loop.stop()

    def opened(self, local: LocalRun, found: StreamInfo | OpenError) -> None:
        """Begin at the first sample that is not done, or end with what was wrong."""
        if isinstance(found, OpenError):
            self.end(f"{found.text}\n{found.traceback}".strip())
        else:
            self.begin_s = self._loop.now_s()
            local.begin(
                found,
                self._order,
                self._shape,
                start=self._begin,
                prefetch=PREFETCH,
                on_batch=self.arrived,
                on_end=self.end,
            )

    def arrived(self, session: LocalSession, k: int) -> None:
        """Batch `k` is made; batches are taken in order, and given back at once."""
        self._here.add(k)
        while self._next in self._here and self._next < self._steps and not self._found.end:
            self._here.discard(self._next)
            self._take(session, self._next)
            self._next += 1

    def _take(self, session: LocalSession, k: int) -> None:
        found = self._found
        made = session.read(k)
        last = min(found.done + self._shape.batch_size, found.of)
        indices = self._order.indices(self._seed, 0, np.arange(found.done, last, dtype=np.int64))
        hashes = np.zeros(len(indices), np.uint64)
        if made.batch.filled:
            for row, text in enumerate(made.fields["fault"]):
                if text:
                    index = int(made.indices[row])
                    position = found.done + int(np.flatnonzero(indices == index)[0])
                    self._set_aside(
                        BadSample(
                            index,
                            made.keys[row] if made.keys else str(index),
                            position,
                            "check",
                            "BadValue",
                            text,
                        )
                    )
            hashes[np.isin(indices, made.indices)] = made.fields["hash"]
            found.tally.add(made.fields)
        for sample in made.batch.bad:
            self._set_aside(sample)
        del made  # views of the slot
        session.release(k)
        self._spool.add(hashes)
        found.done = last
        self._progress(found.done, found.of)
        if k + 1 == self._steps:
            self._loop.stop()
        elif self._loop.now_s() - self._saved_s >= SAVED_S:
            self.save()

    def _set_aside(self, sample: BadSample) -> None:
        self._found.bad += 1
        self._spool.set_aside(self._stream, sample)

    def save(self) -> None:
        """Keep all that is done, for a later run."""
        self._saved_s = self._loop.now_s()
        self._spool.save(
            done=self._found.done,
            bad_count=self._found.bad,
            tally=self._found.tally.to_dict(),
            **self._kept,
        )
