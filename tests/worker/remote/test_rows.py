"""Which bytes of a slot come back from another host."""

from __future__ import annotations

from dataclasses import replace

from loaderd.core.jobs import Done, Job, JobKind
from loaderd.worker.job_runner import pack
from loaderd.worker.remote.rows import body_used, spans
from loaderd_wire.slots import FieldSpec, slot_layout

FIELDS = (FieldSpec("x", "|u1", (3,)), FieldSpec("t", "", (), "text"), FieldSpec("y", "<i8", ()))
LAYOUT = slot_layout(FIELDS, 10)
FILL = Job(1, JobKind.FILL, "train", 1, 0, 7, 0, 0, 10, 2, 5)
DONE = Done(1, (), (), LAYOUT.tail_of(2, 5)[0], 20, 0, 0, 0, 0)


def test_the_rows_of_the_job_come_back_and_no_others() -> None:
    x, _, y = LAYOUT.offsets
    tail = (LAYOUT.tail_of(2, 5)[0], 20)
    assert spans(FILL, DONE, LAYOUT, 0) == [(16, 24), (x + 6, 9), (y + 16, 24), tail]
    assert spans(FILL, replace(DONE, offset=0, size=0), LAYOUT, 0)[-1] == (y + 16, 24)


def test_nothing_comes_back_where_no_rows_are_delivered() -> None:
    for change in ({"changed": "x"}, {"needs_tail": 9}, {"needs_body": 9}):
        assert spans(FILL, replace(DONE, **change), LAYOUT, 0) == []
    assert spans(replace(FILL, kind=JobKind.TRIAL), DONE, LAYOUT, 0) == []


def test_of_rows_that_are_left_only_the_indices_come_back() -> None:
    compact = replace(FILL, kind=JobKind.COMPACT, first=0, last=10, lost=(3, 4))
    assert spans(compact, DONE, LAYOUT, 0) == [(0, 64)]


def test_of_a_collated_batch_only_what_it_takes_comes_back() -> None:
    layout = slot_layout((), 10, body_bytes=1 << 20)
    body = layout.body_offset
    chunk = pack({"arrays": {"a": ["<f4", [2, 3], body], "b": [["|u1", [5], body + 64]]}})
    assert body_used([chunk], body) == 69
    batch = replace(FILL, kind=JobKind.BATCH, first=0, last=10)
    done = replace(DONE, offset=layout.tail_offset, size=len(chunk))
    assert spans(batch, done, layout, 69) == [
        (0, 80),
        (body, 69),
        (layout.tail_offset, len(chunk)),
    ]
    assert body_used([pack({"text": {"t": []}})], body) == 0
