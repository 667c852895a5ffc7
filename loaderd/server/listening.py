"""What a daemon takes from the system: its socket, its connections, its memory."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import ExitStack

from loaderd.config.load import Config
from loaderd.config.schema import DaemonConfig
from loaderd.data.errors import SourceError
from loaderd.data.staging.folder import StageClaim
from loaderd.server.segment_budget import SegmentBudget
from loaderd.system import file_limits, resource_limits
from loaderd.system.control_socket import ControlListener, Peer
from loaderd.system.lockfile import CannotServe, prepare_folder
from loaderd.system.logs import WriteLog
from loaderd.system.loop import Loop
from loaderd.system.memfd import SegmentStore
from loaderd.system.peer_credentials import PeerGate
from loaderd.system.zmq_router import MessageRouter
from loaderd_wire import paths
from loaderd_wire.messages import Ask, Hello, Progress


def claim(config: Config, num_workers: int) -> tuple[PeerGate, int]:
    """Make the socket's folder and raise the limit of file descriptors.

    Returns:
        (who may attach, sessions that the file descriptors suffice for).

    Raises:
        CannotServe: The text says why.
    """
    daemon, ray = config.daemon, config.workers.ray
    if ray is not None:
        if importlib.util.find_spec("ray") is None:
            raise CannotServe(
                f"[workers.ray] address = {ray.address!r} needs Ray, which is not installed: "
                "pip install 'loaderd[ray]', or leave the table out"
            )
        num_workers += ray.num_workers
    too_long = paths.too_long(daemon.socket)
    if too_long:
        raise CannotServe(too_long)
    gate = PeerGate.here(daemon.allow_uids)
    prepare_folder(daemon.socket, uid=gate.own, default=config.default_socket, others=gate.open)
    limit = file_limits.raise_limit()
    most = file_limits.sessions_that_fit(
        limit, file_limits.in_use() + file_limits.A_WORKER * num_workers
    )
    if most == 0:
        raise CannotServe(
            f"RLIMIT_NOFILE = {limit} is too low for even one session; raise the hard limit "
            "(ulimit -Hn)"
        )
    return gate, most


def hold_copies(daemon: DaemonConfig, stack: ExitStack) -> None:
    """Let nobody remove the copies of databases that this daemon will use.

    Args:
        daemon: Where they are, if there are any.
        stack: Lets them go.

    Raises:
        CannotServe: The folder cannot be used; the text says why.
    """
    if daemon.staging is not None:
        try:
            stack.enter_context(StageClaim(daemon.staging))
        except SourceError as error:
            raise CannotServe(str(error)) from None


def listen(
    loop: Loop,
    daemon: DaemonConfig,
    gate: PeerGate,
    *,
    on_message: Callable[[Peer, Hello | Ask], object],
    on_end: Callable[[Peer], object],
    on_progress: Callable[[int, Progress], object],
    log: WriteLog,
    stack: ExitStack,
    connections: ExitStack,
    now: bool,
) -> tuple[ControlListener, MessageRouter]:
    """Bind both sockets.

    Args:
        loop: The daemon's loop.
        daemon: Where they are.
        gate: Who may attach.
        on_message: As in ControlListener.
        on_end: As in ControlListener.
        on_progress: As in MessageRouter.
        log: Its log.
        stack: Takes what is closed first at the end.
        connections: Takes what is closed last, when others may start a daemon.
        now: False: nobody comes before `ServedSocket` has them bound.

    Raises:
        CannotServe: The text says why.
    """
    try:
        control = ControlListener(
            loop,
            daemon.socket,
            gate=gate,
            on_message=on_message,
            on_end=on_end,
            log=log,
            listen=now,
        )
        connections.callback(control.close)
        stack.callback(control.stop_listening)
        uids = gate.uids if gate.open else ()
        path = daemon.socket + paths.MESSAGES
        messages = MessageRouter(
            loop, path, mode=gate.mode, uids=uids, on_progress=on_progress, log=log, bind=now
        )
        stack.callback(messages.close)
    except OSError as error:
        raise CannotServe(
            f"{daemon.socket}: {error.strerror or error}; set another [daemon] socket"
        ) from None
    return control, messages


def segment_budget(loop: Loop, memory: int, root: str, stack: ExitStack) -> SegmentBudget:
    """The memory of all segments; the stack gives it back.

    Args:
        loop: The daemon's loop.
        memory: Limit, in bytes.
        root: Folder in which proc and the cgroups are found.
        stack: Closes it.
    """
    store = SegmentStore(loop)
    stack.callback(store.close)
    return SegmentBudget(store, memory=memory, rooms=lambda: resource_limits.rooms(root))
