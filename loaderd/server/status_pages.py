"""What a running daemon shows of itself.

It shows it to `loaderd status`, to Prometheus and to whoever watches its health.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from loaderd import __version__
from loaderd.core import assessment
from loaderd.data import native_library
from loaderd.server import status
from loaderd.server.parts import Parts
from loaderd.server.status_report import DaemonStatus, MemoryStatus, PoolStatus, QuarantineStatus
from loaderd.system.http import PROMETHEUS, Page


class StatusPages:
    """The status of a daemon, and its pages."""

    def __init__(self, parts: Parts, phase: Callable[[], str]) -> None:
        """Show nothing yet.

        Args:
            parts: What the daemon is made of.
            phase: Returns the name of the daemon's phase.
        """
        self._parts = parts
        self._phase = phase

    def by_path(self) -> Mapping[str, Callable[[], Page]]:
        """For the HTTP server."""
        return {"/metrics": self._metrics, "/healthz": self._health, "/readyz": self._ready}

    def status(self) -> DaemonStatus:
        """All that the daemon tells about itself."""
        parts = self._parts
        admission, daemon = parts.admission, parts.config.daemon
        inside, engine = parts.dispatcher.snapshot(), parts.engine.status()
        return DaemonStatus(
            state=self._phase(),
            doing=parts.startup.text(),
            failed=admission.all_broken,
            pid=os.getpid(),
            version=__version__,
            native=native_library.present(),
            socket=daemon.socket,
            config=parts.config.path,
            turns=parts.loop.turns,
            lost_s=round(parts.loop.lost_s, 3),
            # between two statuses: what scheduling and announcing the batches in between cost
            cpu_s=round(time.process_time(), 3),
            jobs=inside.jobs,
            schedule_s=round(parts.dispatcher.schedule_s, 6),
            verdict=assessment.worst(session.verdict for session in inside.sessions),
            streams=parts.catalog.status(inside, admission.broken),
            sessions=parts.registry.status(inside),
            workers=status.workers(inside, engine),
            pool=PoolStatus(
                engine.fork_server,
                engine.probes,
                inside.wanted_workers,
                inside.sizing,
                inside.remote,
            ),
            memory=MemoryStatus(parts.budget.memory, parts.budget.store.live_bytes),
            quarantine=QuarantineStatus(
                daemon.quarantine, parts.quarantine.count, tuple(parts.quarantine.tail)
            ),
            garbage=parts.messages.garbage,
            errors=tuple(parts.log.errors),
            restarts=inside.restarts,
            events=tuple(parts.log.recent),
            groups=inside.groups,
        )

    def _metrics(self) -> Page:
        from loaderd.server import metrics  # with prometheus-client

        return Page(200, metrics.text(self.status()), PROMETHEUS)

    def _health(self) -> Page:
        return (
            Page(503, "every stream has failed\n")
            if self._parts.admission.all_broken
            else Page(200, "ok\n")
        )

    def _ready(self) -> Page:
        state = "failed" if self._parts.admission.all_broken else self._phase()
        return Page(200 if state == "ready" else 503, f"{state}\n")
