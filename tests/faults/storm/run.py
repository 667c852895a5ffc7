"""The long storm: python -m faults.storm.run --minutes 30 [--seed N].

Prints the seed first, a table last; exit code 1 if anything went wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from faults.storm.storm import Storm


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--seats", type=int, default=5, help="trainers at a time")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument(
        "--gap", type=float, default=1.5, help="seconds between two faults, on average"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help="where to, instead of a temporary folder that goes again if all went well",
    )
    given = parser.parse_args()
    print(f"storm of {given.minutes:g} minutes: --seed {given.seed}", flush=True)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="storm-"))
    folder.mkdir(exist_ok=True)
    storm = Storm(
        folder,
        given.seed,
        given.minutes * 60,
        seats=given.seats,
        workers=given.workers,
        samples=4000,
        gap_s=given.gap,
        timeout_s=3.0,
    )
    tally = storm.run()
    print(tally.markdown(), flush=True)
    if tally.wrong():
        print(f"what happened is in {folder}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
