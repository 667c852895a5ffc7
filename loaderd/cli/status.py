"""`loaderd status`: one picture of a running daemon, or its JSON."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from loaderd.cli import control_client
from loaderd.cli.exit_codes import FAULT, FINE, NO_START, CommandError
from loaderd.data import native_library
from loaderd_wire.messages import Rejected, Report, Starting

SLOTS = {"leased": "▣", "announced": "■", "ready": "◧", "filling": "▨", "ending": "▧", "free": "□"}  # from the trainer's hands to nobody's
COLOURS = {"ready": "32", "starting": "33", "draining": "33", "failed": "31", "dim": "2", "bold": "1"}
BAR = 30
SHOWN = 12  # of a long list


def run(args: argparse.Namespace) -> int:
    path = control_client.target(args.target)
    picture = fetch(path)
    if args.json:
        print(json.dumps(picture, indent=2, ensure_ascii=False))
    else:
        colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        print("\n".join(lines(picture, shutil.get_terminal_size((120, 40)).columns, colours)))
    if picture.get("failed"):
        return FAULT
    return NO_START if picture["state"] == "starting" and not args.alive else FINE


def fetch(path: str) -> dict[str, Any]:
    """The daemon's picture of itself. Raises CommandError."""
    with control_client.ControlConnection(path, "status") as line:
        for message in line.messages():
            if isinstance(message, Rejected):
                raise CommandError(f"{path}: {message.text}", FAULT)
            if isinstance(message, Starting):
                return {"state": "starting", "doing": message.text, "socket": path}
            if isinstance(message, Report):
                return json.loads(message.body)
    raise CommandError(f"the daemon at {path} is leaving", NO_START)


def lines(picture: Mapping[str, Any], width: int, colours: bool) -> Iterator[str]:
    """The picture as lines of at most `width` characters."""
    paint = _Paint(width, colours)
    state = "failed" if picture.get("failed") else picture["state"]
    head = f"loaderd {picture.get('version', '')}  {state}  pid {picture.get('pid', '?')}  {picture.get('socket', '')}"
    yield paint(head, state)
    if picture.get("config"):
        yield paint(f"config   {picture['config']}", "dim")
    native = picture.get("native", {})
    if native:
        yield paint(f"native   {native_library.described(native)}", "dim" if all(native.values()) else "failed")
    if picture.get("doing"):
        yield paint(f"doing    {picture['doing']}")
    template = picture.get("pool", {}).get("template", {})
    if template.get("stopped"):
        yield paint(f"template pid {template['pid']} is stopped by a signal (T): no worker can be started; SIGCONT lets it go on", "failed")
    if "memory" in picture:
        yield paint(f"memory   {_bar(picture['memory'])}")
    for title, rows in (
        ("STREAMS", list(_streams(picture.get("streams", {})))),
        ("SESSIONS", list(_sessions(picture.get("sessions", ())))),
        ("WORKERS", list(_workers(picture.get("workers", ())))),
        ("BAD SAMPLES", list(_bad(picture.get("quarantine", {})))),
        ("ERRORS", [error.split("\n")[0] for error in picture.get("errors", ())[-3:]]),
    ):
        if rows:
            yield ""
            yield paint(title, "bold")
            yield from (paint("  " + row) for row in rows[:SHOWN])
            if len(rows) > SHOWN:
                yield paint(f"  and {len(rows) - SHOWN} more (--json has all)", "dim")


