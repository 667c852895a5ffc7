"""`loaderd schema`: the config's JSON schema on stdout."""

from __future__ import annotations

import argparse
import json

from loaderd.config.schema import document


def run(args: argparse.Namespace) -> int:
    """Print the JSON schema of the config; always 0."""
    print(json.dumps(document(), indent=2))
    return 0
