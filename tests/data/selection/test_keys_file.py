"""A file of keys: which samples it names, and what is wrong with it, by line."""

from __future__ import annotations

import pytest

from loaderd.data.errors import SourceError
from loaderd.data.selection.keys_file import listed
from loaderd_testing.named_samples import Named

SOURCE = Named(["a_1", "b_1", "00ff", "c c", "ä"])


def indices(data: bytes, source: Named = SOURCE) -> list[int]:
    return listed("train.txt", data, source, lambda count: None).tolist()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"b_1\na_1\n", [1, 0]),
        (b"c c\r\na_1", [3, 0]),
        (b"\xef\xbb\xbfa_1\n", [0]),
        ("ä\n".encode(), [4]),
        (b"hex:00ff\nhex:615f31\n", [2, 0]),
    ],
)
def test_lines_name_samples_in_their_order(data: bytes, expected: list[int]) -> None:
    assert indices(data) == expected


def test_names_that_are_numbers_are_indices() -> None:
    source = Named([str(n) for n in range(12)])
    source.keys = "index"
    assert indices(b"11\n0\n5\n", source) == [11, 0, 5]
    for line in (b"12", b"-1", b"05", b"1.0", "²".encode(), b"9" * 30):
        with pytest.raises(SourceError, match=r"train\.txt:2: no sample has the key"):
            indices(b"3\n" + line, source)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a_1\nx\ny\n", "train.txt:2: no sample has the key 'x' .so it is with 1 more line."),
        (b"a_1\nb_1\na_1\n", "train.txt:3: 'a_1' is in line 1 already"),
        (b"a_1\nhex:615f31\n", "train.txt:2: 'a_1' is in line 1 already"),
        (b"a_1\n\nb_1\n", "train.txt:2: is empty"),
        (b"", "train.txt: names no sample"),
        (b"a_1\n\xff\n", "train.txt:2: is not UTF-8"),
        (b"hex:0\n", "train.txt:1: 'hex:0': expected pairs"),
    ],
)
def test_line_that_names_no_sample_of_its_own_is_told(data: bytes, text: str) -> None:
    with pytest.raises(SourceError, match=text):
        indices(data)


def test_key_of_several_samples_is_refused() -> None:
    with pytest.raises(
        SourceError, match=r"train\.txt:1: 'a' is the name of several samples, 0 and 2"
    ):
        indices(b"a\n", Named(["a", "b", "a"]))


def test_keys_with_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loaderd.data.selection.keys_file.hash", lambda key: 7, raising=False)
    assert indices(b"c c\nb_1\n") == [3, 1]
    with pytest.raises(SourceError, match=r"train\.txt:2: no sample has the key 'x'"):
        indices(b"a_1\nx\n")
