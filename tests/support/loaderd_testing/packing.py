"""Sources of every kind that `loaderd pack` takes, packed in this process and read back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import webdataset
from webdataset import tariterators

from loaderd.config.stream import StreamConfig
from loaderd.data.packing.inputs import PackOptions, pack_source
from loaderd.data.packing.kinds import opened
from loaderd.data.packing.source import SourceOptions
from loaderd.data.packing.writer import PackReport
from loaderd.data.sample import Sample
from loaderd.data.sources.source import Source
from loaderd_testing.sample_builders import coded, picture

Samples = list[dict[str, Any]]


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


# One source of each kind, by a writer that is not ours: what writes it into a folder, what reads it
# as it is read without loaderd, and what a stream of it needs.


def write_webdataset(folder: Path) -> None:
    """Shards of webdataset's own writer."""
    (folder / "shards").mkdir()
    with webdataset.ShardWriter(f"{folder}/shards/s-%02d.tar", maxcount=3, verbose=0) as sink:
        for at in range(5):
            sink.write(
                {
                    "__key__": f"d/{at:03}",
                    "png": coded(picture(seed=at)),
                    "cls": at % 3,
                    "txt": f"grüße {at}",
                    "json": {"size": [at, 4], "where": {"lat": at / 2}, "none": None},
                    "npy": np.arange(4, dtype=np.float32) * at,
                }
            )


def shard_samples(folder: Path) -> Samples:
    """The samples as webdataset reads them. It would leave it to chance when shards are closed."""
    with contextlib.ExitStack() as stack:
        streams = [
            {"url": str(path), "stream": stack.enter_context(path.open("rb"))}
            for path in sorted(folder.glob("*.tar"))
        ]
        return list(tariterators.group_by_keys(tariterators.tar_file_expander(streams)))


def read_webdataset(folder: Path) -> Samples:
    decoder = webdataset.Decoder([])
    samples = [decoder(sample) for sample in shard_samples(folder / "shards")]
    return [
        {
            "image": one["png"],
            "label": one["cls"],
            "txt": one["txt"],
            "json.size": one["json"]["size"],
            "json.where.lat": one["json"]["where"]["lat"],
            "npy": one["npy"],
        }
        for one in samples
    ]


Written = tuple[Callable[[Path], None], Callable[[Path], Samples], str]
SOURCES: dict[str, Written] = {
    "webdataset": (write_webdataset, read_webdataset, ""),
}
