"""What a daemon tells the one that is to follow it, and whether that one can. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from loaderd.server.admission import OpenedStream, content_facts, order_facts
from loaderd_wire.facts import (
    apart_from_code,
    comparable,
    differences,
    edited_code,
    without_code,
)
from loaderd_wire.messages import OLDEST, PROTOCOL


@dataclass(frozen=True, slots=True)
class HandoverOffer:
    """A daemon, as its successor must know it.

    Attributes:
        pid: Of the daemon.
        memory: Ceiling of its segments, in bytes.
        segments: What they take, in bytes.
        streams: Facts of each open stream, by name.
        configs: Config files that its trainers were given.
        protocols: That its trainers speak.
    """

    pid: int
    memory: int
    segments: int
    streams: dict[str, dict[str, str]] = field(default_factory=dict)
    configs: list[str] = field(default_factory=list)
    protocols: list[int] = field(default_factory=list)

    def to_json(self) -> str:
        """The offer as it is sent."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> HandoverOffer:
        """What `to_json` of any version wrote.

        Raises:
            ValueError: The text is anything else.
        """
        try:
            known = {each.name for each in dataclasses.fields(cls)}
            said = {name: value for name, value in json.loads(text).items() if name in known}
            return cls(**said)
        except (TypeError, AttributeError) as error:
            raise ValueError(f"{text[:200]!r} is no offer: {error}") from None

    def refusal(self, streams: Mapping[str, OpenedStream], config: str, memory: int) -> str:
        """Why a trainer of that daemon could not go on with this one; "" if all can.

        Args:
            streams: Those that are open here.
            config: Path of the config; "" for none.
            memory: Ceiling of the segments here, in bytes.
        """
        for name, was in self.streams.items():
            if name not in streams:
                return f"the config has no stream {name!r} any longer"
            now = stream_facts(streams[name])
            edited = edited_code(was, now)
            known = without_code(apart_from_code(was, edited))
            changed = differences(known, comparable(known, apart_from_code(now, edited)))
            if changed:
                return f"stream {name!r} has changed: {changed}"
        for path in self.configs:
            if path != config:
                return f"a trainer was given {path}, and this daemon serves {config}"
        for protocol in self.protocols:
            if not OLDEST <= protocol <= PROTOCOL:
                return (
                    f"a trainer speaks protocol {protocol}, and this daemon {OLDEST} to {PROTOCOL}"
                )
        if self.segments > memory:
            return (
                f"[daemon] memory = {memory} is less than the {self.segments} bytes that its "
                "trainers' batches take"
            )
        return ""

    def edited(self, streams: Mapping[str, OpenedStream]) -> str:
        """Files of the users' code that differ; "" if none does."""
        found = (
            edited_code(was, stream_facts(streams[name]))
            for name, was in self.streams.items()
            if name in streams
        )
        return next((files for files in found if files), "")


def stream_facts(stream: OpenedStream) -> dict[str, str]:
    """All that a trainer compares when it comes back, apart from what it has asked for itself."""
    plan = stream.plan
    return (
        content_facts(stream, None)
        | order_facts(stream, plan.seed)
        | {"tail": plan.tail, "form": stream.facts.form}
        | ({"epoch_steps": str(plan.epoch_steps)} if plan.epoch_steps else {})
    )
