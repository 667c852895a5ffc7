"""What a browser and Prometheus are served, at the address of the metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from loaderd.config.schema import DaemonConfig
from loaderd.server.bad_samples import BadSamples
from loaderd.server.page.history import History
from loaderd.server.page.last_batches import LastBatches
from loaderd.server.page.live_page import LivePage
from loaderd.server.parts import Parts
from loaderd.server.status_pages import StatusPages
from loaderd.system.http import Answer, HttpServer, is_loopback, parse_address
from loaderd.system.lockfile import CannotServe
from loaderd.system.loop import Timer

WAIT_S, MOST_WAIT_S = 1.0, 60.0  # before the next try to listen; twice as long each time


def shows_samples(daemon: DaemonConfig) -> bool:
    """Whether a page shows samples: by the config, else where only this machine can see it.

    Args:
        daemon: Says at which address, if there is one.
    """
    address = daemon.metrics
    if not address or daemon.thumbnails is not None:
        return bool(address and daemon.thumbnails)
    return is_loopback(address.rpartition(":")[0].strip("[]"))


class PageServer:
    """The page for people, metrics and health. `close` it.

    All that it needs is loaded when it is made, and not while trainers wait or after the
    installation has been replaced.
    """

    def __init__(
        self, address: str, parts: Parts, pages: StatusPages, bad_samples: BadSamples
    ) -> None:
        """Serve nothing yet.

        Args:
            address: As the config has it.
            parts: What the daemon is made of.
            pages: Metrics and health.
            bad_samples: Those that have been recorded.

        Raises:
            CannotServe: The text says why.
        """
        self._address = address
        self._loop, self._log = parts.loop, parts.log
        self._history = History(parts.loop, parts.dispatcher.verdicts)
        self._server: HttpServer | None = None
        self._again: Timer | None = None
        self._wait_s = WAIT_S
        try:
            from loaderd.server import metrics  # noqa: F401 - now, as it is said above

            self._where = parse_address(address)
            dispatcher = parts.dispatcher
            seen = LastBatches(
                parts.registry.sessions,
                dispatcher.latest_batches,
                parts.budget.store.read,
                dispatcher.watch,
            )
            self._page: Mapping[str, Callable[[], Answer]] = LivePage(
                pages.status,
                self._history,
                seen if shows_samples(parts.config.daemon) else None,
                bad_samples,
            ).by_path()
        except ImportError as error:
            raise CannotServe(
                f"metrics = {address!r}: {error}; pip install 'loaderd[daemon]'"
            ) from None
        except (OSError, ValueError) as error:
            raise self._cannot(error) from None
        self._others = pages.by_path()

    def listen(self) -> None:
        """Serve from now on.

        Raises:
            CannotServe: The text says why.
        """
        pages = {**self._page, **self._others}
        try:
            self._server = HttpServer(
                self._loop, self._where, pages, guarded=self._page, log=self._log
            )
        except OSError as error:
            raise self._cannot(error) from None

    def listen_when_free(self) -> None:
        """Serve as soon as the address is free: until then it is tried again and again."""
        self._again = None
        try:
            self.listen()
        except CannotServe as error:
            if self._wait_s == WAIT_S:
                self._log("error", "no_metrics", f"{error}, or free this one: it is tried again")
            self._again = self._loop.later(self._wait_s, self.listen_when_free)
            self._wait_s = min(2 * self._wait_s, MOST_WAIT_S)
        else:
            if self._wait_s > WAIT_S:
                self._log("info", "metrics", f"metrics are served at {self._address} now")

    def session_attached(self) -> None:
        """A trainer has come: the page's curves go on."""
        self._history.session_attached()

    def close(self) -> None:
        """Serve nothing any longer. Idempotent."""
        if self._again is not None:
            self._again.cancel()
        if self._server is not None:
            self._server.close()

    def _cannot(self, error: Exception) -> CannotServe:
        return CannotServe(f"metrics = {self._address!r}: {error}; set another [daemon] metrics")
