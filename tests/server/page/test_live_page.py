"""The page's documents, and its events."""

from __future__ import annotations

import json
from typing import Any

from loaderd.server.page.history import History
from loaderd.server.page.live_page import SEEN_EVERY, LivePage
from loaderd.server.status_report import DaemonStatus
from loaderd.system.http import EventStream, Page
from loaderd_testing.fake_time import FakeLoop


class Seen:
    def all(self) -> list[Any]:
        return [{"stream": "all"}]

    def changed(self) -> list[Any]:
        return [{"stream": "changed"}]


def events_of(seen: Any) -> EventStream:
    loop: Any = FakeLoop()
    page = LivePage(lambda: DaemonStatus("ready"), History(loop, list), seen)
    events = page.by_path()["/events"]()
    assert isinstance(events, EventStream)
    return events


def told(text: str) -> dict[str, Any]:
    assert text.startswith("data: ")
    assert text.endswith("\n\n")
    assert text.count("\n") == 2
    return json.loads(text[len("data: ") :])


def test_a_new_reader_gets_everything_and_samples_come_every_few_seconds() -> None:
    events = events_of(Seen())
    assert told(events.first())["seen"] == [{"stream": "all"}]
    later = [told(events.then()) for _ in range(2 * SEEN_EVERY)]
    assert [each["seen"] for each in later].count([{"stream": "changed"}]) == 2
    assert all(each["status"]["state"] == "ready" for each in later)


def test_samples_that_are_not_to_be_shown_are_told_so() -> None:
    events = events_of(None)
    assert told(events.first())["seen"] is None
    assert told(events.then())["seen"] == []


def test_documents_name_nothing_outside_and_forbid_it() -> None:
    loop: Any = FakeLoop()
    pages = LivePage(lambda: DaemonStatus("ready"), History(loop, list), None).by_path()
    for path in ("/", "/page.css", "/page.js"):
        page = pages[path]()
        assert isinstance(page, Page)
        assert any("default-src 'none'" in line for line in page.headers)
        assert "https://" not in page.body
