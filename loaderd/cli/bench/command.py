"""`loaderd bench`: how fast the loader is alone, with a daemon of its own.

torch's DataLoader is measured beside it if asked.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import signal
import tempfile
from statistics import median
from typing import TYPE_CHECKING, Any

from loaderd.cli.exit_codes import FINE, NO_START, USAGE, CommandError, need, need_proc
from loaderd.cli.output import show, show_json, tell
from loaderd_wire.hints import counted
from loaderd_wire.paths import too_long

if TYPE_CHECKING:
    from loaderd.cli.bench.processes import BenchRun
    from loaderd.config.stream import StreamConfig

SECONDS = 10.0  # of a measurement
PREFETCH = 4  # a Loader's default
# stages are taken by the clock: beyond so much of the CPU that was had, processors were somebody
# else's
STARVED = 1.25
VERSIONS = (
    "loaderd",
    "torch",
    "numpy",
    "pyzmq",
    "lmdb",
    "simplejpeg",
    "opencv-python-headless",
    "pillow",
)
ROWS = (  # what is told, its unit, its scale, whether more is better
    ("batches/s", "batches_s", 1.0, True),
    ("samples/s", "samples_s", 1.0, True),
    ("MB/s", "bytes_s", 1e-6, True),
    ("next() p50, ms", "next_p50_s", 1e3, False),
    ("next() p99, ms", "next_p99_s", 1e3, False),
    ("next() p50 after a pause, us", "ready_p50_s", 1e6, False),
    ("next() p99 after a pause, us", "ready_p99_s", 1e6, False),
    ("trainer CPU a batch, us", "cpu_s", 1e6, False),
    ("all CPU a batch, ms", "all_s", 1e3, False),
    ("first batch, ms", "first_s", 1e3, False),
    ("first batch of a later epoch, ms", "turn_s", 1e3, False),
)
# the parts that no worker does
WHERE = {"schedule": "daemon", "announce": "daemon", "wrap": "trainer"}


def run(args: argparse.Namespace) -> int:
    """Exit code of `loaderd bench`; CommandError says why nothing was measured."""
    need("lmdb", "simplejpeg", "cv2", "PIL")
    need_proc()
    from loaderd.cli.bench import processes, replay
    from loaderd.cli.check.local_run import all_workers
    from loaderd.cli.local_stream import chosen
    from loaderd.config import load

    settings = load.load(args.config, os.environ, os.getuid())
    # so that it cleans up as after Ctrl-C
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if args.replay:
        if args.against or args.stream or args.rounds:
            raise CommandError(
                "--replay measures your own training script: leave --against, --stream and "
                "--rounds out",
                USAGE,
            )
        return replay.run(settings, args)
    args.seconds = args.seconds or SECONDS
    plan = chosen(settings, args.stream)
    if args.against and plan.sources:
        raise CommandError(
            f"--against dataloader: stream {plan.name!r} is a mixture, which no DataLoader makes; "
            f"compare a source with --stream {plan.sources[0].name}, or leave --against out",
            USAGE,
        )
    args.rounds = args.rounds or (2 if args.against else 1)
    if args.against and importlib.util.find_spec("torch") is None:
        raise CommandError(
            "--against dataloader: torch is not installed here; install it, or leave --against out",
            NO_START,
        )
    workers = all_workers(settings)
    ours: list[BenchRun] = []
    theirs: list[BenchRun] = []
    with tempfile.TemporaryDirectory(prefix="loaderd-bench-", dir=_folder()) as folder:
        for n in range(args.rounds):
            _say(
                f"loaderd, {args.seconds:g} s"
                + (f", round {n + 1} of {args.rounds}" if args.rounds > 1 else "")
            )
            ours.append(
                processes.loaderd(
                    settings, plan, os.path.join(folder, f"{n}.sock"), args.seconds, PREFETCH
                )
            )
            if args.against:
                _say(f"torch's DataLoader, {args.seconds:g} s")
                theirs.append(processes.dataloader(settings, plan, workers, args.seconds, PREFETCH))
    facts = _facts(plan, workers, args.seconds, ours, theirs)
    if args.json:
        show_json(facts)
    else:
        show("\n".join(_lines(facts)))
    return FINE


def _folder() -> str:
    """Where temporary files go, or /tmp if a socket's path would be too long there."""
    wanted = tempfile.gettempdir()
    return "/tmp" if too_long(os.path.join(wanted, "loaderd-bench-12345678", "99.sock")) else wanted


