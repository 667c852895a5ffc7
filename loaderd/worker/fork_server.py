"""The fork server: a process with one thread that has imported what workers need.

It does nothing but fork and reap them.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable

from loaderd.config.stream import StreamConfig
from loaderd.core.jobs import Done, Job
from loaderd.data.errors import SourceError
from loaderd.data.user_modules import import_all, imported, put_first
from loaderd.engine.channel import Channel, ChannelClosed
from loaderd.engine.messages import (
    ORDERS,
    ChildEnded,
    Doing,
    Fork,
    Forked,
    ForkServerReady,
    MapSegment,
    NotForked,
    Probe,
    Quit,
    Reap,
    SegmentUnmapped,
    Setup,
    StreamInfo,
    UnmapSegment,
    UseStream,
    WorkerBooted,
    WorkerFault,
)
from loaderd.system.processes import adopt_orphans, children, die_with_parent, set_name, threads
from loaderd.system.ray_address import unreachable
from loaderd.worker import process_setup
from loaderd.worker.remote.unavailable import give_up
from loaderd_wire.errors import ProtocolError

# This module itself must not need any of these: where the user's environment asks for native
# threads, numpy already brings some.
BASE = (
    "numpy",
    "loaderd.worker.main",
    "loaderd.data.sources.source",
    "loaderd.data.pipeline.pipeline",
    "cv2",
    "simplejpeg",
    "PIL.Image",
)
ORPHANS_MS = 50  # how long a killed orphan may take before we look again
FDS = 4  # of a Fork: socket, scoreboard, output, stack dump


def main(argv: list[str]) -> int:
    """Import what all workers need before anybody says more, then do what one is told.

    Args:
        argv: Pid of the daemon, descriptors of the socket and of the stack dump, "fork" or
            "spawn", what to import ahead, as in Setup.

    Returns:
        The exit code.
    """
    die_with_parent(int(argv[0]))
    adopt_orphans()
    set_name("loaderd-templ")
    process_setup.ignore_signals()
    channel = Channel(socket.socket(fileno=int(argv[1])), blocking=True)
    dump = int(argv[2])
    process_setup.dump_stacks(dump)
    if argv[4] != "none":
        channel.send(Doing("importing what all workers need"))
        import_base()
    received = channel.receive()
    if received is None or not isinstance(received[0], Setup):
        raise ProtocolError("the first message to the fork server must be Setup")
    try:
        import_users(received[0], lambda text: channel.send(Doing(text)))
    except SourceError as error:
        channel.send(WorkerFault(str(error)[:60_000]))
        return 1
    process_setup.dump_no_stacks()
    os.close(dump)
    process_setup.ignore_signals()
    if threads() > 1:
        channel.send(
            WorkerFault(f"it has {threads()} threads after preloading {received[0].preload!r}")
        )
        return 1
    gc.collect()
    gc.freeze()
    channel.send(ForkServerReady(received[0].preload, threads()))
    server = ForkServerProcess(channel, spawn_worker if argv[3] == "spawn" else be_worker)
    try:
        server.run()
    except ChannelClosed:
        pass  # the daemon is gone, and so shall we be
    finally:
        if server.is_fork_server():
            server.sweep_all()
    return 0


def import_base() -> None:
    """Import and make what all workers need."""
    for name in BASE:
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # whoever really needs it will say so
    ORDERS.prepare(
        received=(Setup, Probe, UseStream, MapSegment, UnmapSegment, Job),
        sent=(Doing, WorkerBooted, StreamInfo, Done, SegmentUnmapped),
    )


def import_users(setup: Setup, tell: Callable[[str], object]) -> None:
    """Import the user's modules, if the Setup says so.

    Args:
        setup: Says which.
        tell: Called with what comes next.

    Raises:
        SourceError: They cannot be imported.
    """
    put_first(setup.folder)
    if setup.preload == "user":
        from loaderd.worker import generator_watch  # not at the top: see BASE

        folder = os.getcwd()
        generator_watch.install()
        import_all([StreamConfig.from_json(plan) for plan in setup.plans], setup.init, tell)
        imported(setup.folder).look()
        process_setup.pin_native_threads()
        os.chdir(folder)


def be_worker(parent: int, sock: int, board: int, line: int, output: int, dump: int) -> int:
    """Go on as a worker in this process, a fork of the fork server."""
    from loaderd.worker.main import run

    return run(parent, sock, board, line, output, dump)


def spawn_worker(
    parent: int, sock: int, board: int, line: int, output: int, dump: int, *, role: str = "worker"
) -> int:
    """Go on as a worker in a fresh interpreter, or in another role; does not return."""
    for fd in (sock, board, output, dump):
        os.set_inheritable(fd, True)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    boot = (
        "import sys, json; sys.path[:] = json.loads(sys.argv.pop(1)); from "
        "loaderd.worker.__main__ import main; main()"
    )
    rest = json.dumps([parent, sock, board, line, output, dump])
    os.execv(
        sys.executable,
        [sys.executable, "-c", boot, json.dumps(list(map(str, sys.path))), role, rest],
    )


class ForkServerProcess:
    """Serves Fork and Reap.

    `body` is what a child does: run(parent's pid, socket, board, line, output, dump) -> exit code.
    """

    def __init__(
        self, channel: Channel, body: Callable[[int, int, int, int, int, int], int]
    ) -> None:
        self._channel = channel
        self._body = body
        self._pids: dict[int, int] = {}
        self._own = os.getpid()

    def is_fork_server(self) -> bool:
        """False in whatever process a worker's child may have become."""
        return os.getpid() == self._own

    def run(self) -> None:
        """Until Quit. Raises ChannelClosed at the daemon's end."""
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        orphans = False
        while True:
            if orphans and not poll.poll(ORPHANS_MS):
                orphans = self._sweep()
                continue
            received = self._channel.receive()
            if received is None:
                continue
            order, fds = received
            if isinstance(order, Fork) and len(fds) == FDS:
                self._fork(order, fds)
            elif isinstance(order, Reap):
                self._reap(order)
                orphans = self._sweep()
            elif isinstance(order, Quit):
                return
            else:
                raise ProtocolError(
                    f"the fork server does not know what to do with {order!r:.100} and {len(fds)} "
                    "descriptors"
                )

    def sweep_all(self) -> None:
        """Kill and reap every descendant.

        Only one that cannot be killed (in disk sleep) is left, after 2 s.
        """
        self._pids.clear()
        for _ in range(40):
            if not self._sweep():
                return
            select.select([], [], [], ORPHANS_MS / 1e3)

    def _fork(self, order: Fork, fds: list[int]) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self._channel.send(NotForked(order.worker, f"fork failed: {error}"))
            _close_all(fds)
            return
        if pid == 0:
            code = 1
            try:
                self._channel.close()
                sock, board, output, dump = fds
                rest = (self._own, sock, board, order.line, output, dump)
                if order.cluster:
                    # before an interpreter has loaded Ray, for nothing
                    die_with_parent(self._own)
                    if why := unreachable(order.cluster):
                        give_up(sock, why)
                    code = spawn_worker(*rest, role="proxy")
                code = self._body(*rest)
            except BaseException:  # noqa: BLE001 - the top-level handler of a process that must not come back from here
                traceback.print_exc()
            finally:
                os._exit(code)
        with contextlib.suppress(PermissionError, ProcessLookupError):  # it was quicker, or is dead
            os.setpgid(pid, pid)
        _close_all(fds)
        # Nobody but us can reap it, so this is its pidfd and no other's.
        pidfd = os.pidfd_open(pid)
        self._pids[order.worker] = pid
        try:
            self._channel.send(Forked(order.worker, pid), [pidfd])
        finally:
            os.close(pidfd)

    def _reap(self, order: Reap) -> None:
        pid = self._pids.pop(order.worker)
        _, status = os.waitpid(pid, 0)
        self._channel.send(ChildEnded(order.worker, status))

    def _sweep(self) -> bool:
        """Kill whoever is our child and no worker.

        Workers adopt what is orphaned below them, so these come from dead workers only, and each
        that dies may bring us its own children. Returns whether any may be left.
        """
        workers = set(self._pids.values())
        orphans = [pid for pid in children() if pid not in workers]
        left = False
        for pid in orphans:
            try:
                os.kill(pid, signal.SIGKILL)
                left = os.waitpid(pid, os.WNOHANG) == (0, 0) or left
            except (ProcessLookupError, ChildProcessError):
                continue
            left = True  # its children may have come to us just now
        return left


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
