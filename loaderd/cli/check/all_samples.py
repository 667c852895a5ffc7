"""`loaderd check --all`: every sample made once.

The database's structure is checked before that, and some samples are made twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import IO

import numpy as np

from loaderd.cli.check import scan_report, some_samples
from loaderd.cli.check.determinism import Findings
from loaderd.cli.check.scan import Scan, scan
from loaderd.cli.check.scan_state import ScanState
from loaderd.cli.exit_codes import BROKEN_OFF, FAULTS, FINE, NO_START
from loaderd.cli.output import show, tell
from loaderd.config.load import Config
from loaderd.config.stream import StreamConfig
from loaderd.data.errors import SourceError
from loaderd.data.lmdb.verify import VerifyResult, state_of, verify
from loaderd.data.sources.part_paths import paths_of_stream
from loaderd.data.sources.source import Source
from loaderd.data.stream_order import once, stream_order
from loaderd.engine.messages import StreamInfo
from loaderd.system.cache_folder import cache_folder, remove_unused
from loaderd.system.progress import ProgressLine
from loaderd_wire.hints import counted

NAMED_PROBLEMS = 20
NAMED = 1000  # bad samples that are listed; the first of them with what user code raised


def check(
    settings: Config,
    plan: StreamConfig,
    bad: IO[str] | None,
    classes: some_samples.Classes,
    *,
    anew: bool,
) -> int:
    """Check a stream.

    Args:
        settings: The config.
        plan: The stream.
        bad: Where bad samples go as JSON lines.
        classes: Takes the stream's class names.
        anew: An earlier run that was broken off is not gone on with.

    Returns:
        The exit code.
    """
    show(f"{plan.name}  {plan.data_name}", flush=True)
    cache = cache_folder(os.environ, "check")
    remove_unused(cache)
    with ScanState(cache, settings.path, plan.name, anew=anew) as saved:
        verified = ""
        if plan.dataset is None:
            try:
                verified = _verified(paths_of_stream(plan), saved.state.get("verified", ""))
            except SourceError as error:
                tell(str(error))
                return NO_START
            if not verified:
                return FAULTS
        findings = some_samples.make_twice(settings, plan, some_samples.SAMPLES, classes)
        if findings.facts is None:
            return NO_START
        show("\n".join(some_samples.described(findings)), flush=True)
        if findings.end:
            some_samples.given_up(plan, findings.end)
            return FAULTS
        code = _scan(settings, plan, findings, findings.facts, saved, verified, bad)
        return max(code, FAULTS) if findings.refused else code


def _verified(files: list[str], before: str) -> str:
    """The states of the files, whose structure is sound.

    Returns:
        "" if that of one is not, which has been told.

    Raises:
        SourceError: One cannot be opened.
    """
    if before and before == "\n".join(map(state_of, files)):
        return before
    verdicts: list[VerifyResult] = []
    with ProgressLine("pages" if len(files) == 1 else "files verified") as progress:
        for number, path in enumerate(files):
            if number == 0:
                more = f" and {counted(len(files) - 1, 'more file')}" if len(files) > 1 else ""
                progress.say(f"loaderd: checking every page of {path}{more}")
            progress(number, len(files))
            verdicts.append(verify(path))
    problems = [
        f"{path}: {problem}" if len(files) > 1 else problem
        for path, verdict in zip(files, verdicts, strict=True)
        for problem in verdict.problems
    ]
    for problem in problems[:NAMED_PROBLEMS]:
        show(f"  DAMAGED   {problem}")
    if len(problems) > NAMED_PROBLEMS:
        show(f"  DAMAGED   and {len(problems) - NAMED_PROBLEMS} more")
    if problems:
        show(
            "            the file was not opened: copy or download it again, or pack it again",
            flush=True,
        )
        return ""
    remark = next((verdict.remark for verdict in verdicts if verdict.remark), "")
    show(f"  structure {remark or 'every page is sound'}", flush=True)
    return "\n".join(verdict.state for verdict in verdicts)


def _scan(
    settings: Config,
    plan: StreamConfig,
    findings: Findings,
    facts: StreamInfo,
    saved: ScanState,
    verified: str,
    bad: IO[str] | None,
) -> int:
    spent = sum(findings.seconds.values())
    with ProgressLine(f"samples of {plan.name}") as progress:

        def say(level: str, text: str) -> None:
            if level != "debug":
                progress.say(f"loaderd: {text}")

        if not saved.keeps:
            say(
                "warning",
                "another check of this stream is running: this one cannot be continued if you "
                "interrupt it",
            )
        row_s = spent / findings.rows if findings.rows else 0.0
        found = scan(
            settings, plan, facts, saved, row_s=row_s, verified=verified, progress=progress, say=say
        )
    if found.changed:
        tell(f"starting over: {', '.join(found.changed)} changed since the interrupted run")
    if found.broken_off:
        on = "the same command continues from there" if saved.keeps else "the next run starts over"
        tell(f"interrupted at sample {found.done:,} of {found.of:,} of stream {plan.name!r}; {on}")
        return BROKEN_OFF
    _tell(plan, facts, findings, found, saved, scan_report.trained_on(plan, settings.streams))
    if bad is not None:
        saved.bad_lines(bad)
    some_samples.given_up(plan, found.end)
    if not found.end:
        saved.finish()
    return FAULTS if found.end or found.bad or findings.differ else FINE


def _tell(
    plan: StreamConfig,
    facts: StreamInfo,
    findings: Findings,
    found: Scan,
    saved: ScanState,
    trained: StreamConfig | None,
) -> None:
    for line in scan_report.lines(plan, facts, found, saved, _namer(plan, facts), trained):
        show(line)
    places: set[tuple[str, ...]] = set()
    for n, sample in enumerate(saved.bad()):
        if n == NAMED:
            show(f"  BAD       and {found.bad - NAMED:,} more (--bad FILE has all)")
            break
        place = some_samples.place_of(sample)
        telling = n < some_samples.NAMED and place not in places
        places.add(place)
        show("\n".join(some_samples.bad_line(sample, telling=telling)))
    for line in some_samples.differences(findings):
        show(line)
    twice = f"{findings.samples:,} of them once more, in another process"
    if found.bad or findings.differ or found.end:
        show(
            f"  faults    {found.bad:,} bad, {len(findings.differ)} different; {found.done:,} of "
            f"{found.of:,} samples made once, {twice}"
        )
    else:
        show(f"  fine      {found.done:,} of {found.of:,} samples made once, {twice}")


def _namer(plan: StreamConfig, facts: StreamInfo) -> Callable[[int], str]:
    """Position of a scan -> key.

    The source is opened here only to look up names that are stored.
    """
    order = stream_order(once(plan), facts)

    def name(position: int) -> str:
        index = int(order.indices(plan.seed, 0, np.array([position], np.int64))[0])
        if facts.keys != "stored":
            return str(index)
        try:
            with Source(plan) as source:
                return source.key(index)
        except SourceError:
            return str(index)

    return name
