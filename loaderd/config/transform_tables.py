"""How a config writes a transform: what is in one table of [[streams.NAME.transforms]]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loaderd.config import hints
from loaderd.config import transforms as ops_table
from loaderd.config.table import Key, Table
from loaderd.config.types import Args, Choice, Say, Text, entry, join, near, show

OPTIONS = ("takes", "field", "boxes")
FIELD = Text(r"(?s:.+)", "the name of a field")
STYLES = ("sample", "array", "pil", "tv_tensors", "keywords")
CALL = Table(
    {
        "call": Key(
            entry("a function"),
            "def f(sample: dict, rng, **args) -> dict; or an object that is called, or its class",
            required=True,
        ),
        "args": Key(Args(), "Keyword arguments of the function, or of the class.", {}),
        "takes": Key(
            Choice(STYLES),
            "What it gets: sample, a dict of arrays; array or pil, one picture; tv_tensors, a dict "
            "for torchvision v2; keywords, as albumentations wants them. Default: by its library.",
        ),
        "field": Key(FIELD, "The picture that it gets, where the sample has several."),
        "boxes": Key(
            FIELD, "Field of boxes that follow the picture: n x 4, x1, y1, x2, y2 in pixels."
        ),
    },
    elsewhere=lambda word: f"arguments of the function go into args = {{{word} = ...}}",
)


@dataclass(frozen=True, slots=True)
class TransformConfig:
    """One transform.

    Attributes:
        op: Name of a built-in one, or None.
        call: A user's function, "pkg.module:function", or None.
        args: Parameters of either.
        options: What else a call's table says: "takes", "field", "boxes".
    """

    op: str | None
    call: str | None
    args: dict[str, Any] = field(default_factory=dict[str, Any])
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    def facts(self) -> dict[str, Any]:
        """What tells it from another one, as JSON has it."""
        told = {"op": self.op, "call": self.call, "args": self.args}
        return told | ({"options": self.options} if self.options else {})


@dataclass(frozen=True, slots=True)
class Transform:
    """One transform: a table with a built-in `op` and its parameters, or with `call` and `args`.

    Read as (op, call, args), for a call with a dict of its further words behind.
    """

    def read(self, value: Any, say: Say) -> Any:
        """Three values for an op, whose parameters are checked here; four for a call."""
        nothing = (None, None, dict[str, Any]())
        if not isinstance(value, dict):
            say(
                "",
                f"{show(value)} is not a table: write {{op = ...}}, or [[streams.X.transforms]] "
                "and op = ... below it",
            )
            return nothing
        if ("op" in value) == ("call" in value):
            say("", "needs either op (a built-in) or call (a function of yours)")
            return nothing
        if "call" in value:
            read = CALL.read(value, say)
            options = {word: read[word] for word in OPTIONS if read[word] is not None}
            return None, read["call"], read["args"], options
        op = value["op"]
        if not isinstance(op, str) or op not in ops_table.OPS:
            known = list(ops_table.OPS)
            hint = near(op, known) if isinstance(op, str) else ""
            last = op.rpartition(".")[2] if isinstance(op, str) else ""
            if last in hints.OPS:
                hint = f"; that is {hints.OPS[last]} here"
            elif last in hints.ABSENT:
                hint = f": {hints.INSTEAD}"
            elif isinstance(op, str) and ":" in op:
                hint = f'; a function of yours is call = "{op}"'
            say("op", f"{show(op)} is not a built-in{hint or '; there are ' + ', '.join(known)}")
            return nothing
        args = {name: item for name, item in value.items() if name != "op"}
        for problem in ops_table.problems(op, args):
            say(join("", problem.name), self._line(op, args, problem))
        return op, None, args

    def _line(self, op: str, args: Mapping[str, Any], problem: ops_table.Problem) -> str:
        if problem.what == "missing":
            return f"is missing: {op} takes {problem.expected}"
        if problem.what == "unknown":
            known = list(ops_table.OPS[op].params)
            return (
                f"{show(args[problem.name])}: {op} has no such "
                f"parameter{near(problem.name, known) or '; it has ' + ', '.join(known)}"
            )
        return f"{show(args[problem.name])} is not {problem.expected}"

    def schema(self) -> dict[str, Any]:
        """One of the ops, each with its own parameters, or a call."""
        return {"oneOf": [*[ops_table.schema(name) for name in ops_table.OPS], CALL.schema()]}
