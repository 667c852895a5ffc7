"""What the page shows of batches: rows of the slot, unless it has gone or says nonsense."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from loaderd.core.actions import RetireWorker, SendMessage
from loaderd.core.events import Drain
from loaderd.server.page.last_batches import LastBatches
from loaderd_wire.messages import Descriptor, Segment
from loaderd_wire.packing import packed
from loaderd_wire.slots import Chunk, FieldSpec, slot_layout

FIELDS = (
    FieldSpec("image", "|u1", (6, 4, 3), image=True),
    FieldSpec("label", "<i8", ()),
    FieldSpec("score", "<f4", ()),
    FieldSpec("vector", "<f4", (5,)),
    FieldSpec("text", "", (), "text"),
)
ROWS = 10


class Memory:
    """One session, with a segment of two slots of which the second holds a batch."""

    def __init__(self, *, collated: bool = False) -> None:
        layout = slot_layout((), ROWS, body_bytes=4096) if collated else slot_layout(FIELDS, ROWS)
        self.segment = Segment(
            3, 2, layout.slot_bytes, layout.tail_bytes // ROWS, layout.body_bytes
        )
        self.bytes = bytearray(2 * layout.slot_bytes)
        self.begin = layout.slot_bytes
        self.layout = layout
        self.told: dict[int, tuple[Descriptor, Segment]] = {}
        shape = SimpleNamespace(batch_size=ROWS)
        self.session: Any = SimpleNamespace(
            hello=SimpleNamespace(stream="train"),
            admitted=SimpleNamespace(fields=FIELDS, shape=shape),
            stream=SimpleNamespace(
                facts=SimpleNamespace(collated=collated, classes=("cat", "dog"))
            ),
        )
        self.sessions = {7: self.session}
        self.watching: Any = None
        self.seen = LastBatches(self.sessions, lambda: self.told, self.read, self.watch)

    def watch(self, on_event: Any) -> None:
        self.watching = on_event

    def read(self, segment: int, offset: int, size: int) -> bytes:
        return bytes(self.bytes[offset : offset + size]) if segment == 3 else b""

    def put(self, offset: int, array: np.ndarray) -> None:
        at = self.begin + offset
        self.bytes[at : at + array.nbytes] = array.tobytes()

    def chunk(self, first: int, last: int, parts: dict[str, Any]) -> Chunk:
        data = packed(parts)
        offset = self.layout.tail_of(first, last)[0]
        self.bytes[self.begin + offset : self.begin + offset + len(data)] = data
        return Chunk(first, last, offset, len(data))

    def tell(
        self, *chunks: Chunk, generation: int = 1, filled: int = ROWS, segment: int = 3
    ) -> None:
        message = Descriptor(
            7, 1, 0, 2, 40, ROWS, segment, 1, generation, filled, False, chunks, ()
        )
        self.told = {7: (message, self.segment)}


def filled() -> Memory:
    memory = Memory()
    image, label, score, _, _ = memory.layout.offsets
    memory.put(0, np.arange(100, 100 + ROWS))
    memory.put(image, np.full((ROWS, 6, 4, 3), 9, np.uint8))
    memory.put(label, np.arange(ROWS) % 3)
    memory.put(score, np.full(ROWS, 0.25, np.float32))
    return memory


def test_rows_are_shown_with_index_key_pictures_numbers_and_texts() -> None:
    memory = filled()
    keys = [f"key {row}" for row in range(5)]
    memory.tell(memory.chunk(0, 5, {"keys": keys, "text": {"text": ["hello"] * 5}}))
    (shown,) = memory.seen.news()
    assert (shown["stream"], shown["epoch"], shown["position"], shown["rows"]) == (
        "train",
        2,
        40,
        10,
    )
    first, second, third = shown["samples"][:3]
    assert (first["index"], first["key"]) == (100, "key 0")
    assert first["values"] == {
        "label": "0 (cat)", "score": "0.25", "vector": "f4 [5]", "text": "hello",
    }  # fmt: skip
    assert (first["pictures"]["image"]["width"], first["pictures"]["image"]["height"]) == (4, 6)
    assert second["values"]["label"] == "1 (dog)"
    assert third["values"]["label"] == "2"  # no class has this number
    assert len(shown["samples"]) == 8
    assert shown["samples"][6]["key"] == "106"  # no chunk names it


def test_a_batch_is_shown_again_only_when_it_is_another_one() -> None:
    memory = filled()
    memory.tell()
    assert len(memory.seen.news()) == 1
    assert memory.seen.news() == []
    assert len(memory.seen.all()) == 1
    memory.tell(generation=2)
    assert len(memory.seen.news()) == 1


def test_a_batch_without_rows_is_not_shown() -> None:
    memory = filled()
    memory.tell(filled=0)
    assert memory.seen.news() == []


def test_of_a_session_and_a_segment_that_have_gone_the_last_rows_stay() -> None:
    memory = filled()
    memory.tell()
    before = memory.seen.all()
    memory.tell(generation=2, segment=4)
    assert memory.seen.all() == before
    memory.told = {8: memory.told[7]}
    assert memory.seen.all() == before


@pytest.mark.parametrize(
    "written",
    [
        b"\xc1",  # nothing in msgpack
        packed(1),
        packed([{}]),
        packed({"keys": 5}),
        packed({"keys": [5]}),
        packed({"text": {"text": 7}}),
        b"\x91" * 4000,
    ],
)
def test_a_tail_that_a_trainer_has_written_over_is_left_out(written: bytes) -> None:
    memory = filled()
    chunk = memory.chunk(0, 5, {"keys": ["a" * 1000] * 5})
    at = memory.begin + chunk.offset
    memory.bytes[at : at + len(written)] = written
    memory.tell(replace(chunk, size=len(written)))
    assert memory.seen.news() == []


@pytest.mark.parametrize(
    "nonsense",
    [
        ["<f4"],
        ["<f4", [3]],
        ["<i8", [3], -(1 << 63)],
        ["<i8", [3], (1 << 64) - 1],
        ["<i8", "shape", 0],
        ["<f4", [3, 3, 1 << 60, 1 << 60], 0],
        ["nonsense", [3, "x"], 0],
        5,
    ],
)
def test_a_description_that_a_trainer_has_written_over_is_left_out(nonsense: Any) -> None:
    memory = Memory(collated=True)
    memory.tell(memory.chunk(0, ROWS, {"arrays": {"label": nonsense, "image": nonsense}}), filled=3)
    memory.seen.news()  # it raises nothing
    memory.seen.all()
    good = memory.chunk(0, ROWS, {"arrays": {"label": ["<i8", [3], memory.layout.body_offset]}})
    memory.tell(good, filled=3, generation=2)
    (shown,) = memory.seen.all()
    assert [each["values"]["label"] for each in shown["samples"]] == ["0 (cat)"] * 3


def test_of_several_trainers_of_a_stream_one_is_shown_for_as_long_as_it_is_there() -> None:
    memory = filled()
    memory.tell()
    first = memory.told[7]
    memory.told = {8: (replace(first[0], start=80), first[1]), 7: first}
    memory.sessions[8] = memory.session
    (shown,) = memory.seen.news()
    assert shown["position"] == 80
    memory.told = {7: first, 8: (replace(first[0], start=120, generation=9), first[1])}
    (shown,) = memory.seen.news()
    assert shown["position"] == 120
    assert memory.seen.news() == []
    memory.told = {7: first}
    assert [each["position"] for each in memory.seen.news()] == [40]


def test_what_a_new_reader_gets_is_news_to_the_others_all_the_same() -> None:
    memory = filled()
    memory.tell()
    assert len(memory.seen.all()) == 1
    assert len(memory.seen.news()) == 1
    assert memory.seen.news() == []


def test_a_collated_batch_is_shown_by_its_own_description() -> None:
    memory = Memory(collated=True)
    memory.put(0, np.arange(ROWS))
    at = memory.layout.body_offset
    memory.put(at, np.arange(3))
    memory.tell(memory.chunk(0, ROWS, {"arrays": {"label": ["<i8", [3], at]}}), filled=3)
    (shown,) = memory.seen.news()
    assert [each["values"] for each in shown["samples"]] == [
        {"label": "0 (cat)"}, {"label": "1 (dog)"}, {"label": "2"},
    ]  # fmt: skip


def test_a_trainer_that_waits_is_shown_the_next_batch_that_it_is_told_of() -> None:
    """It has given back all that it got, so that nothing lies in a slot when the page looks."""
    memory = filled()
    assert memory.seen.news() == []
    memory.watching(Drain(), [RetireWorker(1)])  # no batch is told
    other: Any = SimpleNamespace(hello=SimpleNamespace(stream="other"))
    memory.sessions[8] = other
    memory.told = {8: (Descriptor(8, 1, 0, 2, 40, ROWS, 3, 1, 1, 0, False, (), ()), memory.segment)}
    assert memory.seen.news() == []
    # a batch of a stream that has one
    memory.watching(Drain(), [SendMessage(8, memory.told[8][0])])
    assert memory.watching is not None
    memory.tell()
    memory.watching(Drain(), [SendMessage(7, memory.told[7][0])])
    assert memory.watching is None
    memory.told = {}
    (shown,) = memory.seen.news()
    assert shown["rows"] == ROWS
    assert memory.watching is not None  # for the next time


def test_what_goes_wrong_in_the_schedulers_turn_is_raised_in_the_pages_own() -> None:
    memory = filled()
    assert memory.seen.news() == []
    memory.tell()
    message = memory.told[7][0]
    broken: Any = None
    memory.told = broken
    memory.watching(Drain(), [SendMessage(7, message)])
    memory.told = {}
    with pytest.raises(AttributeError):
        memory.seen.news()
    assert memory.seen.news() == []


def test_nothing_is_watched_where_batches_lie_in_slots_or_nobody_trains() -> None:
    memory = filled()
    memory.tell()
    assert len(memory.seen.news()) == 1
    assert memory.watching is None
    memory.sessions.clear()
    memory.told = {}
    assert memory.seen.news() == []
    assert memory.watching is None


def test_streams_take_turns_and_a_new_reader_gets_all_of_them_in_the_end() -> None:
    """So that no turn of the loop takes longer, and no event is longer, with more streams."""
    memory = filled()
    memory.tell()
    message, segment = memory.told[7]
    for number, name in ((8, "b"), (9, "c")):
        other = SimpleNamespace(**{**vars(memory.session), "hello": SimpleNamespace(stream=name)})
        memory.sessions[number] = cast(Any, other)
        memory.told[number] = (replace(message, session=number), segment)
    seen = memory.seen
    rounds = [[each["stream"] for each in seen.news()] for _ in range(3)]
    assert sorted(rounds) == [["b"], ["c"], ["train"]]
    assert not seen.behind
    assert seen.news() == []
    assert [each["stream"] for each in seen.all()] == ["b"]
    assert seen.behind
    assert sorted([seen.news()[0]["stream"], seen.news()[0]["stream"]]) == ["c", "train"]
    assert not seen.behind
