from __future__ import annotations

import pytest

from config.test_load import read, stream


def test_boxes_that_follow_one_op_alone_are_refused() -> None:
    (found,) = stream(
        'transforms = [{op = "resize", size = 9, boxes = "b"}, {op = "hflip"}, {op = "grayscale"}]'
    )
    assert found.startswith("streams.train.transforms[1]: hflip moves pixels, but only resize says")


def test_boxes_that_follow_every_op_are_fine() -> None:
    read(
        '[streams.train]\nlmdb = "a"\n'
        'transforms = [{op = "resize", size = 9, boxes = "b"}, {op = "hflip", boxes = "b"}]'
    )


def test_views_of_images_that_stay_encoded_are_refused() -> None:
    (found,) = stream("decode = false\nviews = 2")
    assert found.startswith("streams.train.views: 2: goes with decode = true")


def test_mixing_comes_last_and_needs_stacked_batches() -> None:
    (found,) = stream('transforms = [{op = "mixup", num_classes = 9}, {op = "hflip"}]')
    assert found.startswith("streams.train.transforms[1]: comes after mixup, which works on whole")
    (found,) = stream('collate = "a:b"\ntransforms = [{op = "cutmix", num_classes = 9}]')
    assert "cutmix needs stacked batches" in found


@pytest.mark.parametrize("word", ["balance", "Balanced", "balanced "])
def test_a_mistyped_balanced_is_told_before_a_file_of_that_name_is_looked_for(word: str) -> None:
    (found,) = stream(f'weights = "{word}"')
    assert "is no .npy file; did you mean 'balanced'?" in found


@pytest.mark.parametrize("path", ["balanced.npy", "/data/balance", "w"])
def test_weights_may_be_a_file_of_any_name(path: str) -> None:
    read(f'[streams.train]\nlmdb = "a"\nweights = "{path}"')


def test_transforms_under_a_mistyped_name_of_a_stream_are_told_as_such() -> None:
    (found,) = stream('[[streams.trian.transforms]]\nop = "hflip"')
    assert found.startswith("streams.trian: needs lmdb")
    assert found.endswith("it has transforms alone: is its name that of the stream you mean?")


def test_split_by_key_needs_a_pattern_with_one_group_and_percentages() -> None:
    assert "needs group" in "".join(stream('split_by = "key"'))
    assert 'goes with split_by = "key"' in "".join(stream('group = "(a)"'))
    assert "is no regular expression: " in "".join(stream('split_by = "key"\ngroup = "(a"'))
    assert "a regular expression with one (...)" in "".join(
        stream('split_by = "key"\ngroup = "^a"')
    )
    assert "has 2 groups" in "".join(stream('split_by = "key"\ngroup = "(a)(b)"'))
    assert "has 0 groups" in "".join(stream('split_by = "key"\ngroup = "(?:a)"'))
    assert "write percentages" in "".join(stream('split_by = "key"\ngroup = "(a)"\nsplit = "0:50"'))


def test_blocks_go_without_weights() -> None:
    assert "goes without weights" in "".join(stream('weights = "balanced"\nshuffle = {block = 4}'))
