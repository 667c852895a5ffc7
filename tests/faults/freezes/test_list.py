"""README.md's list is true: every test that it names is there, and no case is left out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from faults.freezes.torch_side import CASES as CASES_TRIED

HERE = Path(__file__).parent
TEXT = (HERE / "README.md").read_text()
CASES = [
    "A1",
    "A2",
    "A4",
    "A5",
    "A6",
    "A7",
    "A9",
    "A10",
    "B1",
    "B2",
    "B3",
    "B4",
    "B6",
    "B7",
    "B8",
    "B9",
    "B11",
    "B12",
    "C1",
    "C2",
    "C5",
    "C6",
    "C7",
    "C8",
    "D1",
    "D2",
    "D4",
    "D5",
    "D6",
    "D8",
    "D10",
    "E1",
    "E3",
    "E4",
    "E5",
    "E6",
    "E7",
    "E8",
    "E11",
    "F1",
    "F2",
    "F3",
    "G1",
    "G3",
    "G4",
    "G5",
    "G6",
    "H1",
    "H2",
    "H3",
    "H4",
    "H6",
    "H7",
    "H9",
    "I1",
    "I2",
    "I3",
    "I6",
    "I7",
    "J1",
    "J2",
    "J3",
    "J4",
    "J5",
    "J6",
    "J8",
    "K2",
    "K3",
    "K4",
] + [f"S{n}" for n in range(1, 27)]


def names_in(path: Path) -> set[str]:
    return {
        node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)
    }


def test_every_test_that_the_list_names_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", TEXT)
    assert len(named) > 100
    for path, name in named:
        assert (HERE.parents[1] / path).exists(), path
        assert not name or name in names_in(HERE.parents[1] / path), f"{path}::{name}"


def test_every_case_has_its_line() -> None:
    lines = [line.split("|")[1] for line in TEXT.splitlines() if re.match(r"\| [A-Z]\d", line)]
    listed: set[str] = set()
    for line in lines:
        for letter, first, last in re.findall(r"([A-Z])(\d+)(?: to [A-Z](\d+))?", line):
            listed |= {f"{letter}{n}" for n in range(int(first), int(last or first) + 1)}
    assert listed == set(CASES)


def test_every_account_has_been_tried_under_dataloader() -> None:
    _, _, beside = TEXT.partition("## Beside torch's DataLoader")
    tried = re.findall(r"^\| (S\d+) ", beside, re.M)
    assert set(tried) == {f"S{n}" for n in range(1, 27)}
    recorded = re.findall(r"^\| ([A-Z]\d+ .*?) \|", beside.partition("## Public reports")[0], re.M)
    assert sorted(recorded) == sorted(case.name for case in CASES_TRIED)


def test_no_placeholder_is_left() -> None:
    assert "@@" not in TEXT
