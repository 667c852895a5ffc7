"""The daemon's process: from its start to its exit code."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from contextlib import ExitStack

from loaderd.config.load import Config
from loaderd.engine.base import MakeEngine
from loaderd.server.readiness import ReadinessPipe
from loaderd.server.running import Running
from loaderd.server.start_options import EXIT_FAULT, EXIT_NO_START, DaemonSetup, StartOptions
from loaderd.system.lockfile import AlreadyServed, CannotServe
from loaderd.system.logs import Log, stderr_sink
from loaderd.system.loop import Loop
from loaderd_wire import paths


class Daemon:
    """Serves the streams of a config until it drains."""

    def __init__(
        self,
        config: Config,
        options: StartOptions,
        *,
        make_engine: MakeEngine,
        env: Mapping[str, str] = os.environ,
        root: str = "/",
        stderr: int = 2,
    ) -> None:
        """Begin nothing yet.

        Args:
            config: What to serve.
            options: How it was started.
            make_engine: Makes what runs the jobs.
            env: Environment variables.
            root: Folder in which proc and the cgroups are found.
            stderr: File descriptor for the log.
        """
        self._setup = DaemonSetup(config, options, make_engine, env, root, stderr)

    def run(self) -> int:
        """From start to end, in the main thread.

        Returns:
            EXIT_DRAINED, EXIT_NO_START or EXIT_FAULT.
        """
        config, options = self._setup.config, self._setup.options
        with Loop() as loop:
            ready_pipe = ReadinessPipe(loop, options.ready_fd)
            ours = config.daemon.socket + paths.LOG if options.embedded else ""
            log = Log(
                stderr_sink(loop, self._setup.stderr, path=ours),
                form=options.log_format,
                level=options.log_level,
            )
            try:
                with ExitStack() as stack:
                    running = Running(self._setup, loop, log, ready_pipe, stack)
                    loop.run()
                return running.code
            except CannotServe as error:
                # of eight ranks that start one at once
                usual = options.embedded and isinstance(error, AlreadyServed)
                log("info" if usual else "error", "cannot_serve", str(error))
                ready_pipe.tell(str(error))
                return EXIT_NO_START
            except Exception:  # noqa: BLE001  the top-level handler: a fault of ours is reported and ends the process
                log("error", "fault", "the daemon has failed:\n" + traceback.format_exc())
                return EXIT_FAULT
            finally:
                ready_pipe.tell("")
                log.close()
