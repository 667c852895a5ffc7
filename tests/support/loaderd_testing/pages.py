"""The Markdown pages of the project: their blocks, tables, links, commands and sentences."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def all_pages() -> list[Path]:
    """Every Markdown page that the project has, but for what is installed or built."""
    skipped = {".venv", "node_modules", "build", "dist"}
    return [
        path
        for path in sorted(ROOT.rglob("*.md"))
        if not skipped & {*path.relative_to(ROOT).parts} and ".pytest_cache" not in path.parts
    ]


def text_of(name: str) -> str:
    return (ROOT / name).read_text()


def block(name: str, language: str, what: str) -> str:
    """The only block of a page in this language that has these words."""
    found = [
        each
        for each in re.findall(rf"^```{language}\n(.*?)^```", text_of(name), re.S | re.M)
        if what in each
    ]
    assert len(found) == 1, (name, language, what, len(found))
    return found[0]


def sections(name: str) -> dict[str, list[tuple[str, str]]]:
    """The blocks, language and text, below each heading of the second rank; below "" those before
    the first one.
    """
    parts = ["", *re.split(r"^## (.+)\n", text_of(name), flags=re.M)]
    return {
        title: re.findall(r"^```(\w+)\n(.*?)^```", text, re.S | re.M)
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


def commands(name: str, program: str = "loaderd") -> list[list[str]]:
    """The indented lines of a page that call a program, without their comments."""
    return [
        line.split("#")[0].split()
        for line in re.findall(rf"^    ({program} .*)$", text_of(name), re.M)
    ]


def rows(text: str, begin: str) -> list[list[str]]:
    """The cells of a table's rows that begin so."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if re.match(begin, line)
    ]


def prose(text: str) -> str:
    """What is read as sentences: no code, no tables, no headings, no pictures."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    lines = [line for line in text.splitlines() if not line.startswith(("|", "#", "    ", "!["))]
    text = "\n".join(lines)
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text)
    return re.sub(r"`[^`]+`", "code", text.replace("**", ""))


def sentences(text: str) -> list[list[str]]:
    """The words of each sentence; an item of a list begins a new one."""
    found: list[list[str]] = []
    for paragraph in re.split(r"\n\s*\n|\n(?=- |\d+\. )", prose(text)):
        for part in re.split(r"(?<=[.!?:;])\s+", paragraph.strip()):
            words = re.findall(r"[A-Za-z0-9'%_/.-]*[A-Za-z0-9]", part)
            if words:
                found.append(words)
    return found


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", text)


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
