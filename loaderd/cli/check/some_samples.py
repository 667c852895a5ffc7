"""`loaderd check` without --all: some samples are made twice and compared."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict
from typing import IO, TYPE_CHECKING

from loaderd.cli.exit_codes import FAULTS, FINE, NO_START
from loaderd.cli.output import show, tell
from loaderd.cli.status import field, size
from loaderd.system.progress import ProgressLine
from loaderd_wire.hints import counted
from loaderd_wire.slices import EpochShape, steps_left

if TYPE_CHECKING:
    from loaderd.cli.check.determinism import Findings
    from loaderd.config.load import Config
    from loaderd.config.stream import StreamConfig
    from loaderd.engine.messages import StreamInfo
    from loaderd_wire.errors import BadSample
    from loaderd_wire.messages import Segment

Classes = dict[str, tuple[str, ...]]  # name of a stream -> names of its classes

SAMPLES = 256
PREFETCH = 4  # a Loader's default
NAMED = 50  # bad samples that are named; all are counted
ALIKE = 5  # bad samples with the same reason, but for its numbers, that have a line each


def check(
    settings: Config, plan: StreamConfig, samples: int, bad: IO[str] | None, classes: Classes
) -> int:
    """Make samples of one stream twice and print what was found; its exit code."""
    show(f"{plan.name}  {plan.data_name}", flush=True)
    findings = make_twice(settings, plan, samples, classes)
    if findings.facts is None:
        return NO_START
    for line in (*described(findings), *faults(findings)):
        show(line)
    if bad is not None:
        for index in sorted(findings.bad):
            bad.write(
                json.dumps({"stream": plan.name, **asdict(findings.bad[index])}, ensure_ascii=False)
                + "\n"
            )
    given_up(plan, findings.end)
    return FINE if findings.fine else FAULTS


def make_twice(settings: Config, plan: StreamConfig, samples: int, classes: Classes) -> Findings:
    """So many samples made twice; why there are no facts has been told.

    The stream's class names go into `classes`.
    """
    from loaderd.cli.check import determinism, opening

    with ProgressLine(f"samples of {plan.name}, twice") as progress:

        def say(level: str, text: str) -> None:
            if level != "debug":
                progress.say(f"loaderd: {text}")

        findings = determinism.check(settings, plan, samples, progress=progress, say=say)
    if findings.facts is None:
        tell(findings.end)
    else:
        classes[plan.name] = findings.facts.classes
        findings.refused = [
            *_refused(settings, plan, findings.facts, findings.of, findings.roomiest),
            *opening.not_opened(settings, plan, say=lambda level, text: None),
        ]
        findings.advice = _advice(settings, plan, findings, findings.facts)
    return findings


def given_up(plan: StreamConfig, end: str) -> None:
    """Say on standard error why a check stopped early; nothing for ""."""
    if end:
        tell(f"stream {plan.name!r}: check stopped: {end}")


def described(findings: Findings) -> list[str]:
    """Lines for shape, memory, speed and advice, whatever faults there are."""
    advice = [f"  next      {line}" for line in findings.advice]
    return [*_shape(findings), *_speed(findings), *advice]


def _shape(findings: Findings) -> list[str]:
    facts, plan = findings.facts, findings.plan
    assert facts is not None
    part = "" if findings.of == facts.total else f" of {facts.total:,} ({_chosen_by(plan)})"
    part += f", {findings.of * plan.repeat:,} an epoch" if plan.repeat > 1 else ""
    lines = [
        f"  samples   {findings.of:,}{part}, layout {facts.layout}"
        + (f", {counted(len(facts.classes), 'class')}" if facts.classes else "")
    ]
    for n, spec in enumerate(facts.specs):
        what = field(spec.name, spec.dtype, spec.shape, spec.kind)
        much = f", {size(spec.row_bytes)} a row" if spec.kind == "array" else ""
        lines.append(f"  {'' if n else 'fields':<8}  {what}{much}")
    lines += [f"  batch     {line}" for line in _memory(facts, plan, findings.roomiest)]
    lines += [f"  BAD       {line}" for line in findings.refused]
    return lines + [f"  note      {text}" for text in facts.warnings]


def _chosen_by(plan: StreamConfig) -> str:
    """Which words of the config say what samples the stream has."""
    keys = [f"keys {os.path.basename(plan.keys)}"] if plan.keys else []
    split = [plan.split + f" by {plan.group}" * bool(plan.group)]
    return ", ".join(keys if keys and plan.split == "0%:100%" else [*keys, *split])


def _refused(
    settings: Config,
    plan: StreamConfig,
    facts: StreamInfo,
    samples: int,
    roomiest: Segment | None = None,
) -> list[str]:
    """What the daemon would say to every trainer that asks for this stream as it is configured."""
    lines: list[str] = []
    if not steps_left(EpochShape(samples, plan.batch_size, 0, 1, plan.drop_last), 0):
        lines.append(
            f"an epoch has no whole step: {samples} samples, batch_size = {plan.batch_size}, "
            "drop_last = true; "
            "set drop_last = false or a smaller batch_size"
        )
    segment = _segment(facts, plan, roomiest)
    need, memory = segment.slots * segment.slot_bytes, settings.daemon.memory
    if memory is not None and need > memory:
        lines.append(
            f"a trainer needs {size(need)}, [daemon] memory is {size(memory)}: raise memory or "
            "set a smaller batch_size"
        )
    return lines


def _advice(
    settings: Config, plan: StreamConfig, findings: Findings, facts: StreamInfo
) -> list[str]:
    from loaderd.cli.check.advice import Figures, advice
    from loaderd.cli.check.stored_sizes import stored_sizes
    from loaderd.system.resource_limits import segment_memory

    segment = _segment(facts, plan, findings.roomiest)
    memory = settings.daemon.memory
    figures = Figures(
        facts=facts,
        tally=findings.tally,
        seconds=findings.seconds,
        rows=findings.rows,
        bad=len(findings.bad),
        stored=stored_sizes(plan),
        need_bytes=segment.slots * segment.slot_bytes,
        # what the config says has been compared with
        free_bytes=segment_memory(None) if memory is None else 1 << 62,
    )
    return advice(plan, figures)


def _segment(facts: StreamInfo, plan: StreamConfig, roomiest: Segment | None) -> Segment:
    """What a trainer has in the end: its segment grows with the batches, as this one has."""
    from loaderd.server.admission import SPARE_SLOTS, OpenedStream, sized
    from loaderd.server.share_window import share_window

    return sized(
        OpenedStream(plan, facts),
        facts.specs,
        plan.batch_size,
        share_window("", PREFETCH, plan) + PREFETCH + SPARE_SLOTS,
        1,
        tail_row_bytes=roomiest.tail_row_bytes if roomiest else 0,
        body_bytes=roomiest.body_bytes if roomiest else 0,
    )


def _memory(facts: StreamInfo, plan: StreamConfig, roomiest: Segment | None) -> list[str]:
    segment = _segment(facts, plan, roomiest)
    row = (
        "collated"
        if facts.collated
        else f"{size(sum(spec.row_bytes for spec in facts.specs))} a row"
    )
    first = f"{plan.batch_size} rows, {row}, {size(segment.slot_bytes)} a slot"
    whose = "group of trainers that share" if plan.share else "trainer"
    full = (
        f"memory at full credit: {size(segment.slots * segment.slot_bytes)} a {whose} "
        f"(prefetch {PREFETCH}, so {segment.slots} slots)"
    )
    return [first, full]


def _speed(findings: Findings) -> list[str]:
    total = sum(findings.seconds.values())
    if not findings.rows or not total:
        return []
    stages = "  ".join(
        f"{stage} {seconds / total:.0%}"
        for stage, seconds in findings.seconds.items()
        if seconds > 0
    )
    return [f"  speed     {findings.rows / total:,.0f} samples/s per worker: {stages}"]


def _telling(traceback: str) -> list[str]:
    """The lines of a traceback that tell most.

    They are its end; of a dumped stack, which begins where it hung or crashed, the begin.
    """
    lines = [line for line in traceback.splitlines() if line.strip()]
    return lines[-4:] if "Traceback (most recent call last)" in traceback else lines[:6]


def bad_line(sample: BadSample, *, telling: bool = True) -> list[str]:
    """Lines for one bad sample, with the end of its traceback if `telling`."""
    return [
        f"  BAD       {sample.line()}",
        *(f"            {line}" for line in _telling(sample.traceback) if telling),
    ]


def place_of(sample: BadSample) -> tuple[str, ...]:
    """Where a sample failed, by the lines of its traceback, which of others are the same."""
    return tuple(_telling(sample.traceback)[:-1])


def faults(findings: Findings) -> list[str]:
    """Lines for bad samples and differences, NAMED of each at most, and the sum of it all."""
    lines = _bad_lines([findings.bad[index] for index in sorted(findings.bad)][:NAMED])
    if len(findings.bad) > NAMED:
        lines.append(f"  BAD       and {len(findings.bad) - NAMED:,} more (--bad FILE has all)")
    lines += differences(findings)
    checked = f"{findings.samples:,} of {findings.of:,} samples made twice, in two processes"
    if findings.fine:
        return [*lines, f"  fine      {checked}"]
    return [
        *lines,
        f"  faults    {len(findings.bad)} bad, {len(findings.differ)} different; {checked}",
    ]


def _bad_lines(samples: list[BadSample]) -> list[str]:
    """A line a sample; of many with one reason the keys alone, in one line behind the others.

    The traceback is shown of the first one that failed in a place.
    """
    lines: list[str] = []
    places: set[tuple[str, ...]] = set()
    alike: dict[tuple[str, str, str], list[str]] = {}
    for sample in samples:
        reason = (sample.stage, sample.error, re.sub(r"\d+", "0", sample.message))
        keys = alike.setdefault(reason, [])
        keys.append(repr(sample.key))
        if len(keys) <= ALIKE:
            lines += bad_line(sample, telling=place_of(sample) not in places)
            places.add(place_of(sample))
    for (stage, error, _), keys in alike.items():
        if len(keys) > ALIKE:
            more = ", ".join(keys[ALIKE:])
            lines.append(
                f"  BAD       {len(keys) - ALIKE} more that failed in {stage} with the {error} of "
                f"sample {keys[0]}: {more}"
            )
    return lines


def differences(findings: Findings) -> list[str]:
    """Lines for samples that two processes made differently, and what usually causes it."""
    lines: list[str] = []
    for difference in findings.differ[:NAMED]:
        if difference.only_once:
            lines.append(
                f"  DIFFERS   sample {difference.key!r} (index {difference.index}) was made once "
                f"and failed once: {difference.only_once}"
            )
        else:
            fields = ", ".join(map(repr, difference.fields))
            lines.append(
                f"  DIFFERS   sample {difference.key!r} (index {difference.index}): two runs give "
                f"different {fields}"
            )
    if len(findings.differ) > NAMED:
        lines.append(f"  DIFFERS   and {len(findings.differ) - NAMED:,} more")
    if findings.differ:
        lines.append(
            "            use the rng that a transform gets, or random, numpy.random or torch: "
            "loaderd seeds them for each sample"
        )
    return lines
