"""What `loaderd top` draws: a daemon's status in as many lines and columns as there are.

Pure.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loaderd.cli.status import SLOTS, behind, hit_rate, size
from loaderd.cli.top.follower import DaemonPicture
from loaderd.core.snapshot import GroupSnapshot
from loaderd.server.status import node_of
from loaderd.server.status_report import DaemonStatus, SessionStatus, WorkerStatus

SORTS = ("worker", "seconds", "stage")
STATES = {"ready": "green", "starting": "yellow", "draining": "yellow", "failed": "bold red"}
SLOT_COLOURS = {"leased": "cyan", "announced": "green", "ready": "green", "filling": "yellow"}
LEVELS = {"error": "red", "warning": "yellow"}
BAR = 16
KEYS = "q quit   s sort   ↑↓ choose a worker   enter its stack   esc back"


@dataclass(frozen=True, slots=True)
class View:
    """What the user wants to see.

    Attributes:
        sort: How the workers are sorted: one of SORTS.
        worker: Number of the chosen worker; 0: the first.
        stack: Its stack is shown.
    """

    sort: str = SORTS[0]
    worker: int = 0
    stack: bool = False

    def after(self, key: str, status: DaemonStatus) -> View:
        """What is wanted after a key.

        Args:
            key: "sort", "up", "down", "stack" or "back".
            status: What is shown.
        """
        if key == "sort":
            return replace(self, sort=SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)])
        if key == "back":
            return replace(self, stack=False)
        numbers = [each.work.worker for each in sorted_workers(status.workers, self.sort)]
        if not numbers:
            return self
        at = numbers.index(self.worker) if self.worker in numbers else 0
        if key == "stack":
            return replace(self, worker=numbers[at], stack=True)
        at = max(0, min(len(numbers) - 1, at + (1 if key == "down" else -1)))
        return replace(self, worker=numbers[at])


def sorted_workers(workers: Iterable[WorkerStatus], sort: str) -> list[WorkerStatus]:
    """The workers in order: by number, the longest at their step first, or by stage."""
    if sort == "seconds":
        return sorted(workers, key=lambda w: (-w.work.seconds, w.work.worker))
    if sort == "stage":
        return sorted(workers, key=lambda w: (w.work.stage or "~", w.work.worker))
    return sorted(workers, key=lambda w: w.work.worker)


def page(
    picture: DaemonPicture, view: View, width: int, height: int, now_s: float
) -> RenderableType:
    """The whole page.

    Args:
        picture: What is known of the daemon.
        view: What the user wants to see.
        width: Columns.
        height: Lines.
        now_s: The time, by the clock of the picture.
    """
    status = picture.status
    top = _head(picture, width, now_s)
    room = max(0, height - len(top) - 1)
    foot = Text(_plain(KEYS), style="dim", no_wrap=True, overflow="ellipsis")
    body = _stack(status, view, room) if view.stack else _tables(status, view, room)
    return Group(*top, *body, foot)


def _head(picture: DaemonPicture, width: int, now_s: float) -> list[RenderableType]:
    status = picture.status
    state = "failed" if status.failed else status.state
    first = Text.assemble(
        f"loaderd {_plain(status.version)}  ",
        (state, STATES.get(state, "")),
        f"  pid {status.pid or '?'}  {_plain(status.socket)}",
    )
    lines = [first]
    if picture.trouble:
        ago = f"{max(0.0, now_s - picture.at_s):.0f} s old: "
        lines.append(Text(ago + _plain(picture.trouble), style="bold red"))
    elif picture.note:
        lines.append(Text(_plain(picture.note), style="yellow"))
    told = status.verdict.text if status.verdict is not None else status.doing or "no trainer"
    wrapped = textwrap.wrap(_plain(told), max(20, width)) or [""]
    lines += [Text(part, style="bold") for part in wrapped[:3]]
    if status.pool is not None and status.pool.remote is not None:
        remote = status.pool.remote
        style = "" if remote.up else "yellow"
        parts = textwrap.wrap(_plain(remote.text), max(20, width)) or [""]
        lines += [Text(part, style=style) for part in parts[:2]]
    lines.append(_totals(status))
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return list(lines)


def _totals(status: DaemonStatus) -> Text:
    rates = [s.progress.rates for s in status.sessions if s.progress and s.progress.rates]
    line = Text()
    if status.memory is not None:
        used, limit = status.memory.segments, max(1, status.memory.limit)
        filled = min(BAR, -(-used * BAR // limit))
        line.append("█" * filled, "red" if used > 0.9 * limit else "cyan")
        line.append("░" * (BAR - filled) + f" {size(used)} of {size(limit)}  ")
    line.append(f"{sum(r.batches_per_s for r in rates):,.1f} batches/s  ")
    line.append(f"{sum(r.bytes_per_s for r in rates) / 1e6:,.1f} MB/s  ")
    bad = status.quarantine.count if status.quarantine is not None else 0
    line.append(f"{bad:,} bad  ", "yellow" if bad else "")
    restarts = sum(status.restarts.values())
    line.append(f"{restarts:,} restarts", "yellow" if restarts else "")
    return line


def _tables(status: DaemonStatus, view: View, room: int) -> list[RenderableType]:
    workers = sorted_workers(status.workers, view.sort)
    groups = len(status.groups)
    titles = 4 + bool(groups)
    wants = (len(status.sessions), len(status.streams), len(workers), len(status.events), groups)
    rows = shares(room - titles, wants)
    at = next((n for n, each in enumerate(workers) if each.work.worker == view.worker), 0)
    first = max(0, min(at - rows[2] + 1, len(workers) - rows[2])) if at >= rows[2] else 0
    made = [
        _sessions(status.sessions, rows[0]),
        *([_groups(status.groups, rows[4])] if groups else []),
        _streams(status, rows[1]),
        _workers(workers, first, rows[2], at, view.sort),
        _events(status, rows[3]),
    ]
    used = sum(each.row_count + 1 for each in made)
    return [*made, *[Text("")] * max(0, room - used)]


def shares(room: int, wants: Sequence[int]) -> list[int]:
    """How many rows each table gets.

    Everybody gets the same as long as it wants more; what one does not want is the others'.

    Args:
        room: Rows that there are.
        wants: Rows that each could fill.
    """
    given = [0] * len(wants)
    while room > 0 and (hungry := [n for n, want in enumerate(wants) if given[n] < want]):
        for n in hungry[:room]:
            given[n] += 1
            room -= 1
    return given


def _table(columns: str) -> Table:
    """An empty table.

    Args:
        columns: Their titles, each with its width, below 0 for numbers, or * for what is left.
    """
    table = Table(box=None, expand=True, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column in columns.split(", "):
        title, _, width = column.rpartition(" ")
        table.add_column(
            title,
            justify="right" if width.startswith("-") else "left",
            width=None if width == "*" else abs(int(width)),
            ratio=1 if width == "*" else None,
            no_wrap=True,
            overflow="ellipsis",
        )
    return table


def _row(table: Table, *cells: object, style: str = "") -> None:
    """Add a row. Text of others is made plain; it is no markup."""
    table.add_row(
        *(each if isinstance(each, Text) else Text(_plain(str(each))) for each in cells),
        style=style,
    )


def _sessions(sessions: tuple[SessionStatus, ...], rows: int) -> Table:
    table = _table(
        "SESSIONS 12, rank -5, epoch -5, step -11, ends in -7, slots *, b/s -6, MB/s -6, waits -5"
    )
    for session in sessions[:rows]:
        progress, who = session.progress, f"{session.rank}/{session.world_size}"
        if progress is None or progress.epoch is None:
            _row(table, session.stream, who, "-", "-", "-", "no batch asked for yet")
            continue
        step = f"{progress.step}/{progress.epoch_steps or '?'}"
        place = (session.stream, who, progress.epoch, step)
        rates = progress.rates
        alone = progress.group is None
        slots = _slots(progress.slots) if alone else f"shared{behind(progress)}"
        if rates is None:
            _row(table, *place, "-", slots, "-", "-", "-")
        else:
            speed = f"{rates.batches_per_s:,.1f}", f"{rates.bytes_per_s / 1e6:,.1f}"
            _row(table, *place, until(rates.eta_s), slots, *speed, f"{rates.wait_fraction:.0%}")
    return table


def _groups(groups: tuple[GroupSnapshot, ...], rows: int) -> Table:
    table = _table("GROUPS 12, sessions -8, made -9, announced -9, hits -5, slots *")
    for each in groups[:rows]:
        counts = len(each.sessions), f"{each.made:,}", f"{each.told:,}", f"{hit_rate(each):.0%}"
        _row(table, each.stream, *counts, _slots(each.slots))
    return table


def _slots(slots: dict[str, int]) -> Text:
    bar = Text()
    for state, sign in SLOTS.items():
        bar.append(sign * slots.get(state, 0), SLOT_COLOURS.get(state, "dim"))
    return bar


def until(seconds: float | None) -> str:
    """A time as people say it: 45 s, 12:03 m, 3:07 h, 5 d."""
    if seconds is None:
        return "-"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} m"
    if whole < 48 * 3600:
        return f"{whole // 3600}:{whole % 3600 // 60:02} h"
    return f"{whole / 86400:,.0f} d"


def _streams(status: DaemonStatus, rows: int) -> Table:
    table = _table("STREAMS 12, samples -11, batch -6, a worker -10, workers' time *")
    for name, stream in list(status.streams.items())[:rows]:
        progress, found = stream.progress, stream.found
        spent = sum(progress.stage_s.values()) if progress is not None else 0.0
        if stream.failed:
            last = Text(_plain(stream.failed.split("\n")[0]), style="red")
        elif progress is not None and spent:
            parts = (f"{stage} {part / spent:.0%}" for stage, part in progress.stage_s.items())
            last = Text("  ".join(parts))
        else:
            last = Text("" if stream.opened else "not opened yet")
        speed = f"{1 / progress.row_s:,.0f}/s" if progress is not None and progress.row_s else "-"
        samples = f"{found.samples:,}" if found is not None else "-"
        _row(table, name, samples, stream.batch_size, speed, last)
    return table


def _workers(workers: list[WorkerStatus], first: int, rows: int, at: int, sort: str) -> Table:
    elsewhere = any(worker.work.remote for worker in workers)
    node = "node 12, " if elsewhere else ""
    table = _table(
        f"WORKERS -7, pid -8, {node}state 8, stream 10, stage 9, sample (by {sort}) *, seconds -8"
    )
    for n, worker in enumerate(workers[first : first + rows], first):
        w, process = worker.work, worker.process
        state = ("busy" if w.jobs else "idle") if w.state == "up" else w.state
        what = w.key if w.jobs else w.doing
        seconds = f"{w.seconds:.1f}" if w.jobs or w.doing else ""
        pid = process.pid if process is not None else "-"
        chosen = "reverse" if n == at else ""
        who = (w.worker, pid, node_of(worker)) if elsewhere else (w.worker, pid)
        _row(table, *who, state, w.stream or "", w.stage or "", what, seconds, style=chosen)
    return table


def _events(status: DaemonStatus, rows: int) -> Table:
    table = _table("EVENTS 8,  *")
    for event in reversed(status.events[-rows:] if rows else ()):
        at = time.strftime("%H:%M:%S", time.localtime(event.time))
        _row(table, at, Text(_plain(event.text), style=LEVELS.get(event.level, "")))
    return table


def _stack(status: DaemonStatus, view: View, room: int) -> list[RenderableType]:
    found = [each.work for each in status.workers if each.work.worker == view.worker]
    if not found:
        lines = [f"worker {view.worker} is gone"]
    else:
        (w,) = found
        doing = f"{w.stream} {w.stage} {w.key!r} for {w.seconds:.1f} s" if w.jobs else "no job"
        asked = "its stack was asked for; one that is stopped, or is dead, does not answer"
        lines = [f"worker {w.worker}: {doing}", *(w.stack or asked).split("\n")]
    shown = [
        Text(_plain(line), style="bold" if n == 0 else "", no_wrap=True, overflow="ellipsis")
        for n, line in enumerate(lines[:room])
    ]
    return [*shown, *[Text("")] * max(0, room - len(shown))]


def _plain(text: str) -> str:
    """Nothing in it moves the cursor."""
    return "".join(c if c.isprintable() else "?" for c in text)
