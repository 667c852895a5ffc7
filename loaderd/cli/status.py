"""`loaderd status`: a running daemon at a glance, or its JSON."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from typing import Any

from loaderd.cli import control_client
from loaderd.cli.exit_codes import FAULT, FINE, NO_START, USAGE, CommandError
from loaderd.cli.output import show_json
from loaderd.core.snapshot import GroupSnapshot, SessionSnapshot
from loaderd.core.verdict import Verdict
from loaderd.data import native_library
from loaderd.server.status import copies_told, node_of
from loaderd.server.status_report import (
    DaemonStatus,
    MemoryStatus,
    QuarantineStatus,
    SessionStatus,
    StreamStatus,
    WorkerStatus,
    as_plain,
)
from loaderd_wire.hints import counted
from loaderd_wire.messages import Rejected, Report, Starting

# from held by the trainer to free
SLOTS = {"leased": "▣", "announced": "■", "ready": "◧", "filling": "▨", "ending": "▧", "free": "□"}
COLOURS = {
    "ready": "32",
    "starting": "33",
    "draining": "33",
    "failed": "31",
    "dim": "2",
    "bold": "1",
}
BAR = 30
LABEL = 9  # characters before what is told
WHOLE = 1 << 20  # characters: no line is longer
SHOWN = 12  # of a long list


def run(args: argparse.Namespace) -> int:
    """Exit code of `loaderd status`: FAULT if the daemon has failed, NO_START while it starts."""
    status = fetch(control_client.target(args.target), control_client.config_of(args.target))
    if args.json:
        show_json(as_plain(status))
    else:
        colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        print("\n".join(lines(status, columns(), colours)))
    if status.failed:
        return FAULT
    return NO_START if status.state == "starting" and not args.alive else FINE


def fetch(path: str, config: str = "") -> DaemonStatus:
    """What the daemon with this socket tells about itself.

    Args:
        path: The socket.
        config: The file that it was found by; "" if there is none.

    Raises:
        CommandError: There is no answer, or the daemon serves another config. One that serves a
            file that is not there any more is taken for that of the file in its place.
    """
    found = _answer(path)
    if config and found.config not in ("", config) and os.path.exists(found.config):
        raise CommandError(f"the daemon at {path} serves {found.config}, not {config}", USAGE)
    return found


def _answer(path: str) -> DaemonStatus:
    with control_client.ControlConnection(path, "status") as line:
        for message in line.messages():
            if isinstance(message, Rejected):
                raise CommandError(f"{path}: {message.text}", FAULT)
            if isinstance(message, Starting):
                return DaemonStatus("starting", doing=message.text, socket=path)
            if isinstance(message, Report):
                return control_client.parsed(path, DaemonStatus.from_json, message.body)
    raise CommandError(f"the daemon at {path} is shutting down", NO_START)


def columns() -> int:
    """Characters of a line of the output: of the terminal; a file or a pipe gets lines whole."""
    return shutil.get_terminal_size((WHOLE, 0)).columns


def lines(status: DaemonStatus, width: int, colours: bool) -> Iterator[str]:
    """The status as lines of at most `width` characters."""
    paint = _Paint(width, colours)
    state = "failed" if status.failed else status.state
    yield paint(
        f"loaderd {status.version}  {state}  pid {status.pid or '?'}  {status.socket}", state
    )
    if status.config:
        yield paint(f"config   {status.config}", "dim")
    if status.native:
        yield paint(
            f"native   {native_library.described(status.native)}",
            "dim" if all(status.native.values()) else "failed",
        )
    if status.doing:
        yield paint(f"doing    {status.doing}")
    server = status.pool.fork_server if status.pool else None
    if server is not None and server.stopped:
        yield paint(
            f"fork server pid {server.pid} is stopped by a signal (T): no worker can be started; "
            "continue it with SIGCONT",
            "failed",
        )
    if status.verdict is not None:
        for line in _whole("verdict", status.verdict.text, width):
            yield paint(line, "bold")
    if status.pool is not None and status.pool.sizing is not None:
        why = f": {status.pool.sizing}" if status.pool.sizing else ""
        yield paint(f'pool     {counted(status.pool.wanted_workers, "worker")} by "auto"{why}')
    if status.pool is not None and status.pool.remote is not None:
        yield from map(paint, _whole("remote", status.pool.remote.text, width))
    if status.memory is not None:
        yield paint(f"memory   {_bar(status.memory)}")
    for title, rows in (
        ("STREAMS", list(_streams(status.streams, status.state))),
        ("SESSIONS", list(_sessions(status.sessions))),
        ("GROUPS", list(_groups(status.groups))),
        ("WORKERS", list(_workers(status.workers))),
        ("BAD SAMPLES", list(_bad(status.quarantine) if status.quarantine else ())),
        ("ERRORS", [error.split("\n")[0] for error in status.errors[-3:]]),
    ):
        if rows:
            yield ""
            yield paint(title, "bold")
            yield from (paint("  " + row) for row in rows[:SHOWN])
            if len(rows) > SHOWN:
                yield paint(f"  and {len(rows) - SHOWN} more (--json has all)", "dim")


def _whole(label: str, text: str, width: int) -> Iterator[str]:
    """A text in as many lines as it takes."""
    for n, part in enumerate(textwrap.wrap(text, max(20, width - LABEL))):
        yield f"{'' if n else label:<{LABEL}}{part}"


class _Paint:
    def __init__(self, width: int, colours: bool) -> None:
        self._width, self._colours = width, colours

    def __call__(self, text: str, colour: str = "") -> str:
        text = "".join(c if c.isprintable() else "?" for c in text)
        text = text if len(text) <= self._width else text[: self._width - 1] + "…"
        return (
            f"\033[{COLOURS[colour]}m{text}\033[0m" if self._colours and colour in COLOURS else text
        )


def size(count: float) -> str:
    """Bytes in the largest unit up to GiB that leaves at least 1."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _bar(memory: MemoryStatus) -> str:
    used, limit = memory.segments, max(1, memory.limit)
    filled = min(BAR, -(-used * BAR // limit))
    return f"{'█' * filled}{'░' * (BAR - filled)} {size(used)} of {size(limit)} shared"


def _streams(streams: Mapping[str, StreamStatus], state: str) -> Iterator[str]:
    wide = max(map(len, streams), default=0)
    for name, stream in streams.items():
        found, progress = stream.found, stream.progress
        if found is None:
            # `serve` opens all before it is ready
            when = "" if state == "starting" else ": it opens when a training script asks for it"
            yield f"{name:<{wide}}  not opened yet{when}"
        else:
            fields = "  ".join(
                field(each.name, each.dtype, each.shape, each.kind) for each in found.fields
            )
            speed = (
                f"  {1 / progress.row_s:,.0f} samples/s per worker"
                if progress is not None and progress.row_s
                else ""
            )
            samples = counted(found.samples, "sample")
            yield f"{name:<{wide}}  {samples}  batch {stream.batch_size}{speed}"
            yield f"{'':<{wide}}  {fields}"
        yield f"{'':<{wide}}  {stream.data}"
        if found is not None and found.copies:
            yield f"{'':<{wide}}  {copies_told(found.copies)}"
        stage_s = progress.stage_s if progress is not None else {}
        if time_spent := sum(stage_s.values()):
            shares = ", ".join(
                f"{stage} {seconds / time_spent:.0%}" for stage, seconds in stage_s.items()
            )
            yield f"{'':<{wide}}  workers' time: {shares}"
        if stream.failed:
            yield f"{'':<{wide}}  FAILED: {stream.failed}".split("\n")[0]
        elif progress is not None and progress.deaths:
            yield (
                f"{'':<{wide}}  {counted(progress.deaths, 'worker')} died, the last cause: "
                f"{progress.last_death}"
            )


def field(name: str, dtype: str, shape: Any, kind: str) -> str:
    """A field in a few letters: image uint8[224,224,3]."""
    if kind != "array":
        return f"{name} {kind}"
    import numpy as np

    dims = f"[{','.join(map(str, shape))}]" if shape else ""
    return f"{name} {np.dtype(dtype).name}{dims}"


def _sessions(sessions: tuple[SessionStatus, ...]) -> Iterator[str]:
    for s in sessions:
        who = f"{s.session}  {s.stream}  rank {s.rank}/{s.world_size}  pid {s.pid or '?'}"
        progress = s.progress
        if progress is None or progress.epoch is None:
            yield f"{who}  has not asked for a batch yet"
            continue
        shown = (
            _slots(progress.slots)
            if progress.group is None
            else f"group {progress.group}{behind(progress)}"
        )
        yield f"{who}  epoch {progress.epoch} step {progress.step}  {shown}"
        if len(sessions) > 1 and progress.verdict is not None:
            yield f"    {_short(progress.verdict)}"
        if progress.story:
            yield f"    {'waits for' if progress.waiting else 'next'}: {progress.story}"


def _groups(groups: tuple[GroupSnapshot, ...]) -> Iterator[str]:
    for g in groups:
        yield (
            f"{g.group}  {g.stream}  {counted(len(g.sessions), 'session')}  batches: {g.made:,} "
            f"made, {g.told:,} announced, hit rate {hit_rate(g):.0%}  {_slots(g.slots)}"
        )


def _slots(slots: Mapping[str, int]) -> str:
    states = [state for state in sorted(slots, key=_order) if slots[state]]
    signs = "".join(SLOTS.get(state, "?") * slots[state] for state in states)
    return f"{signs}  {', '.join(f'{slots[state]} {state}' for state in states)}"


def behind(session: SessionSnapshot) -> str:
    """How far a session is behind the furthest one of its group; "" if it is not."""
    return f", {counted(session.lag, 'step')} behind" if session.lag else ""


def hit_rate(group: GroupSnapshot) -> float:
    """Part of what its sessions were told of that had been made for another one, in [0, 1]."""
    return group.hits / group.told if group.told else 0.0


def _short(verdict: Verdict) -> str:
    """The verdict on one of several sessions, in a part of a line."""
    parts = [verdict.kind]
    if verdict.workers:
        parts.append(f"waits {verdict.wait_fraction:.0%} of the time")
    if verdict.need_workers is not None:
        parts.append(f"needs {verdict.need_workers:,.1f} workers")
    return ", ".join(parts)


def _order(state: str) -> int:
    return list(SLOTS).index(state) if state in SLOTS else len(SLOTS)


def _workers(workers: tuple[WorkerStatus, ...]) -> Iterator[str]:
    for worker in workers:
        w = worker.work
        pid = (
            f"pid {worker.process.pid}" if worker.process is not None and worker.process.pid else ""
        )
        node = node_of(worker)
        pid += f"  node {node}" if node else ""
        if not w.jobs:
            doing = f"  {w.doing}  {w.seconds:.1f} s" if w.doing else ""
            yield f"{w.worker:>3}  {'idle' if w.state == 'up' else w.state:<8}  {pid}{doing}"
            continue
        key = f"  {w.key!r}" if w.key else ""
        state = "busy" if w.state == "up" else w.state
        yield (
            f"{w.worker:>3}  {state:<8}  {pid}  {w.stream}  {w.stage or 'between samples'}{key} "
            f" {w.seconds:.1f} s"
        )


def _bad(quarantine: QuarantineStatus) -> Iterator[str]:
    if quarantine.count:
        yield f"{counted(quarantine.count, 'bad sample')} recorded in {quarantine.path}"
        for entry in quarantine.tail[-3:]:
            at = time.strftime("%H:%M:%S", time.localtime(entry["time"]))
            what = f"{entry['error']}: {entry['message']}".split("\n")[0]
            yield (
                f"{at}  {entry['stream']}  epoch {entry['epoch']}  {entry['key']!r} (index "
                f"{entry['index']})  {entry['stage']}: {what}"
            )
