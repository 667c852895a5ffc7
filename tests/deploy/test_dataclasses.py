"""What crosses a boundary is a value: whoever has it can neither change it nor add to it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

# State that its owner changes; everything else is frozen.
STATE = {
    "cli/check": {"Difference", "FieldTally", "Findings", "Scan", "ScanStats", "Sizes", "_Mapped"},
    "core": {
        "Announced",
        "PlannedBatch",
        "PoolUsage",
        "PoolWorker",
        "RunningJob",
        "SchedulerState",
        "StreamState",
        "WorkerPace",
    },
    "data/jpeg": {"JpegImage", "JpegScan"},
    "data/packing": {"PrintedNote"},
    "engine": {"ExitReason", "Launched", "_Entry"},
    "loaderd_client": {"AdmittedSession", "AwaitedBatch", "Pass", "Stats"},
    "server": {"RegisteredSession", "ReservedMemory"},
    "server/page": {"ShownBatch"},
    "system": {"_Held", "_Window"},
    "worker": {"GeneratorUse", "WorkerStream"},
}
# What keys and values of the config may be: they are fields of a dataclass, and have defaults.
NO_SLOTS = {"types.py", "schema.py"}


def dataclasses() -> Iterator[tuple[Path, str, dict[str, bool]]]:
    """(file, name, what its decorator says) of each one of the product."""
    for folder in ("loaderd", "client"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                for decorator in node.decorator_list if isinstance(node, ast.ClassDef) else ():
                    call = decorator.func if isinstance(decorator, ast.Call) else decorator
                    if isinstance(call, ast.Name) and call.id == "dataclass":
                        given = decorator.keywords if isinstance(decorator, ast.Call) else []
                        said = {str(one.arg): ast.literal_eval(one.value) for one in given}
                        yield path, node.name, said  # type: ignore[union-attr]  # a ClassDef


def test_every_dataclass_is_frozen_but_for_state() -> None:
    unlike = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, name, said in dataclasses()
        if not said.get("frozen", False)
        and not any(
            path.parent.as_posix().endswith(folder) and name in names
            for folder, names in STATE.items()
        )
    ]
    assert unlike == []


def test_all_state_that_is_named_here_is_there() -> None:
    changing = {name for _, name, said in dataclasses() if not said.get("frozen", False)}
    assert changing == set().union(*STATE.values())


def test_every_dataclass_has_slots() -> None:
    unlike = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, name, said in dataclasses()
        if not said.get("slots", False)
        and not (path.parent.name == "config" and path.name in NO_SLOTS)
    ]
    assert unlike == []
