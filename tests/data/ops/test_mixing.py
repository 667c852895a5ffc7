from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loaderd.data.images.image_error import OpError
from loaderd.data.ops.mixing import cut, make_mixing, mixed

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 10, 12, 3), np.uint8)
LABELS = np.array([2, 0, 1, 2])


def mix(op: str, batch: dict[str, Any], seed: int = 0, **args: Any) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    make_mixing(op, {"num_classes": 3, **args})(batch, {"image": False}, rng)
    return batch


def test_mixup_is_a_share_of_each_row_and_the_rest_of_the_one_before() -> None:
    out = mixed(IMAGES, 0.3)
    expected = np.rint(0.3 * IMAGES + 0.7 * IMAGES[[3, 0, 1, 2]].astype(float))
    assert out.dtype == np.uint8
    assert np.abs(out - expected).max() <= 1
    floats = IMAGES.astype(np.float32)
    np.testing.assert_allclose(mixed(floats, 1.0), floats)


@pytest.mark.parametrize("planar", [False, True])
def test_cutmix_pastes_a_rectangle_and_tells_the_share_that_is_left(planar: bool) -> None:
    images = IMAGES.transpose(0, 3, 1, 2) if planar else IMAGES
    for seed in range(10):
        out, share = cut(images, 0.4, np.random.default_rng(seed), planar=planar)
        other = np.roll(images, 1, axis=0)
        axis = 1 if planar else 3
        pasted = (out == other).all(axis=axis) & (other != images).any(axis=axis)
        own = (out == images).all(axis=axis)
        assert (own | pasted).all()
        assert abs(pasted[0].mean() - (1 - share)) < 0.02


@pytest.mark.parametrize("op", ["mixup", "cutmix"])
def test_labels_become_shares_of_classes(op: str) -> None:
    made = mix(op, {"image": IMAGES, "label": LABELS})
    assert (made["label"].dtype, made["label"].shape) == (np.float32, (4, 3))
    np.testing.assert_allclose(made["label"].sum(axis=1), 1, rtol=1e-6)
    share = made["label"][0][2] if op == "mixup" else None  # rows 0 and 3 are of one class
    assert share is None or share == pytest.approx(1)
    again = mix(op, {"image": IMAGES, "label": LABELS})
    np.testing.assert_array_equal(made["image"], again["image"])


def test_labels_have_one_form_whether_rows_are_mixed_or_not() -> None:
    made = mix("mixup", {"image": IMAGES, "label": LABELS}, p=0)
    assert made["image"] is IMAGES
    np.testing.assert_array_equal(made["label"], np.eye(3, dtype=np.float32)[LABELS])
    twice = mix("cutmix", dict(made))
    assert twice["label"].shape == (4, 3)


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (np.array([0, 1, 2, 3]), "labels 0 to 3, but num_classes = 3"),
        (np.array([0.0, 1, 2, 1]), "one class number a sample"),
        (["a", "b", "c", "d"], "set labels to a field of class numbers"),
    ],
)
def test_what_are_no_classes_is_told(labels: Any, told: str) -> None:
    with pytest.raises(OpError, match=told):
        mix("mixup", {"image": IMAGES, "label": labels})
    with pytest.raises(OpError, match="set field to the picture, one of 'image'"):
        mix("mixup", {"image": IMAGES, "label": LABELS}, field="picture")
