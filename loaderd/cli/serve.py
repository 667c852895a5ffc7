"""`loaderd serve`: the daemon runs with a config until it drains."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from loaderd.cli.exit_codes import NO_START, CommandError, need, need_proc
from loaderd_wire.errors import ConfigError

if TYPE_CHECKING:
    from loaderd.config.load import Config
    from loaderd.engine.launch import Launched


def run(args: argparse.Namespace) -> int:
    """Exit code of `loaderd serve`, once the daemon has ended."""
    from loaderd.system.file_limits import raise_limit, too_few

    try:
        need("lmdb", "simplejpeg", "cv2", "PIL")
        need_proc()
        short = too_few(raise_limit())  # the fork server's is ours
        if short:
            raise CommandError(short, NO_START)
        from loaderd.config import load

        served = prepared(load.load(args.config, os.environ, os.getuid()), args)
    except (ConfigError, CommandError, ModuleNotFoundError) as error:
        _tell(args.ready_fd, f"ConfigError: {error}")
        raise
    if served.workers.reset_affinity:
        from loaderd.system.resource_limits import reset_affinity

        reset_affinity()
    if args.embedded:
        from loaderd.system.processes import keep_niceness

        keep_niceness(os.getpid())  # the trainer's, which gave it a session of its own
        # of eight ranks that start one at once seven find the lock taken: no fork server for those
        return _serve(served, args, None)
    from loaderd.engine.launch import launch

    workers = served.workers
    spawn = workers.start_method == "spawn"
    with launch(
        served.streams,
        workers.init or "",
        served.folder,
        preload="none" if spawn else "user",
        spawn=spawn,
    ) as ahead:
        return _serve(served, args, ahead)


def _serve(config: Config, args: argparse.Namespace, ahead: Launched | None) -> int:
    from loaderd.engine.local import LocalEngine

    # what this brings is imported while the fork server is on its own way
    from loaderd.server.daemon import Daemon
    from loaderd.server.start_options import StartOptions

    options = StartOptions(
        args.stream,
        args.embedded,
        args.ready_fd,
        args.log_format,
        args.log_level,
        args.replay,
        args.takeover,
    )
    return Daemon(config, options, make_engine=partial(LocalEngine, ahead=ahead)).run()


def prepared(config: Config, args: argparse.Namespace) -> Config:
    """What is served: the config, with what the command line says otherwise."""
    from loaderd.server.admission import no_stream

    names = [plan.name for plan in config.streams]
    if args.stream and args.stream not in names:
        raise no_stream(args.stream, names)
    if not args.socket:
        return config.staged()
    quarantine = f"{args.socket}.bad.jsonl"
    daemon = replace(
        config.daemon, socket=args.socket, quarantine=quarantine, metrics=None, exit_when_idle_s=0.0
    )
    return replace(config, daemon=daemon, default_socket=False).staged()


def _tell(ready_fd: int | None, text: str) -> None:
    """Whoever waits on the pipe of an embedded daemon gets the error's lines."""
    if ready_fd is not None:
        with open(ready_fd, "w", encoding="utf-8", errors="backslashreplace") as pipe:
            pipe.write(text)
