"""`loaderd serve`: the config becomes plain settings, and the daemon runs with them until it drains."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from loaderd.cli.failure import NO_START, CommandError, need, need_proc
from loaderd_wire.errors import ConfigError

if TYPE_CHECKING:
    from loaderd.config import Config
    from loaderd.data.plan import StreamPlan
    from loaderd.engines.launch import Launched
    from loaderd.settings import DaemonSettings


def run(args: argparse.Namespace) -> int:
    from loaderd.drivers.descriptors import raise_limit, too_few

    try:
        need("lmdb", "simplejpeg", "cv2", "PIL")
        need_proc()
        short = too_few(raise_limit())  # the template's is ours
        if short:
            raise CommandError(short, NO_START)
        from loaderd import config

        settings, plans = prepared(config.load(args.config, os.environ, os.getuid()), args)
    except (ConfigError, CommandError, ModuleNotFoundError) as error:
        _tell(args.ready_fd, f"ConfigError: {error}")
        raise
    if args.embedded:
        from loaderd.drivers.processes import keep_niceness

        keep_niceness(os.getpid())  # the trainer's, which gave it a session of its own
        return _serve(settings, plans, None)  # of eight ranks that start one at once seven find the lock taken: no template for those
    from loaderd.engines.launch import launch

    spawn = settings.start_method == "spawn"
    with launch(plans, settings.init or "", settings.folder, preload="none" if spawn else "user", spawn=spawn) as ahead:
        return _serve(settings, plans, ahead)


def _serve(settings: DaemonSettings, plans: tuple[StreamPlan, ...], ahead: Launched | None) -> int:
    from loaderd.daemon import Daemon  # what this brings is imported while the template is on its own way
    from loaderd.engines.local import LocalPool

    return Daemon(settings, plans, make_pool=partial(LocalPool, ahead=ahead)).run()


def prepared(config: Config, args: argparse.Namespace) -> tuple[DaemonSettings, tuple[StreamPlan, ...]]:
    """What the daemon is told, from the config and the command line."""
    from loaderd.admission import no_stream
    from loaderd.settings import DaemonSettings

    daemon, workers = config.daemon, config.workers
    names = [plan.name for plan in config.streams]
    if args.stream and args.stream not in names:
        raise no_stream(args.stream, names)
    if args.socket:
        daemon = replace(daemon, socket=args.socket, quarantine=f"{args.socket}.bad.jsonl", metrics=None, exit_when_idle_s=0.0)
    settings = DaemonSettings(
        socket=daemon.socket,
        quarantine=daemon.quarantine,
        config_path=config.path,
        folder=config.folder,
        default_socket=config.default_socket and not args.socket,
        memory=daemon.memory,
        metrics=daemon.metrics,
        allow_uids=daemon.allow_uids,
        allow_unmapped=daemon.allow_unmapped,
        drain_s=daemon.drain_s,
        exit_when_idle_s=daemon.exit_when_idle_s,
        num_workers=workers.num_workers,
        sample_timeout_s=workers.sample_timeout_s,
        worker_memory=workers.worker_memory,
        start_method=workers.start_method,
        init=workers.init,
        first_stream=args.stream,
        embedded=args.embedded,
        ready_fd=args.ready_fd,
        log_format=args.log_format,
        log_level=args.log_level,
    )
    return settings, config.streams


def _tell(ready_fd: int | None, text: str) -> None:
    """Whoever waits on the pipe of an embedded daemon gets the error's lines."""
    if ready_fd is not None:
        with open(ready_fd, "w", encoding="utf-8", errors="backslashreplace") as pipe:
            pipe.write(text)
