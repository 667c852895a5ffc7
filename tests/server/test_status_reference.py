"""The page about `status --json` is made from the dataclasses, and says something of every key."""

from __future__ import annotations

import re
from pathlib import Path

from loaderd.server import status_reference
from loaderd.server.status_report import as_plain
from server.test_status_report import STATUS

PAGE = status_reference.document()


def test_the_page_is_the_one_that_the_dataclasses_make() -> None:
    assert (Path(__file__).parents[2] / "deploy" / "STATUS.md").read_text() == PAGE


def test_every_key_has_a_meaning() -> None:
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|(.*)\|$", PAGE, re.MULTILINE)
    assert len(rows) > 100
    assert [name for name, kind, meaning in rows if not kind.strip() or len(meaning) < 10] == []


def test_every_key_of_a_status_is_on_the_page() -> None:
    listed = {
        title: re.findall(r"^\| `(\w+)` ", table, re.MULTILINE)
        for title, table in re.findall(r"^## (\S+).*?\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    }
    plain = as_plain(STATUS)
    assert set(plain) <= set(listed["The"])
    for title, shown in (
        ("`streams.NAME`", plain["streams"]["train"]),
        ("`sessions[]`", plain["sessions"][0]),
        ("`sessions[]`", plain["sessions"][1]),
        ("`workers[]`", plain["workers"][0]),
        ("`pool.template`", plain["pool"]["template"]),
        ("`verdict`", plain["verdict"]),
        ("`streams.NAME.fields[]`", plain["streams"]["train"]["fields"][0]),
        ("`events[]`", plain["events"][0]),
    ):
        assert set(shown) <= set(listed[title]), title
