"""An image is refused by its size before memory is taken for it."""

from __future__ import annotations

import pytest

from loaderd.data.images.image_error import MAX_PIXELS, ImageError, allowed


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
