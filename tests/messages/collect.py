"""Collects every text that a user can see: errors, log lines, help, and what the commands print.

    python tests/messages/collect.py [WORD ...]

prints them with file and line; with words only the texts that have one of them. A text is any
string of the product with at least two words in it, apart from docstrings and the texts of
assertions. What a text inserts is shown in braces.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("loaderd", "client")
# two words, or a word and something inserted
PROSE = re.compile(r"[A-Za-z]{2,}[,;:]? +(\S+ +)*[A-Za-z{]")


@dataclass(frozen=True, slots=True)
class Message:
    """A text of the product.

    Attributes:
        file: Path below the repository's root.
        line: Of its first character.
        text: What is inserted stands in braces, as in the source.
        error: Name of the class, where the text is the argument of an exception.
    """

    file: str
    line: int
    text: str
    error: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.error + ': ' if self.error else ''}{self.text}"


def collect() -> list[Message]:
    """Every text of the product, by file and line."""
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return [
        message
        for path in paths
        for message in _messages(str(path.relative_to(ROOT)), ast.parse(path.read_text()))
    ]


def _messages(file: str, tree: ast.Module) -> Iterator[Message]:
    hidden = {id(node) for node in _not_texts(tree)}
    errors = {id(text): name for name, text in _arguments_of_errors(tree)}
    for node in _walk(tree, hidden):
        text = written(node)
        if text is not None and PROSE.search(text):
            yield Message(file, node.lineno, text, errors.get(id(node), ""))


def _walk(node: ast.AST, hidden: set[int]) -> Iterator[ast.expr]:
    """Strings in the order of the source, those inside others' braces after them."""
    for child in ast.iter_child_nodes(node):
        if id(child) in hidden:
            continue
        if isinstance(child, ast.JoinedStr):
            yield child
            for value in child.values:
                if isinstance(value, ast.FormattedValue):
                    yield from _walk(value, hidden)
        elif isinstance(child, ast.Constant):
            yield child
        else:
            yield from _walk(child, hidden)


def _not_texts(tree: ast.Module) -> Iterator[ast.AST]:
    """Docstrings, assertions, annotations."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node
        elif isinstance(node, ast.Assert) and node.msg is not None:
            yield node.msg
        elif isinstance(node, (ast.arg, ast.AnnAssign)) and node.annotation is not None:
            yield node.annotation
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.returns is not None:
            yield node.returns


def _arguments_of_errors(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            name = node.exc.func
            yield from ((ast.unparse(name), argument) for argument in node.exc.args)


def written(node: ast.expr) -> str | None:
    """The text of a string as its source has it; None for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if not isinstance(node, ast.JoinedStr):
        return None
    parts = []
    for value in node.values:
        if isinstance(value, ast.Constant):
            parts.append(str(value.value))
        elif isinstance(value, ast.FormattedValue):
            parts.append("{" + ast.unparse(value.value) + "}")
    return "".join(parts)


def main(words: list[str]) -> None:
    for message in collect():
        if not words or any(word in message.text for word in words):
            print(message)


if __name__ == "__main__":
    main(sys.argv[1:])
