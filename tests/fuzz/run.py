"""`make fuzz MINUTES=30`: the code in C under the address and undefined-behaviour sanitizers, fed
with damaged files. Needs a C compiler.

Begins with the files in corpus/, one folder a harness. An input that a harness dies of is kept in
the folder for temporary files, with the line that replays it; it becomes a test, and a file of the
corpus.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "loaderd" / "data" / "native"
# harness -> the sources that it reads with
SOURCES = {"jpeg": "jpeg_*.c", "crop": "crop*.c", "rows": "rows.c"}
SANITIZED = ["-O2", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
# as pyproject.toml has them for the extension: what damaged files overflow wraps
FLAGS = {"crop": ["-fwrapv", "-ffp-contract=off", "-Wno-psabi"], "jpeg": [], "rows": []}
HEAD = 8  # bytes of the length, in driver.c


def build(harness: str, folder: Path) -> Path:
    """The program for this harness.

    Raises CalledProcessError with the compiler's words on stderr.
    """
    compiler, options = (
        os.environ.get("CC", "cc"),
        [*SANITIZED, *FLAGS[harness], "-std=gnu11", f"-I{NATIVE}", "-c"],
    )
    objects = []
    for source in [
        HERE / f"{harness}.c",
        HERE / "driver.c",
        *sorted(NATIVE.glob(SOURCES[harness])),
    ]:
        objects.append(folder / f"{harness}-{source.stem}-{source.parent.name}.o")
        traced = [] if source.name == "driver.c" else ["-fsanitize-coverage=trace-pc"]
        subprocess.run([compiler, *options, *traced, source, "-o", objects[-1]], check=True)
    program = folder / f"run-{harness}"
    subprocess.run([compiler, *SANITIZED, *objects, "-lm", "-o", program], check=True)
    return program


def corpus(harness: str) -> list[Path]:
    return sorted((HERE / "corpus" / harness).iterdir())


def fuzz(program: Path, harness: str, seconds: float, seed: int, files: list[Path]) -> Path | None:
    """The input that the harness died of, or None."""
    now = program.with_suffix(".now")
    env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1"}
    if subprocess.run([program, str(seconds), str(seed), now, *files], env=env).returncode == 0:
        return None
    data = now.read_bytes()
    found = Path(tempfile.gettempdir()) / f"fuzz-{harness}-{seed}"
    found.write_bytes(data[HEAD : HEAD + int.from_bytes(data[:HEAD], sys.byteorder)])
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument(
        "--replay", type=Path, metavar="FILE", help="an input that was found; with --harness"
    )
    parser.add_argument("--harness", choices=SOURCES, action="append")
    given = parser.parse_args()
    if not shutil.which(os.environ.get("CC", "cc")):
        print("no C compiler: the code in C is not fuzzed")
        return 1 if os.environ.get("LOADERD_REQUIRE") == "all" else 0
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    harnesses, failed = given.harness or list(SOURCES), 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        for harness in harnesses:
            program = build(harness, Path(folder))
            seconds = 0 if given.replay else given.minutes * 60 / len(harnesses)
            print(f"{harness}: {seconds:.0f} s, SEED={seed}", flush=True)
            found = fuzz(
                program, harness, seconds, seed, [given.replay] if given.replay else corpus(harness)
            )
            if found:
                failed += 1
                print(
                    f"{harness}: died of {found}; again: python tests/fuzz/run.py --harness "
                    f"{harness} --replay {found}",
                    flush=True,
                )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
