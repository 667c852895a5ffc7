"""All that commands write for people goes through one place, where control characters end."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import loaderd.cli
from loaderd.cli.output import show, show_json, tell

# what makes its own lines plain, or has nothing of others in them
ALLOWED = {"output.py", "parser.py", "schema.py", "status.py"}


def test_what_is_written_cannot_reach_beyond_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    show("a\x1b[2J\nb")
    tell("c\rd")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("a\\x1b[2J\nb\n", "loaderd: c\\rd\n")


def test_json_has_its_own_escapes_and_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"path\x9b": ["a\x1b[2J\x7f\x85\n", "猫\u2028\udcff"], "n": 1}
    show_json(facts)
    said = capsys.readouterr().out
    assert json.loads(said) == facts
    assert '"a\\u001b[2J\\u007f\\u0085\\n"' in said
    assert "猫\\u2028\\udcff" in said
    assert said.replace("\n", "").isprintable()


def test_no_command_writes_past_it() -> None:
    found: list[str] = []
    folder = Path(str(loaderd.cli.__file__)).parent
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or path.name in ALLOWED:
                continue
            called, given = ast.unparse(node.func), " ".join(map(ast.unparse, node.args))
            writes = called == "print"
            if writes or (
                called.endswith((".stderr.write", ".stdout.write")) and "plain" not in given
            ):
                found.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    assert found == []
