"""Sources of every kind that `loaderd pack` takes, packed in this process and read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loaderd.config.stream import StreamConfig
from loaderd.data.packing.inputs import PackOptions, pack_source
from loaderd.data.packing.kinds import opened
from loaderd.data.packing.source import SourceOptions
from loaderd.data.packing.writer import PackReport
from loaderd.data.sample import Sample
from loaderd.data.sources.source import Source


class Packed:
    """A packed source.

    Attributes:
        report: What `pack` said.
        samples: Each with its name, its arrays and bytes copied.
    """

    def __init__(
        self,
        kind: str,
        src: str | Path,
        db: Path,
        *,
        fields: tuple[str, ...] = (),
        args: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        said = SourceOptions(fields=fields, args=args or {})
        self.report: PackReport = pack_source(
            opened(kind, str(src), said), str(db), PackOptions(**options)
        )
        self.samples: dict[str, dict[str, Any]] = {}
        with Source(StreamConfig("t", lmdb=str(db))) as source:
            self.classes = source.classes
            for index in range(source.total):
                self.samples[source.key(index)] = _copied(source.read(index))

    @property
    def bad(self) -> dict[str, str]:
        """What was left out, with the reason."""
        return dict(self.report.bad)


def _copied(sample: Sample) -> dict[str, Any]:
    return {
        name: value.copy() if hasattr(value, "copy") else _plain(value)
        for name, value in sample.items()
    }


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else bytes(value)
