"""`loaderd top`: a live page of a running daemon in a terminal."""

from __future__ import annotations

import argparse
import os
import sys
import time

from loaderd.cli import control_client, status
from loaderd.cli.exit_codes import need
from loaderd.cli.output import show
from loaderd.cli.top.follower import DaemonPicture, Follower


def run(args: argparse.Namespace) -> int:
    """Exit code of `loaderd top`. Raises CommandError where no daemon answers at the start."""
    path = control_client.target(args.target)
    found = status.fetch(path, control_client.config_of(args.target))
    picture = DaemonPicture(found, time.monotonic())
    plain = not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb"
    if not plain:
        need("rich")
    with Follower(path, picture, args.interval) as follower:
        if plain:
            return _blocks(follower)
        from loaderd.cli.top import screen  # with rich

        return screen.show(follower)


def _blocks(follower: Follower) -> int:
    """One block of plain lines after the other, until Ctrl-C or until nobody reads them."""
    while True:
        picture = follower.picture
        told = status.lines(picture.status, status.columns(), colours=False)
        lines = [time.strftime("%H:%M:%S"), *told]
        if picture.trouble:
            lines[1:] = [picture.trouble]
        show("\n".join(lines) + "\n", flush=True)
        follower.wait(picture)
