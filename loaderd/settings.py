"""What a daemon is told at its start, as plain values: the door (config and command line) fills it in, nothing below reads a file."""

from __future__ import annotations

from dataclasses import dataclass

EXIT_DRAINED, EXIT_NO_START, EXIT_FAULT = 0, 3, 4  # what Daemon.run returns


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """socket, config_path, folder, quarantine: absolute paths. memory, worker_memory: bytes. *_s: seconds.

    config_path: of the config served, "" for none. folder: first on the workers' sys.path, "" for none.
    default_socket: the socket lies in the default folder, which is made if need be, 0700, and must be ours.
    memory: None for half of what is free. num_workers: None for as many as affinity and CPU quota give. worker_memory: None for no
    limit. metrics: "host:port" or None. allow_uids, allow_unmapped: who may attach besides our own uid and root.
    first_stream: the one that is opened at the start, each other when it is asked for; "" to open all at the start.
    embedded: a Loader started us: leave 2 s after the last control socket closed, or 30 s after "ready" without one; before it 2 s after
    nobody waits on ready_fd or to be admitted any more.
    ready_fd: a pipe on which "ready" is written when the daemon serves, or the lines that say why it can't; then it is closed.
    """

    socket: str
    quarantine: str
    config_path: str = ""
    folder: str = ""
    default_socket: bool = False
    memory: int | None = None
    metrics: str | None = None
    allow_uids: tuple[int, ...] = ()
    allow_unmapped: bool = False
    drain_s: float = 10.0
    exit_when_idle_s: float = 0.0
    num_workers: int | None = None
    sample_timeout_s: float = 30.0
    worker_memory: int | None = None
    start_method: str = "forkserver"
    init: str | None = None
    first_stream: str = ""
    embedded: bool = False
    ready_fd: int | None = None
    log_format: str = "text"
    log_level: str = "info"
