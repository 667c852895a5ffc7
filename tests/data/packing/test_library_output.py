from __future__ import annotations

from loaderd.data.packing.library_output import KINDS, OTHER, LibraryOutput


def test_a_kind_of_line_is_told_once_with_the_file_that_prints_it_again() -> None:
    waiting = [
        ["warning 5 of 0xff"],
        ["warning 6 of 0x0e", "else"],
        [],
        ["warning 7 of 0x1"],
        ["else"],
    ]
    printed = LibraryOutput(lambda: waiting.pop(0))
    assert printed.listen()
    assert printed.listen()
    looked: list[str] = []
    printed.find((name, lambda name=name: looked.append(name)) for name in ("a", "b", "c", "d"))
    assert looked == ["a", "b", "c"]  # then nothing is left to be found
    assert printed.notes == ["b: warning 7 of 0x1 (2 such lines in total)", "c: else"]


def test_what_no_file_prints_again_is_told_without_a_name_and_not_looked_for_for_ever() -> None:
    waiting = [["once"], []]
    printed = LibraryOutput(lambda: waiting.pop(0) if waiting else [])
    assert printed.listen()
    printed.find([("a", lambda: None)])
    assert printed.notes == ["once"]
    assert not printed.listen()


def test_kinds_without_end_are_told_as_others() -> None:
    printed = LibraryOutput(lambda: ["x" * (n + 1) for n in range(100)])
    printed.listen()
    assert len(printed.notes) == KINDS + 1
    assert printed.notes[-1] == f"{OTHER} ({100 - KINDS} such lines in total)"
