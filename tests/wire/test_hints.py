from __future__ import annotations

from loaderd_wire.hints import few


def test_a_short_list_is_told_whole() -> None:
    assert few([]) == ""
    assert few(["a"]) == "a"
    assert few([str(n) for n in range(8)]) == "0, 1, 2, 3, 4, 5, 6, 7"


def test_a_long_list_is_its_first_words_and_a_number() -> None:
    assert few({str(n): 0 for n in range(9)}) == "0, 1, 2, 3, 4, 5, 6, 7 and 1 more"
    assert few(["x"] * 5000, 2) == "x, x and 4,998 more"
