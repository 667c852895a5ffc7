"""What workers are told of the streams: what the config says, and what was found."""

from __future__ import annotations

from collections.abc import Sequence

from loaderd.config.stream import StreamConfig
from loaderd.engine.messages import StreamInfo, UseStream


class StreamTable:
    """The streams of an engine."""

    def __init__(self, streams: Sequence[StreamConfig], late: Sequence[StreamConfig]) -> None:
        """Begin with streams of which nothing was found yet.

        Args:
            streams: Those whose user code workers import before they are ready.
            late: The others. Each becomes one of those when it has been opened.
        """
        self._plans = {plan.name: plan.to_json() for plan in (*streams, *late)}
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
        info = self._infos[stream]
        return UseStream(
            stream,
            info.identity,
            info.state,
            info.total,
            info.sample_specs,
            info.specs if info.collated else (),
            info.plan or self._plans[stream],
            info.selection,
            info.classes,
            tuple(source.selection for source in info.sources),
        )
