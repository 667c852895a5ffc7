"""Whether the native parts are there is known without numpy, and whoever lacks one is told what
that costs.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from loaderd.config.load import tomllib
from loaderd.data import native_library
from loaderd_testing.deadlines import DEADLINE_S

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_every_part_that_is_built_is_looked_for() -> None:
    built = tomllib.loads(PROJECT.read_text())["tool"]["setuptools"]["ext-modules"]
    assert sorted(f"loaderd.data.{part.name}" for part in native_library.PARTS) == sorted(
        module["name"] for module in built
    )


def test_parts_that_were_not_built_are_missing_and_the_warning_says_what_that_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_library, "FOLDER", tmp_path)
    found = native_library.present()
    assert found == {"_crop": False, "_jpeg": False, "_rows": False}
    assert native_library.described(found) == "native parts missing: _crop, _jpeg, _rows"
    (text,) = native_library.warnings()
    for part in native_library.PARTS:
        assert f"without {part.name} {part.cost}" in text
        assert re.search(r"\d times", part.cost)
    assert "wheel" in text
    assert "C compiler" in text
    assert native_library.REINSTALL in text


@pytest.mark.needs("extensions")
def test_a_part_that_does_not_load_is_named_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert native_library.warnings() == []
    assert native_library.described(native_library.present()) == "native parts: _crop, _jpeg, _rows"
    for name in ("_crop.so", "_jpeg.so"):
        (tmp_path / name).symlink_to(native_library.FOLDER / name)
    (tmp_path / "_rows.so").write_bytes(b"for another machine")
    monkeypatch.setattr(native_library, "FOLDER", tmp_path)
    assert native_library.described(native_library.present()) == "native parts missing: _rows"
    (text,) = native_library.warnings()
    assert "_crop" not in text


@pytest.mark.needs("extensions")
def test_a_part_of_other_sources_is_missing() -> None:
    other = native_library.NativePart("_rows", "loaderd_rows_version", 999, "")
    assert native_library.load(other) is None
    assert (
        native_library.load(native_library.NativePart("_rows", "loaderd_no_such_function", 1, ""))
        is None
    )


def test_neither_numpy_nor_the_daemons_packages_are_needed_to_know() -> None:
    code = (
        "import sys; from loaderd.data import native_library as extension; "
        "extension.present(); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    assert not {"numpy", "lmdb", "cv2", "simplejpeg"} & set(done.stdout.split())
