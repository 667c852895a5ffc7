"""What a running daemon shows of itself: to `loaderd status`, to Prometheus and to whoever watches its health."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from loaderd.server import status
from loaderd.server.phases import Parts
from loaderd.system.http import PROMETHEUS, Page


class StatusPages:
    """phase(): the name of the daemon's."""

    def __init__(self, parts: Parts, phase: Callable[[], str]) -> None:
        self._parts = parts
        self._phase = phase

    def by_path(self) -> Mapping[str, Callable[[], Page]]:
        """For the HTTP server."""
        return {"/metrics": self._metrics, "/healthz": self._health, "/readyz": self._ready}

    def status(self) -> str:
        """The state as JSON, for `loaderd status`."""
        return status.to_json(self._picture())

    def _picture(self) -> dict[str, Any]:
        """The state as plain data."""
        parts = self._parts
        registry, daemon = parts.registry, parts.config.daemon
        return {
            "state": self._phase(),
            "doing": parts.startup.text(),
            "failed": registry.all_broken,
            **status.installed(),
            "socket": daemon.socket,
            "config": parts.config.path,
            "turns": parts.loop.turns,
            "lost_s": round(parts.loop.lost_s, 3),
            "cpu_s": round(time.process_time(), 3),  # between two pictures: what scheduling and announcing the batches in between cost
            **status.merged(parts.dispatcher.picture(), registry.picture(), parts.catalog.picture(), parts.engine.picture()),
            "memory": {"limit": registry.memory, "segments": parts.segments.live_bytes},
            "quarantine": {"path": daemon.quarantine, "count": parts.quarantine.count, "tail": list(parts.quarantine.tail)},
            "garbage": parts.messages.garbage,
            "errors": list(parts.log.errors),
        }

    def _metrics(self) -> Page:
        return Page(200, status.prometheus(status.numbers(self._picture())), PROMETHEUS)

    def _health(self) -> Page:
        return Page(503, "every stream has failed\n") if self._parts.registry.all_broken else Page(200, "ok\n")

    def _ready(self) -> Page:
        state = "failed" if self._parts.registry.all_broken else self._phase()
        return Page(200 if state == "ready" else 503, f"{state}\n")
