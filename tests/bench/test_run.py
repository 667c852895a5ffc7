"""The benchmark works: every figure of a workload is there for both sides, whatever it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RUN = Path(__file__).with_name("run.py")
# Words that choose the workloads, which are made from the same data; how many rows each has.
ROWS = {"1 KB": {"256 rows of 1 KB": 3}, "JPEG, ": {"JPEG, start": 2, "JPEG, memory": 2}}


def measure(
    tmp_path: Path, only: str
) -> tuple[list[list[str]], dict[str, dict[str, list[list[Any]]]]]:
    """The table's rows, and every single figure."""
    every = tmp_path / "every.json"
    command = [
        sys.executable,
        str(RUN),
        "--small",
        "--rounds",
        "1",
        "--seconds",
        "0.1",
        "--only",
        only,
        "--json",
        str(every),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    table = [
        line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("|")
    ]
    assert table[0] == ["workload", "what", "DataLoader", "loaderd", "ratio"]
    return table[2:], json.loads(every.read_text())


@pytest.mark.parametrize("only", ROWS)
def test_every_figure_of_a_workload_is_told_for_both_sides(tmp_path: Path, only: str) -> None:
    rows, every = measure(tmp_path, only)
    for title, least in ROWS[only].items():
        assert sum(row[0].startswith(title) for row in rows) >= least
    for row in rows:
        assert len(row) == 5
        assert float(row[2].replace(",", "")) > 0
        assert float(row[3].replace(",", "")) > 0
        assert row[4].endswith("x")
    assert len(every) == len(ROWS[only])
    for runs in every.values():
        assert len(runs["dataloader"]) == 1
        assert all(len(way) == 1 for way in runs["loaderd"])
