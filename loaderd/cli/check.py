"""`loaderd check`: what a config will do, found out by doing it."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from loaderd.cli.failure import FAULTS, FINE, NO_START, need
from loaderd.cli.progress import Progress
from loaderd.cli.status import field, size

if TYPE_CHECKING:
    from loaderd.cli.twice import Findings
    from loaderd.config import Config
    from loaderd.data.plan import StreamPlan
    from loaderd.drivers.orders import StreamFacts

SAMPLES = 256
PREFETCH = 4  # a Loader's default
NAMED = 50  # bad samples that are named; all are counted


def run(args: argparse.Namespace) -> int:
    need("lmdb", "simplejpeg", "cv2", "PIL")
    from loaderd import config

    settings = config.load(args.config, os.environ, os.getuid())
    if args.index is not None or args.key is not None:
        from loaderd.cli import single

        return single.run(args, settings)
    from loaderd.cli.desk import chosen

    streams = [chosen(settings, args.stream)] if args.stream else settings.streams
    codes = [_check(settings, plan, None if args.all else args.samples or SAMPLES) for plan in streams]
    return max(codes)


def _check(settings: Config, plan: StreamPlan, samples: int | None) -> int:
    from loaderd.cli import twice

    print(f"{plan.name}  {plan.lmdb or plan.dataset}", flush=True)
    with Progress(f"samples of {plan.name}") as progress:

        def say(level: str, text: str) -> None:
            if level != "debug":
                progress.say(f"loaderd: {text}")

        findings = twice.check(settings, plan, samples, progress=progress, say=say)
    if findings.facts is None:
        sys.stderr.write(f"loaderd: {findings.end}\n")
        return NO_START
    for line in (*_shape(findings), *_speed(findings), *_faults(findings)):
        print(line)
    if findings.end:
        sys.stderr.write(f"loaderd: stream {plan.name!r} was given up: {findings.end}\n")
    return FINE if findings.fine else FAULTS


def _shape(findings: Findings) -> list[str]:
    facts, plan = findings.facts, findings.plan
    assert facts is not None
    part = "" if findings.of == facts.total else f" of {facts.total:,} ({plan.split})"
    lines = [f"  samples   {findings.of:,}{part}, layout {facts.layout}" + (f", {len(facts.classes)} classes" if facts.classes else "")]
    lines += [
        f"  {'fields' if not n else '':<8}  {field(spec.name, spec.dtype, spec.shape, spec.kind)}{f', {size(spec.row_bytes)} a row' if spec.kind == 'array' else ''}"
        for n, spec in enumerate(facts.specs)
    ]
    lines += [f"  batch     {line}" for line in _memory(facts, plan, findings.of)]
    return lines + [f"  note      {text}" for text in facts.warnings]


def _memory(facts: StreamFacts, plan: StreamPlan, samples: int) -> list[str]:
    from loaderd.admission import SPARE_SLOTS, Stream, sized
    from loaderd.core.order import Order

    stream = Stream(plan, facts, Order(facts.total, plan.split, plan.split_by, plan.shuffle))
    segment = sized(stream, facts.specs, plan.batch_size, PREFETCH + SPARE_SLOTS, 1)
    row = "collated" if facts.collated else f"{size(sum(spec.row_bytes for spec in facts.specs))} a row"
    first = f"{plan.batch_size} rows, {row}, {size(segment.slot_bytes)} a slot"
    full = f"memory at full credit: {size(segment.slots * segment.slot_bytes)} a trainer (prefetch {PREFETCH}, so {segment.slots} slots)"
    return [first, full]


def _speed(findings: Findings) -> list[str]:
    total = sum(findings.seconds.values())
    if not findings.rows or not total:
        return []
    stages = "  ".join(f"{stage} {seconds / total:.0%}" for stage, seconds in findings.seconds.items() if seconds > 0)
    return [f"  speed     {findings.rows / total:,.0f} samples/s a worker: {stages}"]


def _telling(traceback: str) -> list[str]:
    """The lines of a traceback that tell most: its end; of a dumped stack, which begins where it hung or crashed, the begin."""
    lines = [line for line in traceback.splitlines() if line.strip()]
    return lines[-4:] if "Traceback (most recent call last)" in traceback else lines[:6]


def _faults(findings: Findings) -> list[str]:
    lines: list[str] = []
    for sample in [findings.bad[index] for index in sorted(findings.bad)][:NAMED]:
        lines.append(f"  BAD       {sample.line()}")
        lines += [f"            {line}" for line in _telling(sample.traceback)]
    if len(findings.bad) > NAMED:
        lines.append(f"  BAD       and {len(findings.bad) - NAMED:,} more")
    for difference in findings.differ[:NAMED]:
        if difference.only_once:
            lines.append(
                f"  DIFFERS   sample {difference.key!r} (index {difference.index}) was made once and failed once: {difference.only_once}"
            )
        else:
            fields = ", ".join(map(repr, difference.fields))
            lines.append(f"  DIFFERS   sample {difference.key!r} (index {difference.index}): two makings have different {fields}")
    if len(findings.differ) > NAMED:
        lines.append(f"  DIFFERS   and {len(findings.differ) - NAMED:,} more")
    if findings.differ:
        lines.append(
            "            draw from the rng that a transform is given, or from random, numpy.random or torch, which are seeded per sample"
        )
    checked = f"{findings.samples:,} of {findings.of:,} samples made twice, in two processes"
    if findings.fine:
        return [*lines, f"  fine      {checked}"]
    return [*lines, f"  faults    {len(findings.bad)} bad, {len(findings.differ)} different; {checked}"]
