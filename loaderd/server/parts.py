"""What a daemon is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loaderd.config.load import Config
from loaderd.engine.base import Engine
from loaderd.server.admission_control import AdmissionControl
from loaderd.server.dispatcher import ActionDispatcher
from loaderd.server.idle_exit import IdleExit
from loaderd.server.pool_limits import PoolLimits
from loaderd.server.readiness import ReadinessPipe
from loaderd.server.segment_budget import SegmentBudget
from loaderd.server.sessions import SessionRegistry
from loaderd.server.start_options import StartOptions
from loaderd.server.startup import StartupReporter
from loaderd.server.stream_catalog import StreamCatalog
from loaderd.system.control_socket import ControlListener
from loaderd.system.logs import Log, QuarantineLog
from loaderd.system.loop import Loop
from loaderd.system.zmq_router import MessageRouter


@dataclass(frozen=True, slots=True)
class Parts:
    """What a daemon is made of, from its start to its end.

    Attributes:
        config: What is served.
        options: How it was started.
        limits: How many workers there are.
        env: Environment variables.
        loop: Calls everything.
        log: Its log.
        ready_pipe: Where whoever started it waits.
        startup: Tells what is waited for.
        control: Where clients come.
        messages: Where sessions send and receive messages.
        budget: The memory of segments.
        engine: What runs the jobs.
        registry: The sessions.
        admission: Who gets a session.
        catalog: The streams.
        dispatcher: Drives the scheduler.
        quarantine: Where bad samples are recorded.
        idle: Says when a daemon that nobody uses is to leave.
    """

    config: Config
    options: StartOptions
    limits: PoolLimits
    env: Mapping[str, str]
    loop: Loop
    log: Log
    ready_pipe: ReadinessPipe
    startup: StartupReporter
    control: ControlListener
    messages: MessageRouter
    budget: SegmentBudget
    engine: Engine
    registry: SessionRegistry
    admission: AdmissionControl
    catalog: StreamCatalog
    dispatcher: ActionDispatcher
    quarantine: QuarantineLog
    idle: IdleExit
