"""Docstrings of the pure parts are contracts: what they list is what the code has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    [*(ROOT / "loaderd" / "core").glob("*.py"), *(ROOT / "client" / "loaderd_wire").glob("*.py")]
)


def listed(doc: str, section: str) -> set[str] | None:
    """The names that a section of a docstring describes; None if it has no such section."""
    found = re.search(rf"^{section}:\n((?:    .*\n?|\n(?=    ))*)", doc, re.MULTILINE)
    return set(re.findall(r"^    (\w+): ", found[1], re.MULTILINE)) if found else None


def parameters(function: ast.FunctionDef) -> set[str]:
    a = function.args
    return {
        arg.arg
        for arg in [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg]
        if arg is not None
    } - {"self", "cls"}


def attributes(cls: ast.ClassDef) -> set[str]:
    """Public names that the body or a method assigns; of an exception only those of its own
    methods.
    """
    fields = {
        node.target.id
        for node in cls.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assigned = {
        node.attr
        for node in ast.walk(cls)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    return {name for name in fields | assigned if not name.startswith("_")}


def public(
    tree: ast.Module | ast.ClassDef, name: str = ""
) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef]]:
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
            yield f"{name}{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from public(node, f"{node.name}.")


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_every_public_name_has_a_contract_that_lists_what_it_has(file: Path) -> None:
    tree = ast.parse(file.read_text())
    assert ast.get_docstring(tree) or file.name == "__init__.py"
    for name, node in public(tree):
        doc = ast.get_docstring(node) or ""
        assert doc, f"{name} has no docstring"
        if isinstance(node, ast.ClassDef):
            assert listed(doc, "Attributes") in (None, attributes(node)), name
        else:
            assert listed(doc, "Args") in (None, parameters(node)), name
