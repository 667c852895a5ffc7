from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from data.ops.op_runs import Given, run
from loaderd.core.rng import CounterRng
from loaderd.data.ops.rand_augment import NAMES, SIGNED, strength
from loaderd_testing.sample_builders import picture


def only(name: str, *, negative: bool = False) -> Given:
    return Given(NAMES.index(name), negative)


def test_strengths_are_those_of_torchvision_for_31_bins() -> None:
    share = 9 / 30
    found = {name: round(strength(name, share, 331, 662), 4) for name in NAMES}
    assert found == {
        "identity": 0, "shear_x": 0.09, "shear_y": 0.09, "translate_x": 90, "translate_y": 45,
        "rotate": 9, "brightness": 0.27, "color": 0.27, "contrast": 0.27, "sharpness": 0.27,
        "posterize": 7, "solarize": 178.5, "auto_contrast": 0, "equalize": 0,
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_each_change_is_pillows(name: str) -> None:
    image = picture(66, 331)
    plain = Image.fromarray(image)
    fill = (128, 128, 128)
    by, size = 0.27, plain.size
    affine = Image.Transform.AFFINE
    expected = {
        "identity": lambda: plain,
        "shear_x": lambda: plain.transform(size, affine, (1, -0.09, 0, 0, 1, 0), fillcolor=fill),
        "shear_y": lambda: plain.transform(size, affine, (1, 0, 0, -0.09, 1, 0), fillcolor=fill),
        "translate_x": lambda: plain.transform(size, affine, (1, 0, 45, 0, 1, 0), fillcolor=fill),
        "translate_y": lambda: plain.transform(size, affine, (1, 0, 0, 0, 1, 8), fillcolor=fill),
        "rotate": lambda: plain.rotate(-9, fillcolor=fill),
        "brightness": lambda: ImageEnhance.Brightness(plain).enhance(1 - by),
        "color": lambda: ImageEnhance.Color(plain).enhance(1 - by),
        "contrast": lambda: ImageEnhance.Contrast(plain).enhance(1 - by),
        "sharpness": lambda: ImageEnhance.Sharpness(plain).enhance(1 - by),
        "posterize": lambda: ImageOps.posterize(plain, 7),
        "solarize": lambda: ImageOps.solarize(plain, 179),
        "auto_contrast": lambda: ImageOps.autocontrast(plain),
        "equalize": lambda: ImageOps.equalize(plain),
    }[name]()
    draws = only(name, negative=name in SIGNED)
    out = run("rand_augment", image, draws, num_ops=1, fill=128)
    np.testing.assert_array_equal(out, np.asarray(expected))


def test_every_change_is_drawn_on_gray_and_colour() -> None:
    image = picture(20, 20)
    for index in range(40):
        draws = CounterRng(0, 0, index)
        assert run("rand_augment", image, draws, magnitude=30).shape == image.shape
        assert run("rand_augment", image[:, :, :1], draws, num_ops=4).shape == (20, 20, 1)


def test_a_magnitude_beyond_the_bins_is_refused() -> None:
    with pytest.raises(ValueError, match="magnitude = 10 must be below num_magnitude_bins = 10"):
        run("rand_augment", picture(), magnitude=10, num_magnitude_bins=10)
