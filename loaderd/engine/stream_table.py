"""What workers are told of the streams: what the config says, and what was found."""

from __future__ import annotations

from collections.abc import Sequence

from loaderd.config.staging import StageConfig
from loaderd.config.stream import StreamConfig
from loaderd.engine.messages import RemoteStream, StreamInfo, UseStream

# where other hosts copy databases, if [daemon] stage does not say it
NODE_STAGE = StageConfig.of("/var/tmp", None, 30, "ray")


class StreamTable:
    """The streams of an engine."""

    def __init__(
        self, streams: Sequence[StreamConfig], late: Sequence[StreamConfig], *, stages: bool = False
    ) -> None:
        """Begin with streams of which nothing was found yet.

        Args:
            streams: Those whose user code workers import before they are ready.
            late: The others. Each becomes one of those when it has been opened.
            stages: Other hosts copy the databases.
        """
        self._plans = {plan.name: plan.to_json() for plan in (*streams, *late)}
        self._remote_plans = {
            plan.name: plan.staged((plan.stage or NODE_STAGE) if stages else None).to_json()
            for plan in (*streams, *late)
        }
        self._ahead = [plan.name for plan in streams]
        self._infos: dict[str, StreamInfo] = {}

    def __len__(self) -> int:
        """Number of streams."""
        return len(self._plans)

    def opened(self, info: StreamInfo) -> bool:
        """A stream was opened, perhaps anew.

        Returns:
            Whether workers that start from now on import its code, and did not before.
        """
        self._infos[info.stream] = info
        if info.stream in self._ahead:
            return False
        self._ahead.append(info.stream)
        return True

    def plan(self, stream: str) -> str:
        """What the config says of a stream, as JSON."""
        return self._plans[stream]

    def plans_ahead(self) -> tuple[str, ...]:
        """What the config says of the streams whose code workers import before they are ready."""
        return tuple(self._plans[name] for name in self._ahead)

    def has_user_code(self, stream: str) -> bool:
        """Whether code of the user makes samples of a stream."""
        return StreamConfig.from_json(self._plans[stream]).has_user_code()

    def collated(self, stream: str) -> bool:
        """Whether batches of an opened stream are made as a whole."""
        return self._infos[stream].collated

    def order(self, stream: str) -> UseStream:
        """The message that tells a worker of an opened stream."""
        return use_of(self._infos[stream], self._plans[stream])

    def remote(self, stream: str) -> RemoteStream:
        """The message that tells a proxy of an opened stream."""
        return RemoteStream(self._infos[stream], self._remote_plans[stream])

    def all_remote(self) -> tuple[RemoteStream, ...]:
        """`remote` of all that are open."""
        return tuple(self.remote(stream) for stream in self._infos)


def use_of(info: StreamInfo, plan: str) -> UseStream:
    """The message that tells a worker of an opened stream.

    Args:
        info: What it was found to be.
        plan: What the config says of it, as JSON.
    """
    return UseStream(
        info.stream,
        info.identity,
        info.state,
        info.total,
        info.sample_specs,
        info.specs if info.collated else (),
        info.plan or plan,
        info.selection,
        info.classes,
        tuple(source.selection for source in info.sources),
    )
