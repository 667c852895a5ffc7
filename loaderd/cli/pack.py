"""`loaderd pack`: a source of some kind becomes one database."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from loaderd.cli.exit_codes import FINE, NO_START, USAGE, CommandError, need
from loaderd.cli.output import show, tell
from loaderd.cli.status import size
from loaderd.data.packing.kinds import KINDS, OPTIONS, opened, that_take
from loaderd.system.progress import ProgressLine
from loaderd_wire.hints import counted
from loaderd_wire.plain_text import one_line

if TYPE_CHECKING:  # its import would cost those of the encoders
    from loaderd.data.packing.inputs import PackOptions
    from loaderd.data.packing.writer import PackReport

SHOWN_BAD = 20
ALL = "0%:100%"
WHY = {
    ("coco", "resize"): ": boxes would not follow; the op `resize` with boxes moves them along",
    ("parquet", "shuffle"): ": shuffle what was packed: loaderd pack lmdb DB NEW.lmdb --shuffle",
    ("dataset", "random_access"): ": what a dataset returns is stored unchanged",
    ("dataset", "classes"): ": its attribute `classes` has the names",
    ("dataset", "classes_from"): ": its attribute `classes` has the names",
}


def run(args: argparse.Namespace) -> int:
    """Exit code of `loaderd pack`; CommandError says what its source or its options lack."""
    _refuse_options_of_another_kind(args)
    need("lmdb", "simplejpeg", "cv2", "PIL")
    from loaderd.data.errors import SourceError

    if args.kind in ("dataset", "lmdb"):  # whose code may lie here
        sys.path.insert(0, os.getcwd())
    with ProgressLine("samples") as progress:
        try:
            report = (_dataset if args.kind == "dataset" else _items)(args, progress)
        except SourceError as error:
            raise CommandError(f"{error}\n{error.traceback}".strip(), NO_START) from error
        except KeyboardInterrupt:
            progress.say("loaderd: interrupted; the same command continues from here")
            raise
    _tell(report)
    return FINE


def _refuse_options_of_another_kind(args: argparse.Namespace) -> None:
    takes = KINDS[args.kind].takes
    if len(args.src) > 1 and not KINDS[args.kind].many:
        raise CommandError(
            f"pack {args.kind} takes one SRC and one DB; these are {len(args.src) + 1} names: "
            f"{' '.join([*args.src, args.db])}",
            USAGE,
        )
    for option in OPTIONS:
        value = getattr(args, option)
        given = value is not None if option == "random_access" else bool(value)
        if given and option not in takes:
            raise CommandError(
                f"--{option.replace('_', '-')} is for pack {', '.join(that_take(option))}; "
                f"{args.kind} takes none{WHY.get((args.kind, option), '')}",
                USAGE,
            )


def _items(args: argparse.Namespace, progress: ProgressLine) -> PackReport:
    from loaderd.data import class_names
    from loaderd.data.jpeg import rewrite
    from loaderd.data.packing import inputs
    from loaderd.data.packing.source import SourceOptions

    def waits(name: str, waited_s: float) -> None:
        progress.say(
            f"loaderd: reading {name} has taken {waited_s:.0f} s so far: does its file system "
            "respond?"
        )

    wanted = args.random_access is not False and "random_access" in KINDS[args.kind].takes
    if wanted and not rewrite.can_rewrite():
        progress.say(f"loaderd: JPEGs keep their bytes: {rewrite.HELP}")
    names = class_names.of_file(args.classes) if args.classes is not None else None
    if args.classes_from is not None:
        names = class_names.of_database(args.classes_from)
    with ProgressLine("files looked at") as looking:
        first, *more = args.src
        said = SourceOptions(args.fields, names, args.args, tuple(more), looking)
        return inputs.pack_source(
            opened(args.kind, first, said),
            args.db,
            _options(args),
            progress=progress,
            bad=_BadInputs(progress).tell,
            waits=waits,
        )


def _dataset(args: argparse.Namespace, progress: ProgressLine) -> PackReport:
    from loaderd.data.packing import inputs

    bad = _BadInputs(progress).tell
    return inputs.pack_dataset(
        args.src[0], args.args, args.db, progress=progress, bad=bad, options=_options(args)
    )


def _options(args: argparse.Namespace) -> PackOptions:
    from loaderd.data.packing.inputs import PackOptions

    return PackOptions(
        random_access=args.random_access is not False,
        resize=args.resize,
        quality=args.quality,
        workers=args.workers,
        split=args.split or ALL,
        shuffle=args.seed if args.shuffle else None,
        shard_bytes=args.shard,
    )


class _BadInputs:
    """Tells the first SHOWN_BAD inputs that are left out."""

    def __init__(self, progress: ProgressLine) -> None:
        self._progress = progress
        self._told = 0

    def tell(self, name: str, reason: str) -> None:
        self._told += 1
        if self._told <= SHOWN_BAD:
            self._progress.say(f"loaderd: left out: {one_line(name)}: {one_line(reason)}")


def _tell(report: PackReport) -> None:
    if report.restarted:
        tell("the source has changed since an interrupted run: everything was packed again")
    elif report.resumed_at:
        tell(f"continued at sample {report.resumed_at:,}, where an earlier run was interrupted")
    for remark, count in report.tally:
        said = remark.replace("they are", "it is") if count == 1 else remark
        tell(f"{counted(count, 'image')} {said}")
    for note in report.notes:
        tell(note)
    if report.bad_count:
        more = (
            "; the first of them:"
            if report.resumed_at
            else f"; the first {SHOWN_BAD} are named above"
            if report.bad_count > SHOWN_BAD
            else ""
        )
        tell(
            f"{report.bad_count:,} bad "
            f"{'sample was' if report.bad_count == 1 else 'samples were'} left out{more}"
        )
        if report.resumed_at:  # an earlier run's were not seen in this one
            for name, reason in report.bad[:SHOWN_BAD]:
                tell(f"  {one_line(name)}: {one_line(reason)}")
    classes = f", {counted(len(report.classes), 'class')}" if report.classes else ", no classes"
    files = f" in {report.files:,} files" if report.files > 1 else ""
    show(
        f"{report.path}: {counted(report.samples, 'sample')}{classes}, {size(report.bytes)}{files}"
    )
