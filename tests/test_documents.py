"""The documents about the code say what is there; every page's links and commands lead somewhere."""

from __future__ import annotations

import dataclasses
import re
import typing
from pathlib import Path

from loaderd.cli.parser import parser
from loaderd_testing.pages import all_pages, anchors, links, make_targets, rows, text_of
from loaderd_wire import messages
from loaderd_wire.errors import BadSample
from loaderd_wire.slots import Chunk, FieldSpec

ROOT = Path(__file__).parents[1]
ARCHITECTURE = (ROOT / "loaderd" / "README.md").read_text()
PROTOCOL = (ROOT / "client" / "PROTOCOL.md").read_text()


def test_every_message_has_its_section_and_names_all_its_fields() -> None:
    sections = dict(re.findall(r"^### (\w+) \(code \d+\).*\n((?:(?!^#).*\n)*)", PROTOCOL, re.M))
    kinds = {cls.__name__: cls for cls in typing.get_args(messages.Message)}
    assert sections.keys() == kinds.keys()
    for name, cls in kinds.items():
        missing = [
            f.name
            for f in dataclasses.fields(cls)
            if f.name not in ("session", "protocol") and f"`{f.name}`" not in sections[name]
        ]
        assert not missing, f"{name}: {missing}"


def test_the_codes_in_the_document_are_those_of_the_codec() -> None:
    from loaderd_wire.codec import WIRE

    written = {
        name: int(code) for name, code in re.findall(r"^### (\w+) \(code (\d+)\)", PROTOCOL, re.M)
    }
    assert written == {cls.__name__: code for cls, code in WIRE._code_of.items()}


def test_the_parts_in_the_document_have_all_their_fields() -> None:
    for cls in (FieldSpec, Chunk, BadSample, messages.Released):
        line = re.search(rf"^- \*\*{cls.__name__}\*\*: (.*(?:\n  .*)*)", PROTOCOL, re.M)
        assert line, cls.__name__
        for field in dataclasses.fields(cls):
            assert field.name in line[1], f"{cls.__name__}.{field.name}"


def test_every_file_that_a_document_names_exists() -> None:
    roots = [
        ROOT / "loaderd",
        ROOT / "client",
        ROOT / "client" / "loaderd_client",
        ROOT / "loaderd" / "core",
        ROOT,
    ]
    for document in (ARCHITECTURE, PROTOCOL):
        names = set(re.findall(r"`([\w/.]+\.(?:py|md)|[\w/]+/)`", document))
        assert len(names) > 2, "the search finds nothing"
        for name in names:
            assert any((root / name).exists() for root in roots), name


def test_every_folder_of_the_daemon_is_in_its_document() -> None:
    folders = {
        path.name
        for path in (ROOT / "loaderd").iterdir()
        if path.is_dir() and not path.name.startswith("_")
    }
    assert {"core", "worker"} <= folders
    assert [name for name in sorted(folders) if f"`{name}/`" not in ARCHITECTURE] == []


def test_every_core_file_has_its_place_in_the_table() -> None:
    table = ARCHITECTURE[ARCHITECTURE.index("| `core/` |") :].split("\n\n")[0]
    files = {path.name for path in (ROOT / "loaderd" / "core").glob("*.py")} - {"__init__.py"}
    assert set(re.findall(r"`(\w+\.py)`", table)) == files


def test_every_link_of_every_page_leads_somewhere() -> None:
    found = 0
    for page in all_pages():
        for link in links(page.read_text()):
            if link.startswith(("http://", "https://")):
                continue
            found += 1
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{page.relative_to(ROOT)}: {link}"
            assert not anchor or anchor in anchors(target.read_text()), (
                f"{page.relative_to(ROOT)}: {link}"
            )
    assert found > 20, "the search finds nothing"


def test_every_make_target_and_command_of_every_page_exists() -> None:
    targets, found = make_targets(), 0
    subcommands: typing.Any = next(
        action.choices for action in parser("0")._actions if action.dest == "command"
    )
    for page in all_pages():
        if page.name == "CHANGELOG.md":
            continue
        text = page.read_text()
        for name in re.findall(r"(?:^    |`)make ([a-z]+)", text, re.M):
            found += 1
            assert name in targets, f"{page.relative_to(ROOT)}: make {name}"
        for name, rest in re.findall(r"(?:^    |`)loaderd ([a-z]+)\b([^`\n#]*)", text, re.M):
            found += 1
            assert name in subcommands, f"{page.relative_to(ROOT)}: loaderd {name}"
            known = {
                option for action in subcommands[name]._actions for option in action.option_strings
            }
            for option in re.findall(r"(?<![\w-])--[a-z-]+", rest):
                assert option in known, f"{page.relative_to(ROOT)}: loaderd {name} {option}"
    assert found > 30, "the search finds nothing"


def test_the_guide_lists_every_example_with_the_version_that_it_is_tested_with() -> None:
    listed = rows(text_of("client/README.md"), r"\| \[.*\]\(examples/")
    pins = set(re.findall(r"(?m)^([\w-]+==[\w.]+)", text_of("deploy/constraints.txt")))
    assert {row[1].replace(" ", "==") for row in listed} <= pins
    programs = {link for row in listed for link in links(row[0])}
    helpers = {"points.py"}
    there = {path.name for path in (ROOT / "client" / "examples").glob("*.py")}
    assert programs == {f"examples/{name}" for name in there - helpers}
