"""Which tests are near a module: those that import it, then those that import what imports it, and
so on.

A name of a module in a text counts as an import: that is how workers and daemons are started (`-m
loaderd`), and how a worker finds its entry point.
"""

from __future__ import annotations

import ast
import re
from functools import cached_property
from pathlib import Path

NAME = re.compile(r"\bloaderd(?:_wire|_client)?\b(?:\.\w+)*")
ANY_OF = re.compile(r"\b(loaderd[\w.]*)\.\{")  # f"loaderd.cli.{command}"
LEFT_OUT = ("fuzz", "bench", "mutants", "faults/storm")


class Nearest:
    def __init__(self, root: Path) -> None:
        self._root = root

    def rings(self, file: str) -> list[list[str]]:
        """Groups of test files, nearest first: named like the module, in a folder named like its
        own, then by imports between them.
        """
        module = _name(self._root, self._root / file)
        steps: dict[str, int] = {}
        here = {module}
        for distance in range(len(self._product)):
            steps |= dict.fromkeys(here, distance)
            here = {
                name for name, used in self._product.items() if used & here and name not in steps
            }
        rings: dict[int, list[str]] = {}
        for test, used in self._tests.items():
            near = [steps[name] for name in used if name in steps]
            if near:
                alike = Path(test).stem == f"test_{Path(file).stem}"
                beside = Path(test).parts[1] in Path(file).parts
                rings.setdefault(-2 if alike else -1 if beside else min(near), []).append(test)
        return [sorted(rings[distance]) for distance in sorted(rings)]

    @cached_property
    def _product(self) -> dict[str, set[str]]:
        """Module -> modules that it names."""
        files = {
            _name(self._root, path): path
            for folder in ("loaderd", "client")
            for path in (self._root / folder).rglob("*.py")
        }
        return {name: _named(path.read_text(), set(files)) - {name} for name, path in files.items()}

    @cached_property
    def _tests(self) -> dict[str, set[str]]:
        """Test file -> product modules that it, or a helper of the tests that it imports, names."""
        folder = self._root / "tests"
        paths = {
            str(path.relative_to(folder).with_suffix("")): path for path in folder.rglob("*.py")
        }
        # What lies in `support` is imported by its name alone.
        files = {
            name.removeprefix("support/").replace("/", "."): path
            for name, path in paths.items()
            if not name.startswith(tuple(f"{left}/" for left in LEFT_OUT))
        }
        helpers = {
            name: _named(path.read_text(), set(self._product)) for name, path in files.items()
        }
        uses = {name: _helpers(path.read_text(), set(files)) for name, path in files.items()}
        for name in uses:  # a conftest serves all tests of its folder
            uses[name] |= {
                one
                for one in (f"{name.rpartition('.')[0]}.conftest",)
                if one in files and name != one
            }
        found: dict[str, set[str]] = {}
        for name, path in files.items():
            if path.name.startswith("test_"):
                reached, rest = {name}, [name]
                while rest:
                    rest += [
                        one
                        for one in uses[rest.pop()]
                        if one not in reached and not reached.add(one)
                    ]  # type: ignore[func-returns-value]
                found[str(path.relative_to(self._root))] = set().union(
                    *(helpers[one] for one in reached)
                )
        return found


def _name(root: Path, path: Path) -> str:
    """The dotted name of a module of the product."""
    parts = path.relative_to(root).with_suffix("").parts
    parts = parts[1:] if parts[0] == "client" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _named(text: str, modules: set[str]) -> set[str]:
    """The product's modules that this source imports, or names in a text."""
    found = _imported(text) & modules
    for name in NAME.findall(text):
        while name not in modules and "." in name:
            name = name.rpartition(".")[0]  # a.b.Class
        found |= {name} & modules
    for package in ANY_OF.findall(text):
        found |= {name for name in modules if name.startswith(f"{package}.")}
    if re.search(r"[\"']-m[\"'], [\"']loaderd[\"']", text):
        found.add("loaderd.__main__")
    return found


def _helpers(text: str, files: set[str]) -> set[str]:
    return _imported(text) & files


def _imported(text: str) -> set[str]:
    """All that may be a module: of `from a import b` both a and a.b."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{one.name}" for one in node.names}
    return found
