"""`loaderd drain`: ask a daemon to finish, and wait until it is gone."""

from __future__ import annotations

import argparse
import json
import sys

from loaderd.cli import control_client
from loaderd.cli.exit_codes import FAULT, FINE, CommandError
from loaderd_wire.messages import Rejected, Report

GRACE_S = 30.0  # beyond the daemon's own drain_s


def run(args: argparse.Namespace) -> int:
    path = control_client.target(args.target)
    with control_client.ControlConnection(path, "drain") as line:
        for message in line.messages():
            if isinstance(message, Rejected):
                raise CommandError(f"{path}: {message.text}", FAULT)
            if isinstance(message, Report):
                drain_s = float(json.loads(message.body).get("drain_s", GRACE_S))
                line.patience_s = drain_s + GRACE_S
    sys.stderr.write(f"loaderd: the daemon at {path} is gone\n")
    return FINE
