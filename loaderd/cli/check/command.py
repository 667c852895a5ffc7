"""`loaderd check`: what a config will do, found out by doing it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import IO

from loaderd.cli.exit_codes import BROKEN_OFF, FAULTS, FINE, USAGE, CommandError, need, need_proc
from loaderd.cli.output import show, tell
from loaderd.core.class_names import disagreement
from loaderd.system.resource_limits import own_cpu_count, too_many


def run(args: argparse.Namespace) -> int:
    """Exit code of `loaderd check`: the worst of its streams."""
    need("lmdb", "simplejpeg", "cv2", "PIL")
    from loaderd.config import load
    from loaderd.data import native_library

    settings = load.load(args.config, os.environ, os.getuid())
    for text in native_library.warnings():
        tell(text)
    if args.index is not None or args.key is not None:
        from loaderd.cli.check import one_sample

        return one_sample.run(args, settings)
    from loaderd.cli.check import some_samples
    from loaderd.cli.local_stream import chosen

    need_proc()
    streams = [chosen(settings, args.stream)] if args.stream else settings.streams
    classes: some_samples.Classes = {}
    with _opened(args.bad) as bad:
        if args.all:
            from loaderd.cli.check import all_samples, staged_copies

            # Of a mixture each source is gone through, and some samples of it as a whole.
            mixed = {name for plan in streams for name in plan.of}
            streams = [plan for plan in settings.streams if plan in streams or plan.name in mixed]
            code = worst(
                some_samples.check(settings, plan, some_samples.SAMPLES, bad, classes)
                if plan.sources
                else all_samples.check(settings, plan, bad, classes, anew=args.anew)
                for plan in streams
            )
            if code != BROKEN_OFF:
                code = max(code, staged_copies.check(settings, streams))
        else:
            code = worst(
                some_samples.check(
                    settings, plan, args.samples or some_samples.SAMPLES, bad, classes
                )
                for plan in streams
            )
    for line in too_many(settings.workers.num_workers, own_cpu_count()):
        show(f"next: {line}")
    differ = disagreement(classes)
    if differ:
        show("DIFFERENT CLASSES: " + differ.replace("\n", "\n  "))
    return max(code, FAULTS) if differ else code


def worst(codes: Iterable[int]) -> int:
    """The highest exit code; nothing comes after a stream that was broken off."""
    highest = FINE
    for code in codes:
        highest = max(highest, code)
        if code == BROKEN_OFF:
            break
    return highest


def _opened(path: str | None) -> AbstractContextManager[IO[str] | None]:
    try:
        return (
            nullcontext()
            if path is None
            else open(path, "w", encoding="utf-8", errors="backslashreplace")
        )
    except OSError as error:
        raise CommandError(f"--bad {path}: {error.strerror}", USAGE) from None
