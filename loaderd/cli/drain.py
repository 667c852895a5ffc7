"""`loaderd drain`: ask a daemon to finish, and wait until it is gone."""

from __future__ import annotations

import argparse

from loaderd.cli import control_client, status
from loaderd.cli.exit_codes import FAULT, FINE, NO_START, CommandError
from loaderd.cli.output import tell
from loaderd.server.status_report import DrainStatus
from loaderd_wire.messages import Rejected, Report

GRACE_S = 30.0  # beyond the daemon's own drain_s


def run(args: argparse.Namespace) -> int:
    """Exit code of `loaderd drain`, once the daemon is gone; CommandError if it refuses."""
    path = control_client.target(args.target)
    if config := control_client.config_of(args.target):
        try:
            status.fetch(path, config)  # whose daemon is it?
        except CommandError as error:
            if error.code != NO_START:  # of one that is leaving, or gone, see below
                raise
    with control_client.ControlConnection(path, "drain") as line:
        for message in line.messages():
            if isinstance(message, Rejected):
                raise CommandError(f"{path}: {message.text}", FAULT)
            if isinstance(message, Report):
                line.patience_s = (
                    control_client.parsed(path, DrainStatus.from_json, message.body).drain_s
                    + GRACE_S
                )
    tell(f"the daemon at {path} is gone")
    return FINE
