"""The page for people at the metrics address: a document, and events that keep it up to date."""

from __future__ import annotations

import base64
import functools
import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from loaderd.server.bad_samples import BadSamples
from loaderd.server.page.history import History
from loaderd.server.page.last_batches import LastBatches
from loaderd.server.status_report import DaemonStatus
from loaderd.system.http import Answer, EventStream, Page

SEEN_EVERY = 5  # events from one with the batch of a stream to the next
PICTURE_BYTES = 256 << 10  # of all bad samples together, in one event
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
HEADERS = (
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options: nosniff",
    "Referrer-Policy: no-referrer",
    "Cache-Control: no-store",
)


class LivePage:
    """The page and its events."""

    def __init__(
        self,
        status: Callable[[], DaemonStatus],
        history: History,
        seen: LastBatches | None,
        bad: BadSamples,
    ) -> None:
        """Load the documents: those of another version would not know what this one tells.

        Args:
            status: Returns the daemon's status.
            history: Of the last quarter of an hour.
            seen: Rows of the last batches; None: no samples are shown.
            bad: The bad samples.

        Raises:
            OSError: A document cannot be read.
        """
        self._status = status
        self._history = history
        self._files = {path: _file(*file) for path, file in FILES.items()}
        self._seen = seen
        self._bad = bad
        self._told = 0  # bad samples whose pictures all readers have
        self._events = EventStream(self._first, self._then)
        self._count = 0

    def by_path(self) -> Mapping[str, Callable[[], Answer]]:
        """For the HTTP server."""
        files: dict[str, Callable[[], Answer]] = {
            path: functools.partial(self._files.__getitem__, path) for path in FILES
        }
        return {**files, "/events": lambda: self._events}

    def _first(self) -> str:
        return self._event(self._seen.all() if self._seen else None, self._pictures())

    def _then(self) -> str:
        self._count += 1
        seen = self._seen
        due = seen is not None and (seen.behind or self._count % SEEN_EVERY == 0)
        count = self._bad.kept.count
        pictures = self._pictures() if count != self._told else None
        self._told = count
        return self._event(seen.news() if seen is not None and due else [], pictures)

    def _pictures(self) -> list[str | None] | None:
        """Of each bad sample of the status its image.

        Returns:
            "" for one that has none, None for one that is left out; None where none are shown.
        """
        if self._seen is None:
            return None
        latest_first = list(reversed(self._bad.pictures))
        sums = itertools.accumulate(map(len, latest_first))
        shown = [
            base64.b64encode(picture).decode("ascii") if total <= PICTURE_BYTES else None
            for picture, total in zip(latest_first, sums, strict=True)
        ]
        return shown[::-1]

    def _event(
        self, seen: list[dict[str, object]] | None, pictures: list[str | None] | None
    ) -> str:
        parts = {
            "status": self._status().to_json(),
            "history": json.dumps(self._history.ages()),
            "seen": json.dumps(seen),  # null: samples are not shown
            "pictures": json.dumps(pictures),  # null: those of the last event
        }
        inside = ",".join(f'"{name}":{text}' for name, text in parts.items())
        return f"data: {{{inside}}}\n\n"


def _file(name: str, kind: str) -> Page:
    return Page(200, Path(__file__).with_name(name).read_text(encoding="utf-8"), kind, HEADERS)
