"""What a browser and Prometheus are served, at the address of the metrics."""

from __future__ import annotations

from collections.abc import Callable

from loaderd.server.bad_samples import BadSamples
from loaderd.server.page.history import History
from loaderd.server.page.last_batches import LastBatches
from loaderd.server.page.live_page import LivePage
from loaderd.server.parts import Parts
from loaderd.server.status_pages import StatusPages
from loaderd.server.status_report import DaemonStatus
from loaderd.system.http import HttpServer, is_loopback, parse_address
from loaderd.system.lockfile import CannotServe


def serve_pages(
    address: str,
    parts: Parts,
    pages: StatusPages,
    history: History,
    bad_samples: BadSamples,
    status: Callable[[], DaemonStatus],
) -> HttpServer:
    """Serve the page for people, metrics and health.

    Args:
        address: As the config has it.
        parts: What the daemon is made of.
        pages: Metrics and health.
        history: What the page's curves show.
        bad_samples: Those that have been recorded.
        status: Returns all that the daemon tells about itself.

    Raises:
        CannotServe: The text says why.
    """
    shown = parts.config.daemon.thumbnails
    try:
        from loaderd.server import metrics  # noqa: F401 - now, and not while trainers wait

        where = parse_address(address)
        seen = LastBatches(
            parts.registry.sessions, parts.dispatcher.latest_batches, parts.budget.store.read
        )
        page = LivePage(
            status,
            history,
            seen if (is_loopback(where[0]) if shown is None else shown) else None,
            bad_samples,
        ).by_path()
        return HttpServer(parts.loop, where, {**page, **pages.by_path()}, guarded=page)
    except ImportError as error:
        raise CannotServe(
            f"metrics = {address!r}: {error}; pip install 'loaderd[daemon]'"
        ) from None
    except (OSError, ValueError) as error:
        raise CannotServe(f"metrics = {address!r}: {error}; set another [daemon] metrics") from None