def _say(text: str) -> None:
    tell(text)


def _facts(
    plan: StreamConfig, workers: int, seconds: float, ours: list[BenchRun], theirs: list[BenchRun]
) -> dict[str, Any]:
    """Everything that was measured, as plain data."""
    from loaderd.cli.bench.processes import medians

    facts: dict[str, Any] = {
        "stream": plan.name,
        "data": plan.data_name,
        "batch_size": plan.batch_size,
        "workers": workers,
        "prefetch": PREFETCH,
        "seconds": seconds,
        "rounds": len(ours),
        "versions": _versions(),
        "loaderd": medians([_figures(made) for made in ours]),
        "parts_s": medians([{**made.parts, "wrap": made.trainer["wrap_s"]} for made in ours]),
        # what `parts_s` should add up to: whatever is computed for a batch, but for the trainer's
        # own reading of it
        "whole_s": median(
            made.all_s - made.trainer["cpu_s"] + made.trainer["wrap_s"] for made in ours
        ),
        "workers_busy": median(made.busy for made in ours) / workers,
        "ready": median(made.ready for made in ours),
    }
    if theirs:
        facts["dataloader"] = medians([_figures(made) for made in theirs])
        facts["ratio"] = {
            name: facts["loaderd"][name] / facts["dataloader"][name]
            for _, name, _, _ in ROWS
            if facts["dataloader"][name]
        }
    facts["runs"] = {
        "loaderd": [made.trainer for made in ours],
        "dataloader": [made.trainer for made in theirs],
    }
    return facts


def _figures(made: BenchRun) -> dict[str, float]:
    return {**made.trainer, "all_s": made.all_s}


def _versions() -> dict[str, str]:
    found = {
        "python": platform.python_version(),
        "linux": platform.release().split("-")[0],
        "cpus": str(os.cpu_count()),
    }
    for name in VERSIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _lines(facts: dict[str, Any]) -> list[str]:
    both = "dataloader" in facts
    lines = [
        f"{facts['stream']}  {facts['data']}",
        (
            f"  {counted(facts['workers'], 'worker')}, batches of {facts['batch_size']}, prefetch "
            f"{facts['prefetch']}, {facts['seconds']:g} s a round"
        )
        + (
            f", medians of {facts['rounds']} rounds{' in turn' if both else ''}"
            if facts["rounds"] > 1
            else ""
        ),
        "",
    ]
    if both:
        lines.append(f"  {'':<32} {'loaderd':>12} {'DataLoader':>12}")
    for text, name, scale, more in ROWS:
        if not facts["loaderd"][name]:
            continue  # no epoch has ended
        line = f"  {text:<32} {facts['loaderd'][name] * scale:>12,.4g}"
        if both:
            ratio = facts["ratio"].get(name, 0.0)
            times = ratio if more else 1 / ratio if ratio else 0.0
            line += f" {facts['dataloader'][name] * scale:>12,.4g}   {times:.2f}x"
        lines.append(line)
    parts, whole = facts["parts_s"], facts["whole_s"]
    total = sum(parts.values())
    lines += ["", "  where a batch's time goes, of all processes together"]
    lines += [
        (
            f"  {f'{part} ({WHERE[part]})' if part in WHERE else part:<32} {spent * 1e3:>9,.3g} "
            "ms  "
            f"{spent / total if total else 0:.0%}"
        )
        for part, spent in parts.items()
    ]
    lines += [
        f"  {'sum':<32} {total * 1e3:>9,.3g} ms",
        (
            f"  {'all CPU, less reading the batch':<32} {whole * 1e3:>9,.3g} ms, of which the sum "
            "is "
            f"{total / whole if whole else 0:.0%}"
        )
        + ("; the workers waited for a processor" if whole and total > STARVED * whole else ""),
        "",
        f"  workers busy {facts['workers_busy']:.0%} of the time; {facts['ready']:.1f} of "
        f"{facts['prefetch']} batches ready when looked at",
        "  " + ", ".join(f"{name} {version}" for name, version in facts["versions"].items()),
    ]
    return lines
