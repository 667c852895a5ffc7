"""How far a pack has come is kept as bytes, and what it counts is bounded."""

from __future__ import annotations

import msgpack
import pytest

from loaderd.data.packing.pack_state import KINDS, LISTED, OTHER, PackState


def test_a_state_comes_back_from_its_bytes() -> None:
    state = (
        PackState("of the source")
        .with_sample(b"value", "tuple", lambda: (("x", 1, "<f4", (3,)),))
        .with_remark("rewritten")
    )
    state = state.with_bad("a.png", "it is empty")
    assert (state.seen, state.count, state.bad_count) == (2, 1, 1)
    assert PackState.from_bytes(state.to_bytes()) == state


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", msgpack.packb([1, 2]), msgpack.packb({"fingerprint": "x"})]
)
def test_bytes_of_another_version_are_no_state(data: bytes) -> None:
    assert PackState.from_bytes(data) is None


def test_all_bad_samples_are_counted_and_the_first_are_listed() -> None:
    state = PackState("")
    for n in range(LISTED + 5):
        state = state.with_bad(str(n), "bad")
    assert (state.bad_count, len(state.bad), state.bad[-1][0]) == (
        LISTED + 5,
        LISTED,
        str(LISTED - 1),
    )


def test_remarks_without_end_are_counted_as_others() -> None:
    state = PackState("")
    for n in range(100):
        state = state.with_remark(f"remark {n}")
    assert len(state.tally) == KINDS + 1
    assert dict(state.tally)[OTHER] == 100 - KINDS
    assert state.with_remark("remark 3").tally[3] == ("remark 3", 2)
