"""`make mutants N=100 SEED=n`: draws N small mistakes over the product and says which of them no
test notices. README.md of tests says more.

Everything happens in copies of the tree, several mutants at a time. A test that fails is tried on an
unchanged copy too: if it fails there as well, it proves nothing and is left out.
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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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

    def kills(self, mutant: Mutant, tests: list[str]) -> tuple[str, int]:
        """(what noticed it, or "" where nothing did in the time for it; how many files of tests
        were through before).
        """
        place = self.changed / mutant.file
        place.write_text(mutant.code)
        end_s = time.monotonic() + self.limit_s
        out: list[str] = []
        through = 0
        try:
            for files in _doubling(tests):
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
            "0",
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


def _doubling(tests: list[str]) -> Iterator[list[str]]:
    """The first file, the next two, the next four, and so on: an end after one file costs one
    start of pytest, and all files a few.
    """
    begin = 0
    while begin < len(tests):
        yield tests[begin : 2 * begin + 1]
        begin = 2 * begin + 1


class Draw:
    """What became of the mutants of one draw."""

    def __init__(self, folder: Path, jobs: int, files: int, limit_s: float) -> None:
        self.testers = [Tester(folder / str(number), limit_s) for number in range(jobs)]
        self.died = 0
        self.untold = 0  # for whose tests there was not the time
        self._files = files
        self.survivors: list[Mutant] = []
        self._nearest = Nearest(self.testers[0].clean)

    def judge(self, numbered: tuple[int, Mutant]) -> None:
        """Runs the tests against one mutant and prints what came of it."""
        number, mutant = numbered
        tester = self.testers.pop()
        begin_s = time.monotonic()
        tests = self._nearest.order(mutant.file)[: self._files]
        by, through = tester.kills(mutant, tests)
        self.testers.append(tester)
        told = by or through == len(tests)
        word = "died" if by else "LIVES" if told else "no verdict"
        end = f"by {by}" if by else f"{through} of {len(tests)} files of tests passed"
        spent_s = time.monotonic() - begin_s
        print(f"{number:4} {word} {spent_s:4.0f} s  {mutant}\n    {end}", flush=True)
        if by:
            self.died += 1
        elif told:
            self.survivors.append(mutant)
        else:
            self.untold += 1


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--jobs", type=int, default=4, help="how many mutants at a time")
    parser.add_argument("--files", type=int, default=15, help="of tests for one mutant")
    parser.add_argument("--seconds", type=float, default=1200.0, help="for the tests of one mutant")
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
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        made = Draw(Path(folder), given.jobs, given.files, given.seconds)
        testers = list(made.testers)
        mutants = draw(testers[0].clean, given.count, seed, given.among)
        with ThreadPoolExecutor(given.jobs) as pool:
            list(pool.map(made.judge, enumerate(mutants, 1)))
    print(
        f"\n{made.died} of {made.died + len(made.survivors)} died, SEED={seed}"
        + (f"; no time for {made.untold} more (--seconds)" if made.untold else "")
    )
    print("those that live:")
    print("\n".join(map(str, made.survivors)) or "none")
    unsound = {test for tester in testers for test, passes in tester.sound.items() if not passes}
    if unsound:
        print("tests that fail on the unchanged tree too: " + ", ".join(sorted(unsound)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
