from __future__ import annotations

from loaderd_wire.hints import counted, few, nearest


def test_a_short_list_is_told_whole() -> None:
    assert few([]) == ""
    assert few(["a"]) == "a"
    assert few([str(n) for n in range(8)]) == "0, 1, 2, 3, 4, 5, 6, 7"


def test_a_long_list_is_its_first_words_and_a_number() -> None:
    assert few({str(n): 0 for n in range(9)}) == "0, 1, 2, 3, 4, 5, 6, 7 and 1 more"
    assert few(["x"] * 5000, 2) == "x, x and 4,998 more"


def test_a_mistyped_word_has_the_word_that_it_is_most_like_and_a_strange_one_none() -> None:
    assert nearest("shufle", ["shutter", "shuffle", "seed"]) == "shuffle"
    assert nearest("shufle", {}) is None
    assert nearest("worker", ["seed", "split"]) is None


def test_one_of_a_thing_has_no_plural() -> None:
    assert [counted(n, "worker") for n in (0, 1, 2, 1024)] == [
        "0 workers",
        "1 worker",
        "2 workers",
        "1,024 workers",
    ]
    assert [counted(n, "class") for n in (1, 2)] == ["1 class", "2 classes"]
