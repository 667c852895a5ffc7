"""The page's documents, and its events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loaderd.core.actions import Quarantine
from loaderd.server.bad_samples import BadSamples
from loaderd.server.page.history import History
from loaderd.server.page.live_page import SEEN_EVERY, LivePage
from loaderd.server.status_report import DaemonStatus
from loaderd.system.http import EventStream, Page
from loaderd_testing.fake_time import FakeLoop
from loaderd_wire.errors import BadSample


class Seen:
    behind = False

    def all(self) -> list[Any]:
        return [{"stream": "all"}]

    def news(self) -> list[Any]:
        return [{"stream": "changed"}]


def bad_samples(folder: Path) -> BadSamples:
    return BadSamples(str(folder / "bad.jsonl"), lambda *_, **__: None)


def events_of(seen: Any, bad: BadSamples) -> EventStream:
    loop: Any = FakeLoop()
    page = LivePage(lambda: DaemonStatus("ready"), History(loop, list), seen, bad)
    events = page.by_path()["/events"]()
    assert isinstance(events, EventStream)
    return events


def told(text: str) -> dict[str, Any]:
    assert text.startswith("data: ")
    assert text.endswith("\n\n")
    assert text.count("\n") == 2
    return json.loads(text[len("data: ") :])


def test_a_new_reader_gets_everything_and_samples_come_every_few_seconds(tmp_path: Path) -> None:
    events = events_of(Seen(), bad_samples(tmp_path))
    assert told(events.first())["seen"] == [{"stream": "all"}]
    later = [told(events.then()) for _ in range(2 * SEEN_EVERY)]
    assert [each["seen"] for each in later].count([{"stream": "changed"}]) == 2
    assert all(each["status"]["state"] == "ready" for each in later)


def test_pictures_of_bad_samples_come_with_each_new_one_and_to_each_new_reader(
    tmp_path: Path,
) -> None:
    bad = bad_samples(tmp_path)
    events = events_of(Seen(), bad)
    assert told(events.first())["pictures"] == []
    assert told(events.then())["pictures"] is None
    for picture in (b"\xff\xd8\xff", b""):
        bad.add(Quarantine("train", 0, BadSample(1, "a", 0, "decode", "E", "m"), picture))
    assert told(events.then())["pictures"] == ["/9j/", ""]
    assert told(events.then())["pictures"] is None
    assert told(events.first())["pictures"] == ["/9j/", ""]
    bad.close()


def test_streams_that_have_not_had_their_turn_come_with_the_next_events(tmp_path: Path) -> None:
    seen = Seen()
    events = events_of(seen, bad_samples(tmp_path))
    assert told(events.then())["seen"] == []
    seen.behind = True
    assert told(events.then())["seen"] == [{"stream": "changed"}]


def test_of_large_pictures_of_bad_samples_the_latest_are_sent(tmp_path: Path) -> None:
    bad = bad_samples(tmp_path)
    events = events_of(Seen(), bad)
    for _ in range(20):
        bad.add(Quarantine("train", 0, BadSample(1, "a", 0, "decode", "E", "m"), bytes(64 << 10)))
    event = events.first()
    pictures = told(event)["pictures"]
    assert [bool(each) for each in pictures] == [False] * 16 + [True] * 4
    assert pictures[0] is None
    assert len(event) < 400_000
    bad.close()


def test_samples_that_are_not_to_be_shown_are_told_so(tmp_path: Path) -> None:
    bad = bad_samples(tmp_path)
    events = events_of(None, bad)
    bad.add(Quarantine("train", 0, BadSample(1, "a", 0, "decode", "E", "m"), b"\xff\xd8\xff"))
    for event in (told(events.first()), told(events.then())):
        assert event["pictures"] is None
        assert not event["seen"]
    bad.close()


def test_documents_are_those_of_this_version_though_the_installation_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop: Any = FakeLoop()
    page = LivePage(lambda: DaemonStatus("ready"), History(loop, list), None, bad_samples(tmp_path))

    def gone(*_: Any, **__: Any) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", gone)
    shown = page.by_path()["/"]()
    assert isinstance(shown, Page)
    assert "<h1>loaderd</h1>" in shown.body


def test_documents_name_nothing_outside_and_forbid_it(tmp_path: Path) -> None:
    loop: Any = FakeLoop()
    page = LivePage(lambda: DaemonStatus("ready"), History(loop, list), None, bad_samples(tmp_path))
    pages = page.by_path()
    for path in ("/", "/page.css", "/page.js"):
        page = pages[path]()
        assert isinstance(page, Page)
        assert any("default-src 'none'" in line for line in page.headers)
        assert "https://" not in page.body
