"""How the wheel is built: the native parts know no Python, so one wheel serves every version of it.

`make wheel` calls `main`. setuptools finds the commands by `[tool.setuptools.cmdclass]` in
pyproject.toml.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from setuptools import Extension
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parents[1]
NATIVE = ("_crop", "_jpeg", "_rows")
# glibc 2.17 is from 2012; where there is no glibc it is musl. Only x86_64 with glibc has been
# tried.
POLICY = "manylinux_2_17" if platform.libc_ver()[0] == "glibc" else "musllinux_1_2"
TAG = f"{POLICY}_{platform.machine()}"


class BuildNative(build_ext):
    """Builds plain shared objects: `_rows.so`, without the name of a Python version."""

    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")) + ".so"

    def build_extension(self, ext: Extension) -> None:
        # No path of the build machine and no debug information: the same sources give the same
        # bytes.
        ext.extra_compile_args = [*ext.extra_compile_args, "-g0", f"-ffile-prefix-map={ROOT}=."]
        ext.extra_link_args = [*ext.extra_link_args, "-s", "-Wl,--build-id=none"]
        super().build_extension(ext)


class BuildWheel(bdist_wheel):
    """Tags the wheel for any Python 3 and this platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class BuildSource(sdist):
    """Adds what building needs and no package holds, and the examples."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        examples = [str(path) for path in sorted(Path("client/examples").glob("*.*"))]
        more = ["deploy/build_wheel.py", "CHANGELOG.md", *examples]
        super().make_release_tree(base_dir, [*files, *more])


def main(out: str = "dist") -> int:
    """Build an sdist and the wheel into the folder `out`, and check both. Returns the exit code."""
    target = ROOT / out
    with tempfile.TemporaryDirectory() as folder:
        # From the sdist, as whoever installs from it would build, and with the commit's time in the
        # archive.
        made = Path(folder) / "out"
        env = {
            **os.environ,
            "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH") or _commit_time(),
        }
        command = [
            sys.executable,
            "-m",
            "build",
            "--no-isolation",
            "--outdir",
            str(made),
            f"-C--build-option=--plat-name={TAG}",
            str(ROOT),
        ]
        os.umask(0o022)
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
        (wheel,), (source,) = made.glob("*.whl"), made.glob("*.tar.gz")
        fault = _fault(wheel)
        if fault:
            print(f"loaderd: {wheel.name}: {fault}", file=sys.stderr)
            return 1
        target.mkdir(exist_ok=True)
        for path in (wheel, source):
            shutil.copy(path, target / path.name)
            print(f"{out}/{path.name}")
    for left in (ROOT / "loaderd.egg-info", ROOT / "build"):
        shutil.rmtree(left, ignore_errors=True)
    return 0


def _commit_time() -> str:
    """Seconds since 1970 of the last commit."""
    command = ["git", "log", "-1", "--format=%ct"]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def _fault(wheel: Path) -> str:
    """What is wrong with the wheel, or ""."""
    if f"-py3-none-{TAG}.whl" not in wheel.name:
        return f"its tag is not py3-none-{TAG}"
    with zipfile.ZipFile(wheel) as archive:
        missing = [name for name in NATIVE if f"loaderd/data/{name}.so" not in archive.namelist()]
    if missing:
        return f"{', '.join(missing)} could not be built: is there a C compiler?"
    said = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", wheel],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = re.search(rf'platform tag:\s*"{POLICY.rpartition("_")[0]}_(\d+)_', said)
    if not found or int(found[1]) > int(POLICY.rpartition("_")[2]):
        return f"auditwheel does not take it for {TAG}:\n{said}"
    return ""


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
