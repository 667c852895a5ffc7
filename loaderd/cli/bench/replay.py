"""`loaderd bench --replay`: how fast the user's own training script is when it never waits.

A daemon serves the config where `loaderd serve` would, but makes a few batches only and hands them
out again and again. The user starts the training script beside it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from loaderd.cli import status
from loaderd.cli.exit_codes import FINE, NO_START, CommandError
from loaderd.cli.output import show, show_json, tell
from loaderd.core.verdict import WAITS, need_text

if TYPE_CHECKING:
    from loaderd.config.load import Config
    from loaderd.server.status_report import DaemonStatus

LOOK_S = 0.5  # between two looks at the daemon
TELL_S = 5.0  # between two lines


@dataclass(frozen=True, slots=True)
class TrainerLimit:
    """How fast one trainer takes batches that are there already.

    Attributes:
        stream: Its stream.
        rank: Its rank.
        world_size: Number of ranks.
        batch_size: Rows of its batches.
        batches_per_s: Batches a second that it takes if it never waits.
        worker_s_per_batch: Seconds of a worker for a batch; None if that was not measured.
        need_workers: Workers with which it never waits; None likewise.
        workers: Workers that the config gives.
    """

    stream: str
    rank: int
    world_size: int
    batch_size: int
    batches_per_s: float
    worker_s_per_batch: float | None
    need_workers: float | None
    workers: int


def run(settings: Config, args: argparse.Namespace) -> int:
    """Serve until the training script has gone, Ctrl-C, or `--seconds` of measuring are over.

    Raises:
        CommandError: The daemon cannot start, has gone, or no trainer came.
    """
    from loaderd.cli.bench import processes

    socket = settings.daemon.socket
    found: dict[int, TrainerLimit] = {}
    with tempfile.TemporaryDirectory(prefix="loaderd-replay-") as folder:
        serve = ["serve", settings.path, "--replay"]
        log = os.path.join(folder, "daemon.log")
        with processes.daemon(serve, socket, log) as process:
            process.wait_ready()
            _say(
                f"serving the first batches of {settings.path} again and again at {socket}; start "
                "your training script now, Ctrl-C ends this"
            )
            try:
                _watch(socket, found, args.seconds)
            except KeyboardInterrupt:
                _say("interrupted")
    if not found:
        raise CommandError(
            f"no training script took enough batches from {socket}; start it while "
            "loaderd bench --replay runs",
            NO_START,
        )
    limits = list(found.values())
    if args.json:
        show_json([asdict(each) for each in limits])
    else:
        show("\n".join(line for each in limits for line in lines(each)))
    return FINE


def _watch(socket: str, found: dict[int, TrainerLimit], seconds: float | None) -> None:
    """Look at the trainers until they have gone, or `seconds` after the first was measured."""
    began_s: float | None = None
    told_s = -TELL_S
    while True:
        time.sleep(LOOK_S)
        try:
            shown = status.fetch(socket)
        except CommandError:
            if found:
                return
            raise
        found |= measured(shown, found)
        now_s = time.monotonic()
        if found and began_s is None:
            began_s = now_s
        if found and not shown.sessions:
            return
        if seconds is not None and began_s is not None and now_s - began_s >= seconds:
            return
        if found and now_s - told_s >= TELL_S:
            told_s = now_s
            _say("; ".join(f"{each.batches_per_s:.1f} batches/s" for each in found.values()))


def measured(shown: DaemonStatus, before: Mapping[int, TrainerLimit]) -> dict[int, TrainerLimit]:
    """The trainers that a daemon can say something about, by number of the session.

    Args:
        shown: What the daemon tells.
        before: What was found so far: what a batch costs is told at the beginning only.
    """
    limits: dict[int, TrainerLimit] = {}
    for session in shown.sessions:
        judged = session.progress.verdict if session.progress is not None else None
        if judged is None or judged.demand_per_s is None:
            continue
        stream = shown.streams[session.stream].progress
        row_s = stream.row_s if stream is not None else None
        known = before.get(session.session)
        if row_s is not None:
            batch_s = row_s * session.batch_size
        else:  # a batch is made as a whole
            batch_s = (known and known.worker_s_per_batch) or judged.worker_s_per_batch
        limits[session.session] = TrainerLimit(
            session.stream,
            session.rank,
            session.world_size,
            session.batch_size,
            judged.demand_per_s,
            batch_s,
            None if batch_s is None else judged.demand_per_s * batch_s,
            judged.workers,
        )
    return limits


def lines(limit: TrainerLimit) -> list[str]:
    """What a trainer's limit means, for the terminal."""
    each = limit.batches_per_s
    made = [
        f"{limit.stream}  rank {limit.rank} of {limit.world_size}, batches of {limit.batch_size}",
        f"  {each:,.1f} batches/s, {each * limit.batch_size:,.0f} samples/s: a step takes "
        f"{1e3 / each:,.1f} ms where no batch is waited for",
    ]
    if limit.worker_s_per_batch is None or limit.need_workers is None:
        return made
    made.append(
        f"  a batch takes {limit.worker_s_per_batch * 1e3:,.1f} ms of a worker: "
        f"{need_text(limit.need_workers, limit.workers)}"
    )
    wait = max(0.0, 1 - limit.workers / limit.need_workers) if limit.need_workers else 0.0
    if wait < WAITS:
        made.append("  trainer-bound: a faster loader would not help")
    else:
        gets = each * (1 - wait)
        made.append(
            f"  with {limit.workers} it gets {gets:,.1f} batches/s and waits {wait:.0%} of the "
            "time: a faster loader would help"
        )
    return made


def _say(text: str) -> None:
    tell(text)
