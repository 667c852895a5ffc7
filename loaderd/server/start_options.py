"""What the command line says beside the config, and how a daemon ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loaderd.config.load import Config
from loaderd.engine.base import MakeEngine

EXIT_DRAINED, EXIT_NO_START, EXIT_FAULT = 0, 3, 4  # what Daemon.run returns


@dataclass(frozen=True, slots=True)
class StartOptions:
    """How a daemon is started.

    Attributes:
        first_stream: The one that is opened at the start, each other when it is asked for; "" to
            open all at the start.
        embedded: A Loader started this daemon, which leaves when nobody uses it any longer (see
            `IdleExit`).
        ready_fd: A pipe on which "ready" is written when the daemon serves, or the lines that say
            why it can't; then it is closed.
        log_format: "text" or "json".
        log_level: The lowest level that is logged.
        replay: The first batches of each trainer are handed out again and again.
        takeover: Another daemon may serve the socket: it hands over when this one is ready.
    """

    first_stream: str = ""
    embedded: bool = False
    ready_fd: int | None = None
    log_format: str = "text"
    log_level: str = "info"
    replay: bool = False
    takeover: bool = False


@dataclass(frozen=True, slots=True)
class DaemonSetup:
    """What a daemon is started with.

    Attributes:
        config: What to serve.
        options: How it was started.
        make_engine: Makes what runs the jobs.
        env: Environment variables.
        root: Folder in which proc and the cgroups are found.
        stderr: File descriptor for the log.
    """

    config: Config
    options: StartOptions
    make_engine: MakeEngine
    env: Mapping[str, str]
    root: str
    stderr: int
