"""What a worker finds out of a stream, and what it says meanwhile."""

from __future__ import annotations

import sys
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from loaderd.config.stream import StreamConfig
from loaderd.core.jobs import Stage, stamp
from loaderd.engine.messages import StreamInfo
from loaderd.worker.probe import probe
from loaderd.worker.streams import OpenStreams


class Line:
    """A worker's line of the status board."""

    def __init__(self) -> None:
        self.word = 0
        self.keys: dict[int, str] = {}

    def stamp(self, job: int, row: int, stage: int, candidate: int = 0) -> None:
        self.word = stamp(job, row, stage, candidate)
        self.row, self.stage = row, stage

    def importing(self, on: bool) -> None: ...

    def name(self, row: int, key: str) -> None:
        self.keys[row] = key

    def idle(self) -> None:
        self.word = 0


@pytest.mark.parametrize("count", [1, 2, 9])
def test_each_sample_that_is_made_to_find_out_what_a_stream_is_has_a_stamp_with_its_name(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line()
    made: list[tuple[int, str, int]] = []

    class Told:
        def __len__(self) -> int:
            return count

        def __getitem__(self, index: int) -> int:
            made.append((line.word, line.keys[line.row], index))
            assert line.stage == Stage.READ
            return index

    module = ModuleType("told_samples")
    vars(module)["Told"] = Told
    monkeypatch.setitem(sys.modules, "told_samples", module)
    plan = StreamConfig("t", dataset="told_samples:Told")
    imported: Any = SimpleNamespace(look=lambda: None, all=lambda: ())
    found = probe("t", OpenStreams([plan], 0, 1), line, plan, imported)
    assert isinstance(found, StreamInfo)
    words = [word for word, _, _ in made]
    assert all(before != after for before, after in pairwise(words)), words
    assert [(key, str(index)) for _, key, index in made if key != str(index)] == []
