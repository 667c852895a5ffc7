"""What type checkers know of the public API: mypy and pyright say of a user's script what its
comments say.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from loaderd_testing.deadlines import DEADLINE_S

ROOT = Path(__file__).parents[2]
USER = Path(__file__).with_name("typed_user.py")
PATHS = f"{ROOT}{os.pathsep}{ROOT / 'client'}"
Said = tuple[dict[int, str], set[int]]  # line -> revealed type, lines that are refused


# All that the script uses of torch: mypy reads the whole of a package, and torch's takes it
# minutes. pyright gets the real one.
TORCH = """
class device: ...
class dtype: ...
class Tensor:
    def to(self, device: str) -> Tensor: ...
"""


def mypy(folder: Path) -> Said:
    (folder / "torch.pyi").write_text(TORCH)
    (folder / "mypy.ini").write_text("[mypy]\nwarn_unused_ignores = True\n")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--no-incremental",
        "--follow-imports=silent",
        "--config-file",
        "mypy.ini",
        "user.py",
    ]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "MYPYPATH": PATHS},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    found = [
        re.fullmatch(r"user\.py:(\d+): (note|error): (.*)", line)
        for line in done.stdout.splitlines()
    ]
    said = [(int(one[1]), one[2], one[3]) for one in found if one]
    assert said, done.stdout + done.stderr
    revealed = {
        line: text.split('"')[1] for line, _, text in said if text.startswith("Revealed type")
    }
    return revealed, {line for line, kind, _ in said if kind == "error"}


def pyright(folder: Path) -> Said:
    (folder / "pyrightconfig.json").write_text(
        json.dumps({"extraPaths": PATHS.split(os.pathsep), "pythonVersion": "3.10"})
    )
    command = [
        str(Path(sysconfig.get_path("scripts")) / "pyright"),
        "--pythonpath",
        sys.executable,
        "--outputjson",
        "user.py",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S)
    said = [
        (one["range"]["start"]["line"] + 1, one["severity"], one["message"])
        for one in json.loads(done.stdout)["generalDiagnostics"]
    ]
    revealed = {
        line: text.rpartition(' is "')[2].rstrip('"')
        for line, severity, text in said
        if severity == "information"
    }
    return revealed, {line for line, severity, _ in said if severity == "error"}


def plain(text: str) -> str:
    """A type without the modules that a checker writes before its names, and without what numpy's
    release says in the brackets of its arrays.
    """
    text = re.sub(r"\b(?:\w+\.)+(?=\w)", "", text)
    return re.sub(r"ndarray\[(?:[^\[\]]|\[[^\]]*\])*\]", "ndarray", text).replace(
        "Array", "ndarray"
    )


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_checker_sees_fields_next_and_arguments_as_what_they_are(
    checker: Callable[[Path], Said], tmp_path: Path
) -> None:
    text = USER.read_text()
    (tmp_path / "user.py").write_text(text)
    lines = list(enumerate(text.splitlines(), 1))
    types = {
        number: line.rpartition("# is ")[2]
        for number, line in lines
        if line.lstrip().startswith("reveal_type")
    }
    refused = {number for number, line in lines if line.endswith("# error")}
    assert types
    assert refused
    revealed, errors = checker(tmp_path)
    assert {number: plain(text) for number, text in revealed.items()} == types
    assert errors == refused
