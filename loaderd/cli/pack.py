"""`loaderd pack`: a folder of images or a dataset becomes one database."""

from __future__ import annotations

import argparse
import os
import sys

from loaderd.cli.exit_codes import FINE, NO_START, USAGE, CommandError, need
from loaderd.cli.progress import ProgressLine
from loaderd.cli.status import size

SHOWN_BAD = 20


def run(args: argparse.Namespace) -> int:
    if args.kind != "dataset" and args.args:
        raise CommandError(f"--args is for pack dataset; {args.kind} takes none", USAGE)
    if args.kind == "dataset" and args.random_access is not None:
        raise CommandError(
            "--random-access is for pack imagefolder; what a dataset returns is stored unchanged",
            USAGE,
        )
    for option, given in (("--classes", args.classes), ("--classes-from", args.classes_from)):
        if args.kind == "dataset" and given is not None:
            raise CommandError(
                f"{option} is for pack imagefolder; a dataset gives its class names in its "
                "attribute `classes`",
                USAGE,
            )
    need("lmdb", "simplejpeg", "cv2", "PIL")
    from loaderd.data.errors import SourceError
    from loaderd.data.jpeg import rewrite
    from loaderd.data.packing import class_names, inputs

    with ProgressLine("samples") as progress:
        shown = 0

        def bad(name: str, reason: str) -> None:
            nonlocal shown
            shown += 1
            if shown <= SHOWN_BAD:
                progress.say(f"loaderd: left out: {name}: {reason}")

        def waits(name: str, waited_s: float) -> None:
            progress.say(
                f"loaderd: reading {name} has taken {waited_s:.0f} s so far: does its file system "
                "respond?"
            )

        try:
            if args.kind == "imagefolder":
                wanted = args.random_access is not False
                if wanted and not rewrite.can_rewrite():
                    progress.say(f"loaderd: JPEGs keep their bytes: {rewrite.HELP}")
                names = class_names.of_file(args.classes) if args.classes is not None else None
                names = (
                    class_names.of_database(args.classes_from)
                    if args.classes_from is not None
                    else names
                )
                report = inputs.pack_imagefolder(
                    args.src,
                    args.db,
                    progress=progress,
                    bad=bad,
                    random_access=wanted,
                    classes=names,
                    waits=waits,
                )
            else:
                sys.path.insert(0, os.getcwd())
                report = inputs.pack_dataset(
                    args.src, args.args, args.db, progress=progress, bad=bad
                )
        except SourceError as error:
            raise CommandError(f"{error}\n{error.traceback}".strip(), NO_START) from error
        except KeyboardInterrupt:
            progress.say("loaderd: interrupted; the same command continues from here")
            raise
    _tell(report)
    return FINE


def _tell(report) -> None:  # a PackReport; its type would cost the imports
    if report.restarted:
        sys.stderr.write(
            "loaderd: the source has changed since an interrupted run: everything was packed "
            "again\n"
        )
    elif report.resumed_at:
        sys.stderr.write(
            f"loaderd: continued at sample {report.resumed_at:,}, where an earlier run was "
            "interrupted\n"
        )
    for remark, count in report.tally:
        sys.stderr.write(f"loaderd: {count:,} {'image' if count == 1 else 'images'} {remark}\n")
    for note in report.notes:
        sys.stderr.write(f"loaderd: {note}\n")
    if report.bad_count:
        more = (
            "; the first of them:"
            if report.resumed_at
            else f"; the first {SHOWN_BAD} are named above"
            if report.bad_count > SHOWN_BAD
            else ""
        )
        sys.stderr.write(
            f"loaderd: {report.bad_count:,} bad "
            f"{'sample was' if report.bad_count == 1 else 'samples were'} left out{more}\n"
        )
        if report.resumed_at:  # an earlier run's were not seen in this one
            sys.stderr.write(
                "".join(f"loaderd:   {name}: {reason}\n" for name, reason in report.bad[:SHOWN_BAD])
            )
    classes = (
        f", {len(report.classes)} {'class' if len(report.classes) == 1 else 'classes'}"
        if report.classes
        else ", no classes"
    )
    samples = "sample" if report.samples == 1 else "samples"
    print(f"{report.path}: {report.samples:,} {samples}{classes}, {size(report.bytes)}")
