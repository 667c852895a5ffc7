"""The benchmark of borrowed workers works: no line promises more than its links and workers give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CLUSTER = Path(__file__).with_name("cluster.py")


def test_rows_are_bounded_by_workers_and_by_the_link(tmp_path: Path) -> None:
    command = [sys.executable, str(CLUSTER), "--small"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = ([*part.splitlines()] for part in done.stdout.strip().split("\n\n"))
    rows = [line.strip("| ").split(" | ") for line in first[2:]]
    assert [row[1] for row in rows] == ["5 Gbit/s", "100 Gbit/s"]
    link, workers = ({"rows": float(row[3].replace(",", "")), "limit": row[7]} for row in rows)
    assert link["limit"] == "link"
    assert link["rows"] <= 1.05 * 5e9 / 8 / (224 * 224 * 3)
    assert workers["limit"] == "workers"
    assert link["rows"] < workers["rows"] <= 1.05 * 10 / 0.0012
    faults = {line.strip("| ").split(" | ")[0]: line for line in second[2:]}
    assert len(faults) == 5
    assert float(faults["a host is lost each second, for 10 s"].split(" | ")[3].strip("| ")) > 0
