"""The wheel that `make wheel` builds: what it holds, on which Python and Linux it runs, and that
the same sources give the same bytes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from loaderd_testing.deadlines import DEADLINE_S

ROOT = Path(__file__).parents[2]
BUILT = ("loaderd", "client", "deploy", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md")


def sources(folder: Path) -> Path:
    """A copy of what a wheel is built from, without what an earlier build has left."""
    for name in BUILT:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name,
                folder / name,
                ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so"),
            )
        else:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def build(tree: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """A compiler at work for some ten seconds: the time limit is twice the usual one, and ends the
    compiler too.
    """
    env = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", **more}
    command = [sys.executable, "deploy/build_wheel.py"]
    with subprocess.Popen(
        command,
        cwd=tree,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=2 * DEADLINE_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def wheel_of(tree: Path) -> Path:
    (wheel,) = (tree / "dist").glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = sources(tmp_path_factory.mktemp("first") / "tree")
    done = build(tree)
    assert done.returncode == 0, done.stdout + done.stderr
    return tree


def test_a_wheel_holds_every_module_the_native_parts_and_nothing_else(built: Path) -> None:
    assert "-py3-none-manylinux_2_17_" in wheel_of(built).name
    with zipfile.ZipFile(wheel_of(built)) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "loaderd").rglob("*.py")}
    modules |= {
        str(path.relative_to(ROOT / "client"))
        for path in (ROOT / "client").glob("loaderd_*/**/*.py")
    }
    typed = {f"{package}/py.typed" for package in ("loaderd", "loaderd_client", "loaderd_wire")}
    page = {f"loaderd/server/page/{name}" for name in ("index.html", "page.css", "page.js")}
    assert packed == modules | typed | page | {
        f"loaderd/data/{name}.so" for name in ("_crop", "_jpeg", "_rows")
    }


def test_an_installed_wheel_finds_its_native_parts(built: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel_of(built)) as archive:
        archive.extractall(tmp_path)
    script = (
        "import loaderd; print(loaderd.__file__)\n"
        "from loaderd.data.lmdb import page_reader\n"
        "from loaderd.data.jpeg import fused_decode, rewrite\n"
        "assert page_reader.library() and fused_decode.library() and rewrite.can_rewrite()"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "loaderd" / "__init__.py")


def test_the_same_sources_elsewhere_give_the_same_bytes(built: Path, tmp_path: Path) -> None:
    other = sources(tmp_path / "another" / "place")
    assert build(other).returncode == 0
    assert wheel_of(other).read_bytes() == wheel_of(built).read_bytes()


def test_a_wheel_without_its_native_parts_is_refused(tmp_path: Path) -> None:
    tree = sources(tmp_path / "tree")
    for source in (tree / "loaderd" / "data" / "native").glob("*.c"):
        source.write_text("#error not today\n" if source.stem == "rows" else "static int none;\n")
    done = build(tree)
    assert done.returncode == 1
    assert ": _rows could not be built: is there a C compiler?" in done.stderr
    assert not (tree / "dist").exists()
