"""The lines with which a daemon begins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from loaderd.config.stream import StreamConfig
from loaderd.server.admission import OpenedStream
from loaderd.server.banner import tell_start, tell_stream
from loaderd.server.pool_limits import PoolLimits
from loaderd_wire.slots import FieldSpec


class Lines(list[tuple[str, str]]):
    def __call__(self, level: str, event: str, text: str, /, **facts: Any) -> None:
        self.append((event, text))


@pytest.mark.parametrize(("most", "workers"), [(2, "2 workers,"), (8, "2 workers (up to 8),")])
def test_config_version_workers_memory_and_native_parts_are_told(most: int, workers: str) -> None:
    lines = Lines()
    config: Any = SimpleNamespace(
        path="/c.toml", streams=[SimpleNamespace(name="train"), SimpleNamespace(name="val")]
    )
    tell_start(lines, config, PoolLimits(2, most, 2, 2, 1 << 30), 1 << 30)
    ((event, text),) = lines
    assert event == "banner"
    for part in (
        "loaderd 0.",
        "config /c.toml",
        "train",
        "val",
        workers,
        "1.0 GiB",
        "native parts",
    ):
        assert part in text


def test_a_stream_is_told_with_what_was_found_in_it() -> None:
    lines = Lines()
    specs = (FieldSpec("image", "|u1", (4, 4, 3), image=True), FieldSpec("text", "", (), "text"))
    more = tuple(FieldSpec(f"f{n}", "<f4", ()) for n in range(10))
    found: Any = SimpleNamespace(samples=900, total=1000, layout="loaderd", specs=specs + more)
    tell_stream(lines, "train", OpenedStream(StreamConfig("train", lmdb="/d"), found))
    ((event, text),) = lines
    assert event == "stream_opened"
    assert text.startswith(
        "stream 'train': 900 samples of 1,000, layout loaderd, fields image u1 [4, 4, 3], text, f0 f4 []"
    )
    assert text.endswith(" and 4 more")


def test_a_stream_that_is_read_from_copies_is_told_with_them() -> None:
    lines = Lines()
    found: Any = SimpleNamespace(samples=9, total=9, layout="loaderd", specs=())
    sources = tuple(StreamConfig(n, lmdb=f"/{n}", copies={f"/{n}": f"/l/{n}"}) for n in "abcd")
    for plan in (sources[0], StreamConfig("mix", sources=sources)):
        tell_stream(lines, plan.name, OpenedStream(plan, found))
    assert lines[0][1].endswith(", read from its staged copy /l/a")
    assert lines[1][1].endswith(", read from staged copies /l/a, /l/b, /l/c and 1 more")
