"""The rules of the layers hold, and whoever breaks one is caught."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from loaderd.config.load import tomllib
from loaderd_testing.deadlines import DEADLINE_S

ROOT = Path(__file__).parents[2]
FLOORS, PURE, APART, TREATY = (
    "layers of the daemon",
    "the pure parts are pure",
    "daemon and client never import each other",
    "the wire imports neither",
)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of what is installed, to be spoilt."""
    for name in ("loaderd", "client", "pyproject.toml", "README.md", "LICENSE"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
            )
        else:
            shutil.copy(source, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("loaderd/core/order.py", "import time", PURE),
        ("client/loaderd_wire/slots.py", "import os", PURE),
        ("client/loaderd_client/protocol.py", "import threading", PURE),
        ("loaderd/core/slots.py", "import loaderd.config.stream", FLOORS),
        ("loaderd/system/loop.py", "import loaderd.server.admission", FLOORS),
        ("loaderd/config/load.py", "import loaderd.server.daemon", FLOORS),
        ("loaderd/server/admission.py", "import loaderd_client.protocol", APART),
        ("client/loaderd_client/loader.py", "import loaderd.core.order", APART),
        ("client/loaderd_wire/codec.py", "import loaderd_client.protocol", TREATY),
        ("loaderd/attic.py", "", FLOORS),
    ],
)
def test_a_planted_import_breaks_its_contract(
    copy: Path, file: str, line: str, contract: str
) -> None:
    text = (copy / file).read_text() if (copy / file).exists() else ""
    (copy / file).write_text(f"{text}\n{line}\n")
    done = subprocess.run(
        [Path(sysconfig.get_path("scripts")) / "lint-imports", "--no-cache"],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": f"{copy}{os.pathsep}{copy / 'client'}", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{contract} BROKEN" in done.stdout


def test_nothing_lies_at_the_top_level_but_what_belongs_there() -> None:
    listed = subprocess.run(
        ["git", "ls-files"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    ).stdout.splitlines()
    top = {name.split("/")[0] for name in listed if not name.startswith(".")}
    assert top == {
        "loaderd",
        "client",
        "tests",
        "deploy",
        "README.md",
        "pyproject.toml",
        "Makefile",
        "LICENSE",
        "CHANGELOG.md",
    }


def imported(file: Path) -> set[str]:
    """Top names of what a script imports."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {
        name.split(".")[0]
        for name in plain | {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    }


def test_the_demo_installs_what_it_imports_and_no_tool_for_developers(tmp_path: Path) -> None:
    command = ["make", "--dry-run", "--no-print-directory", f"VENV={tmp_path}", "demo"]
    commands = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=DEADLINE_S
    ).stdout.splitlines()
    (setup,) = [line for line in commands if ".ci/venv" in line]
    extras = setup.split(".ci/venv")[1].split()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {
        re.split(r"[^\w-]", one)[0]
        for extra in extras
        for one in project["optional-dependencies"][extra]
    }
    wanted |= {re.split(r"[^\w-]", one)[0] for one in project["dependencies"]} | {
        "torch",
        "loaderd",
        "loaderd_client",
    }
    names = {"pillow": "PIL", "scikit-learn": "sklearn"}
    demo = {
        name for file in (ROOT / "deploy" / "demo").glob("*.py") for name in imported(file)
    } - sys.stdlib_module_names
    assert demo <= {names.get(one, one) for one in wanted}
    assert "sklearn" in demo
    assert not wanted & {
        re.split(r"[^\w-]", one)[0] for one in project["optional-dependencies"]["dev"]
    }


def test_no_source_file_is_longer_than_a_noun_deserves() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for folder in ("loaderd", "client")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert [name for name, length in lengths.items() if length > 400] == []


def modules() -> dict[str, Path]:
    """Each module of daemon, client and wire by its name."""
    found: dict[str, Path] = {}
    for root, base in (
        ("loaderd", ROOT),
        ("loaderd_client", ROOT / "client"),
        ("loaderd_wire", ROOT / "client"),
    ):
        for path in sorted((base / root).rglob("*.py")):
            found[
                ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")
            ] = path
    return found


def test_no_two_classes_have_one_name() -> None:
    where: dict[str, list[str]] = {}
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(name)
    assert len(where) > 200, "the search finds nothing"
    assert {name: places for name, places in where.items() if len(places) > 1} == {}


def test_no_files_import_each_other_in_a_circle() -> None:
    known = modules()
    below: dict[str, set[str]] = {}
    for name, path in known.items():
        below[name] = set()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module:
                below[name] |= {
                    full if (full := f"{node.module}.{one.name}") in known else node.module
                    for one in node.names
                }
        below[name] &= set(known) - {name}
    assert sum(map(len, below.values())) > 500, "the search finds nothing"
    while leaves := {name for name, needs in below.items() if not needs}:
        below = {name: needs - leaves for name, needs in below.items() if name not in leaves}
    assert below == {}
