"""Where the product can be changed by one small mistake.

The changes are cosmic-ray's; two of our own leave a call or a raise out.
"""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator
from parso.python.tree import Keyword

FOLDERS = ("loaderd", "client")
COUNTED = 8  # larger numbers, and fractions, are limits and other tuning values
BINARY = (
    "Add_Sub",
    "Sub_Add",
    "Mul_Add",
    "Div_Mul",
    "FloorDiv_Mul",
    "Mod_Add",
    "BitOr_BitAnd",
    "BitAnd_BitOr",
    "LShift_RShift",
    "RShift_LShift",
)
COMPARED = (
    "Eq_NotEq",
    "NotEq_Eq",
    "Lt_LtE",
    "Lt_GtE",
    "LtE_Lt",
    "LtE_Gt",
    "Gt_GtE",
    "Gt_LtE",
    "GtE_Gt",
    "GtE_Lt",
    "Is_IsNot",
    "IsNot_Is",
)
OTHERS = (
    "ReplaceUnaryOperator_Delete_Not",
    "AddNot",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "ExceptionReplacer",
    "NumberReplacer",
    "ZeroIterationForLoop",
)


class LeaveOut(Operator):
    """A statement that is only a call, or a raise, becomes `pass`: what is forgotten, what is
    ignored.
    """

    def mutation_positions(self, node: Any) -> Any:
        if node.type == "simple_stmt":
            said = node.children[0]
            call = (
                said.type in ("atom_expr", "power")
                and said.children[-1].type == "trailer"
                and said.children[-1].children[0].value == "("
            )
            if (
                call
                or said.type == "raise_stmt"
                or (said.type == "keyword" and said.value == "raise")
            ):
                yield said.start_pos, said.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        said = node.children[0]
        node.children[0] = Keyword("pass", said.start_pos, said.get_first_leaf().prefix)
        return node

    @classmethod
    def examples(cls) -> Any:
        return ()


def operators() -> dict[str, Any]:
    names = (
        [f"ReplaceBinaryOperator_{name}" for name in BINARY]
        + [f"ReplaceComparisonOperator_{name}" for name in COMPARED]
        + [*OTHERS]
    )
    return {name: get_operator(f"core/{name}")() for name in names} | {"LeaveOut": LeaveOut()}


@dataclass(frozen=True)
class Mutant:
    file: str  # relative to the root
    line: int
    operator: str
    before: str
    after: str
    code: str  # the whole file's

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.operator}\n    - {self.before}\n    + {self.after}"


def draw(root: Path, count: int, seed: int, among: Sequence[str] = ()) -> list[Mutant]:
    """So many mutants, each place in the product as likely as another.

    among: only in files whose path has one of these words.
    """
    seeder = random.Random(seed)
    paths = [
        path
        for path in modules(root)
        if not among or any(word in str(path.relative_to(root)) for word in among)
    ]
    places = [
        (path, *place) for path in paths for place in sorted(_places(path.read_text()).items())
    ]
    drawn: list[Mutant] = []
    for path, (line, _), changes in seeder.sample(places, len(places)):
        if len(drawn) == count:
            break
        name, occurrence = seeder.choice(changes)
        old = path.read_text()
        new = mutate_code(old, operators()[name], occurrence)
        if new and new != old and _differ(old, new):
            before, after = next(
                (a, b) for a, b in zip(old.splitlines(), new.splitlines(), strict=False) if a != b
            )
            drawn.append(
                Mutant(str(path.relative_to(root)), line, name, before.strip(), after.strip(), new)
            )
    return drawn


def modules(root: Path) -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))


def _differ(old: str, new: str) -> bool:
    """As programs: parentheses alone do not count.

    What is no program any more tells nothing about the tests.
    """
    try:
        return ast.dump(ast.parse(old)) != ast.dump(ast.parse(new))
    except SyntaxError:
        return False


def _places(code: str) -> dict[tuple[int, int], list[tuple[str, int]]]:
    """Position -> what can be done there: operator, and which of its occurrences in this file it
    is.
    """
    found: dict[tuple[int, int], list[tuple[str, int]]] = defaultdict(list)
    tree, silent = list(ast_nodes(get_ast(code))), _silent(code)
    for name, operator in operators().items():
        occurrence = 0
        for node in tree:
            for begin, _ in operator.mutation_positions(node):
                if not any(first <= begin < last for first, last in silent):
                    found[begin].append((name, occurrence))
                occurrence += 1
    return found


def _silent(code: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Parts that no test can hear of: annotations, which are never evaluated, and tuning values,
    which are no right or wrong.
    """
    parts: list[tuple[tuple[int, int], tuple[int, int]]] = []
    module = ast.parse(code)
    for node in ast.walk(module):
        notes = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        if (
            node in module.body
            and isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Constant | ast.BinOp)
        ):
            notes.append(node.value)
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, int | float)
            and (isinstance(node.value, float) or node.value > COUNTED)
        ):
            notes.append(node)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            notes.append(node)
        parts += [
            ((note.lineno, note.col_offset), (note.end_lineno or 0, note.end_col_offset or 0))
            for note in notes
            if isinstance(note, ast.expr | ast.stmt)
        ]
    return parts
