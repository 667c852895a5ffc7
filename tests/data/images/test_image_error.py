"""What is said of an image that cannot be had."""

from __future__ import annotations

import cv2
import pytest

from loaderd.data.images.decode import image_error
from loaderd.data.images.image_error import MAX_PIXELS, ImageError, NoMemory, allowed


def by_opencv(code: int) -> cv2.error:
    error = cv2.error("(-4) Failed to allocate 192000000 bytes")
    error.code = code
    return error


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, MAX_PIXELS), (MAX_PIXELS // 7, 7)])
def test_up_to_the_limit_of_pixels_an_image_is_allowed(height: int, width: int) -> None:
    allowed(height, width)


@pytest.mark.parametrize(
    ("height", "width", "words"),
    [
        (0, 5, "no pixels"),
        (5, 0, "no pixels"),
        (1, MAX_PIXELS + 1, "limit"),
        (1 << 20, 1 << 20, "limit"),
    ],
)
def test_an_image_without_pixels_or_with_too_many_is_refused_with_its_size(
    height: int, width: int, words: str
) -> None:
    with pytest.raises(
        ImageError,
        match=rf"it would have .*{height} x {width}.*{words}|it would have no pixels \({height} x "
        rf"{width}\)",
    ):
        allowed(height, width, "it would have")


@pytest.mark.parametrize("error", [MemoryError(), by_opencv(cv2.Error.StsNoMem)])
def test_a_decoder_that_is_short_of_memory_calls_no_image_damaged(error: Exception) -> None:
    said = image_error(error, "png")
    assert isinstance(said, NoMemory)
    assert str(said).startswith("not enough memory")


@pytest.mark.parametrize("error", [by_opencv(cv2.Error.StsBadArg), ValueError("short")])
def test_whatever_else_a_decoder_raises_is_damage(error: Exception) -> None:
    said = image_error(error, "png")
    assert not isinstance(said, NoMemory)
    assert str(said) == f"damaged PNG: {error}"