class _Paint:
    def __init__(self, width: int, colours: bool) -> None:
        self._width, self._colours = width, colours

    def __call__(self, text: str, colour: str = "") -> str:
        text = "".join(c if c.isprintable() else "?" for c in text)
        text = text if len(text) <= self._width else text[: self._width - 1] + "…"
        return f"\033[{COLOURS[colour]}m{text}\033[0m" if self._colours and colour in COLOURS else text


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _bar(memory: Mapping[str, int]) -> str:
    used, limit = memory["segments"], max(1, memory["limit"])
    filled = min(BAR, -(-used * BAR // limit))
    return f"{'█' * filled}{'░' * (BAR - filled)} {size(used)} of {size(limit)} shared"


def _streams(streams: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    wide = max(map(len, streams), default=0)
    for name, stream in streams.items():
        fields = "  ".join(field(f["name"], f["dtype"], f["shape"], f["kind"]) for f in stream.get("fields", ()))
        speed = f"  {1 / stream['row_s']:,.0f} samples/s a worker" if stream.get("row_s") else ""
        if stream.get("opened", True):
            yield f"{name:<{wide}}  {stream['samples']:,} samples  batch {stream.get('batch_size', '?')}{speed}"
            yield f"{'':<{wide}}  {fields}"
        else:
            yield f"{name:<{wide}}  not opened, which it is when a trainer asks for it"
        yield f"{'':<{wide}}  {stream.get('data', '')}"
        if time_spent := sum(stream.get("stage_s", {}).values()):
            shares = ", ".join(f"{stage} {seconds / time_spent:.0%}" for stage, seconds in stream["stage_s"].items())
            yield f"{'':<{wide}}  workers' time: {shares}"
        if stream.get("failed"):
            yield f"{'':<{wide}}  FAILED: {stream['failed']}".split("\n")[0]
        elif stream.get("deaths"):
            yield f"{'':<{wide}}  {stream['deaths']} workers died, the last of {stream['last_death']}"


def field(name: str, dtype: str, shape: Any, kind: str) -> str:
    """A field in a few letters: image uint8[224,224,3]."""
    if kind != "array":
        return f"{name} {kind}"
    import numpy as np

    dims = f"[{','.join(map(str, shape))}]" if shape else ""
    return f"{name} {np.dtype(dtype).name}{dims}"


def _sessions(sessions: Any) -> Iterator[str]:
    for s in sessions:
        who = f"{s['session']}  {s['stream']}  rank {s['rank']}/{s['world_size']}  pid {s.get('pid') or '?'}"
        if s.get("epoch") is None:
            yield f"{who}  has not asked for a batch yet"
            continue
        slots = s.get("slots", {})
        picture = "".join(SLOTS.get(state, "?") * slots[state] for state in sorted(slots, key=_order))
        counts = ", ".join(f"{slots[state]} {state}" for state in sorted(slots, key=_order) if slots[state])
        yield f"{who}  epoch {s['epoch']} step {s['step']}  {picture}  {counts}"
        if s.get("story"):
            yield f"    {'waits for' if s.get('waiting') else 'next'}: {s['story']}"


def _order(state: str) -> int:
    return list(SLOTS).index(state) if state in SLOTS else len(SLOTS)


def _workers(workers: Any) -> Iterator[str]:
    for w in workers:
        pid = f"pid {w['pid']}" if w.get("pid") else ""
        if not w["jobs"]:
            doing = f"  {w['doing']}  {w['seconds']:.1f} s" if w.get("doing") else ""
            yield f"{w['worker']:>3}  {'idle' if w['state'] == 'up' else w['state']:<8}  {pid}{doing}"
            continue
        key = f"  {w['key']!r}" if w.get("key") else ""
        yield f"{w['worker']:>3}  {'busy' if w['state'] == 'up' else w['state']:<8}  {pid}  {w['stream']}  {w['stage'] or 'between samples'}{key}  {w['seconds']:.1f} s"


def _bad(quarantine: Mapping[str, Any]) -> Iterator[str]:
    if quarantine.get("count"):
        yield f"{quarantine['count']} set aside, in {quarantine['path']}"
        for entry in quarantine["tail"][-3:]:
            at = time.strftime("%H:%M:%S", time.localtime(entry["time"]))
            what = f"{entry['error']}: {entry['message']}".split("\n")[0]
            yield f"{at}  {entry['stream']}  epoch {entry['epoch']}  {entry['key']!r} (index {entry['index']})  {entry['stage']}: {what}"
