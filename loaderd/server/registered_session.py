"""One session as the server knows it, from the moment its memory is being reserved."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from loaderd.config.stream import StreamConfig
from loaderd.core.events import Attach
from loaderd.core.snapshot import SessionSnapshot
from loaderd.engine.messages import StreamInfo
from loaderd.server.admission import AdmittedStream, OpenedStream
from loaderd.server.reserved_memory import ReservedMemory
from loaderd.server.status_report import SessionStatus
from loaderd.system import resource_limits
from loaderd.system.control_socket import Peer
from loaderd_wire.hints import counted
from loaderd_wire.limits import PART_FIELD
from loaderd_wire.messages import Hello, Welcome


@dataclass(slots=True)
class RegisteredSession:
    """A client that was admitted.

    Attributes:
        session: Number of the session.
        peer: Its connection.
        hello: What it has asked for.
        stream: Where that comes from.
        admitted: What it gets.
        warnings: For its user.
        memory: Where its batches lie.
        attached: The scheduler knows of it.
    """

    session: int
    peer: Peer
    hello: Hello
    stream: OpenedStream
    admitted: AdmittedStream
    warnings: tuple[str, ...]
    memory: ReservedMemory
    attached: bool = False

    def attach(self) -> Attach:
        """The event that tells the scheduler of it."""
        admitted = self.admitted
        return Attach(
            self.session,
            self.hello.stream,
            admitted.shape,
            admitted.seed,
            admitted.prefetch,
            self.memory.segment,
            self.memory.group,
            self.memory.admitted.share_window,
        )

    def welcome(self, *, token: bytes, daemon: str) -> Welcome:
        """The answer to its Hello.

        Args:
            token: What it has to show on the message socket.
            daemon: Name of this life of the daemon.
        """
        admitted, facts, plan = self.admitted, self.stream.facts, self.stream.plan
        asked = PART_FIELD in (self.hello.fields or ())
        parts, firsts = _parts(plan, facts) if asked else ((), ())
        return Welcome(
            session=self.session,
            token=token,
            daemon=daemon,
            samples=admitted.shape.samples,
            batch_size=admitted.shape.batch_size,
            seed=admitted.seed,
            drop_last=admitted.shape.drop_last,
            specs=admitted.fields,
            form=facts.form,
            collated=facts.collated,
            keys=facts.keys,
            segment=self.memory.segment,
            order=admitted.order,
            content=admitted.content,
            classes=facts.classes,
            on_error=plan.on_error,
            max_errors=plan.max_errors,
            empty=plan.empty,
            warnings=self.warnings,
            tail="short" if admitted.shape.uneven_tail else "repeat",
            whole_batches=admitted.shape.whole_batches,
            source_names=tuple(source.stream for source in facts.sources),
            source_offsets=tuple(
                accumulate((source.total for source in facts.sources[:-1]), initial=0)
            )
            if facts.sources
            else (),
            parts=parts,
            firsts=firsts,
            shared=bool(self.memory.group),
        )

    def facts(self) -> dict[str, str | int]:
        """Which one it is, for the log."""
        return {
            "session": self.session,
            "stream": self.hello.stream,
            "rank": self.admitted.shape.rank,
        }

    def line(self) -> str:
        """What it is, for the log."""
        shape, memory = self.admitted.shape, self.memory
        others = counted(len(memory.sessions) - 1, "other session")
        group = f", group {memory.group} with {others}" if memory.group else ""
        return (
            f"session {self.session} ({self.peer}): stream {self.hello.stream!r}, batch_size "
            f"{shape.batch_size}, rank {shape.rank} of {shape.world_size}, "
            f"{memory.segment.slots} slots, {resource_limits.size(memory.bytes)}{group}"
        )

    def status(self, progress: SessionSnapshot | None) -> SessionStatus:
        """What `status` shows of it.

        Args:
            progress: What the scheduler knows of it; None before it is attached.
        """
        shape, cred = self.admitted.shape, self.peer.cred
        return SessionStatus(
            session=self.session,
            stream=self.hello.stream,
            uid=cred.uid,
            pid=cred.pid,
            rank=shape.rank,
            world_size=shape.world_size,
            batch_size=shape.batch_size,
            prefetch=self.admitted.prefetch,
            bytes=self.memory.bytes,
            attached=self.attached,
            progress=progress,
        )


def _parts(plan: StreamConfig, facts: StreamInfo) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """What samples come from, and of each but the first of that the index of its first sample."""
    if not facts.sources:
        return facts.parts or (plan.data_name,), facts.firsts
    names: list[str] = []
    firsts: list[int] = []
    begin = 0
    for source, its in zip(plan.sources, facts.sources, strict=True):
        inner, places = _parts(source, its)
        names += inner
        firsts += [begin + place for place in (0, *places)]
        begin += its.total
    return tuple(names), tuple(firsts[1:])
