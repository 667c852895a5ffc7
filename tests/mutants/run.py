"""`make mutants N=100 SEED=n`: draws N small mistakes over the product and says which of them no
test notices. README.md of tests says more.

Everything happens in copies of the tree. A test that fails is tried on an unchanged copy too: if it
fails there as well, it proves nothing and is left out.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from mutants.nearest import Nearest
from mutants.sites import Mutant, draw

ROOT = Path(__file__).parents[2]
HANGS_S = "90"  # a test that takes so long has failed
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py(?:::\S.*?)?)(?: - .*)?$", re.M)


@dataclass
class Tester:
    """Two copies of the tree, one to be changed."""

    folder: Path
    jobs: int
    limit_s: float  # for all the tests of one mutant
    # test -> whether it passes on the unchanged copy
    sound: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.changed, self.clean = self.folder / "changed", self.folder / "clean"
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
        files = [
            name
            for name in os.fsdecode(listed.stdout).split("\0")
            if name and (ROOT / name).is_file()
        ]
        built = [str(path.relative_to(ROOT)) for path in (ROOT / "loaderd" / "data").glob("*.so")]
        for copy in (self.changed, self.clean):
            for name in files + built:
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name)

    def kills(self, mutant: Mutant, rings: list[list[str]]) -> tuple[str, int]:
        """(what noticed it, or "" where nothing did in the time for it; how many files of tests
        were through before).
        """
        place = self.changed / mutant.file
        place.write_text(mutant.code)
        end_s = time.monotonic() + self.limit_s
        out: list[str] = []
        through = 0
        try:
            for files in rings:
                while (left_s := end_s - time.monotonic()) > 0:
                    code, failed = self._run(self.changed, files, left_s, out)
                    through += len(files) if code == 0 else 0
                    if code == 0 or code is None:
                        break
                    if not failed:
                        return "tests that can't be collected", through
                    if self._sound(failed):
                        return failed, through
                    out.append(failed)
            return "", through
        finally:
            shutil.copy2(self.clean / mutant.file, place)

    def _sound(self, test: str) -> bool:
        if test not in self.sound:
            self.sound[test] = self._run(self.clean, [test], self.limit_s, [])[0] == 0
        return self.sound[test]

    def _run(
        self, copy: Path, files: list[str], limit_s: float, out: list[str]
    ) -> tuple[int | None, str]:
        """(exit code, first failed test). None: the time was over."""
        options = [
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "--timeout",
            HANGS_S,
            "-n",
            str(self.jobs if len(files) > 1 else 0),
        ]
        command = [sys.executable, "-m", "pytest", *options, *files]
        command += [f"--deselect={test}" for test in out]
        env = {
            **os.environ,
            "PYTHONPATH": f"{copy}{os.pathsep}{copy / 'client'}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(
                command,
                cwd=copy,
                env=env,
                stdout=said,
                stderr=said,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            said.seek(0)
            failed = FAILED.search(said.read())
        return code, failed[1] if failed else ""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=400.0, help="for the tests of one mutant")
    parser.add_argument(
        "--among",
        nargs="+",
        default=[],
        metavar="WORD",
        help="only files whose path has one of these words",
    )
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    among = f" AMONG={' '.join(given.among)!r}" if given.among else ""
    print(f"mutants: N={given.count} SEED={seed}{among}", flush=True)
    survivors: list[Mutant] = []
    untold = 0  # for which there was not even the time for the nearest tests
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tester = Tester(Path(folder), given.jobs, given.seconds)
        mutants, nearest = draw(tester.clean, given.count, seed, given.among), Nearest(tester.clean)
        for number, mutant in enumerate(mutants, 1):
            begin_s = time.monotonic()
            rings = nearest.rings(mutant.file)
            by, through = tester.kills(mutant, rings)
            end = (
                f"by {by}"
                if by
                else (
                    f"{through} of {sum(map(len, rings))} files of tests were through in the "
                    "time for it"
                )
            )
            late = not by and bool(rings) and through < len(rings[0])
            print(
                f"{number:4} {'died' if by else 'no verdict' if late else 'LIVES'} "
                f"{time.monotonic() - begin_s:4.0f} s  {mutant}\n    {end}",
                flush=True,
            )
            untold += late
            if not by and not late:
                survivors.append(mutant)
    decided = len(mutants) - untold
    print(
        f"\n{decided - len(survivors)} of {decided} died, SEED={seed}"
        + (f"; no time for {untold} more (--seconds)" if untold else "")
    )
    print("those that live:")
    print("\n".join(map(str, survivors)) or "none")
    unsound = [test for test, passes in tester.sound.items() if not passes]
    if unsound:
        print("tests that fail on the unchanged tree too: " + ", ".join(unsound))
    return 0


if __name__ == "__main__":
    sys.exit(main())
