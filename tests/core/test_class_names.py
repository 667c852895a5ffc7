"""Class names of streams of one config: whether a label means the same in all of them."""

from __future__ import annotations

import pytest

from loaderd.core.class_names import disagreement


def test_streams_with_the_same_classes_and_streams_without_agree() -> None:
    assert disagreement({}) == ""
    assert disagreement({"a": ("x", "y"), "b": (), "c": ("x", "y")}) == ""


@pytest.mark.parametrize(
    ("train", "val", "words"),
    [
        (("a", "b", "c"), ("a", "c"), "(3 and 2): label 1 is 'b' in 'train', 'c' in 'val'"),
        (("a", "b"), ("a", "b", "c"), "(2 and 3): label 2 is no class in 'train', 'c' in 'val'"),
        (("a", "b"), ("b", "a"), "(2 and 2): label 0 is 'a' in 'train', 'b' in 'val'"),
    ],
)
def test_the_first_class_that_differs_is_named(
    train: tuple[str, ...], val: tuple[str, ...], words: str
) -> None:
    text = disagreement({"flat": (), "train": train, "same": train, "val": val})
    assert words in text
    assert "--classes-from" in text
    assert text.count("\n") == 1
