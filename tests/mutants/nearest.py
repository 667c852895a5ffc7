"""Which tests are near a module: first those of its own name, then those of its folder, then all
others, and among equals those that share the most rare words with it.

A word is a name or a part of a text: the module's own dotted name, what it defines, what it calls,
what it says.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path

WORD = re.compile(r"\b[A-Za-z_]{3,}\b|\bloaderd\w*(?:\.\w+)+")
EVERYWHERE = ("tests/deploy/test_dataclasses.py",)  # read every module, in a second
LEFT_OUT = ("fuzz", "bench", "mutants", "faults/storm")


class Nearest:
    """The order in which the tests of a tree are run against a change of one of its modules."""

    def __init__(self, root: Path) -> None:
        self._root = root
        paths = [path.relative_to(root) for path in (root / "tests").rglob("test_*.py")]
        self._tests = {
            path: _words((root / path).read_text())
            for path in sorted(paths)
            if not path.relative_to("tests").as_posix().startswith(LEFT_OUT)
        }
        self._files = Counter(word for words in self._tests.values() for word in words)

    def order(self, file: str) -> list[str]:
        """All files of tests, nearest first.

        file: of the product, relative to the root.
        """
        module = Path(file)
        parts = [part.removeprefix("loaderd_") for part in module.parts]
        words = _words((self._root / module).read_text())
        words.add(".".join(module.with_suffix("").parts).removeprefix("client."))

        def distance(test: Path) -> tuple[bool, bool, float]:
            alike = test.stem == f"test_{module.stem}" and test.parts[1] in parts
            beside = test.parts[1] in parts or test.as_posix() in EVERYWHERE
            return not alike, not beside, -self._in_common(words, test)

        return [str(test) for test in sorted(self._tests, key=distance)]

    def _in_common(self, words: set[str], test: Path) -> float:
        """Cosine of the two sets of words, each word weighed by how few files of tests have it."""
        weights = {
            word: math.log(len(self._tests) / self._files[word]) for word in self._tests[test]
        }
        length = math.sqrt(sum(weight**2 for weight in weights.values()))
        return sum(weights[word] ** 2 for word in words & weights.keys()) / max(length, 1e-9)


def _words(text: str) -> set[str]:
    return set(WORD.findall(text))
