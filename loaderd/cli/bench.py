"""`loaderd bench`: a word of a later version."""

from __future__ import annotations

import argparse

from loaderd.cli.failure import USAGE, CommandError


def run(args: argparse.Namespace) -> int:
    raise CommandError("bench: not in this version; `loaderd check CONFIG` measures samples/s by stage", USAGE)
