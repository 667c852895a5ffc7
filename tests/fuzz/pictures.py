"""Stored bytes as the ops read them: headers of JPEG and PNG, tiles, planned crops, the rewriter of
`pack`. Errors are ValueErrors.
"""

from __future__ import annotations

import cv2
import numpy as np
from harness import atheris, fuzz

with atheris.instrument_imports(
    include=[
        f"loaderd.data.{name}"
        for name in ("images", "jpeg", "restart", "origin", "view", "ops", "transcode")
    ]
):
    from loaderd.core.rng import CounterRng
    from loaderd.data.images.lazy_image import LazyImage
    from loaderd.data.images.pixel_source import open_image
    from loaderd.data.jpeg import headers, rewrite, tiles
    from loaderd.data.ops.table import make_op

# headers that promise more are refused here, so that a run is not spent on filling memory
PIXELS = 1 << 21
OPS = [
    [("random_resized_crop", {"size": 16}), ("hflip", {})],
    [("resize", {"size": 9}), ("center_crop", {"size": 8})],
    [("random_crop", {"size": 12, "padding": 2}), ("to_chw", {})],
]


def pictures() -> list[bytes]:
    rng = np.random.default_rng(0)
    image = cv2.resize(rng.integers(0, 256, (12, 15, 3), np.uint8), (75, 52))
    found: list[bytes] = []
    for picture, kind, options in (
        (image, ".jpg", [cv2.IMWRITE_JPEG_QUALITY, 70]),
        (image, ".jpg", [cv2.IMWRITE_JPEG_PROGRESSIVE, 1]),
        (image, ".jpg", [cv2.IMWRITE_JPEG_RST_INTERVAL, 2]),
        (image[:, :, 0], ".jpg", []),
        (image, ".png", []),
        (image[:, :, 0], ".png", []),
        (image.astype(np.uint16) * 257, ".png", []),
    ):
        found.append(cv2.imencode(kind, picture, options)[1].tobytes())
    return [
        *found,
        *[
            rewrite.rewrite(data, growth=9, progressive_growth=9)
            for data in found[:3]
            if rewrite.can_rewrite()
        ],
    ]


def target(data: bytes) -> None:
    for number, ops in enumerate(OPS):
        try:
            mode = ("rgb", "gray", "index")[number]
            view = LazyImage(open_image(data, mode, PIXELS), labels=mode == "index", limit=PIXELS)
            draws = CounterRng(1, 0, number)
            for place, (op, args) in enumerate(ops):
                make_op(op, args, place).run(view, draws)
            pixels = view.pixels()
            assert pixels.size
        except ValueError:
            continue
    try:
        again = rewrite.rewrite(data)
        assert tiles.read(again) is not None
    except headers.NotRewritable:
        pass


if __name__ == "__main__":
    headers.MAX_PIXELS = headers.MAX_PROGRESSIVE_PIXELS = PIXELS
    fuzz(target, pictures())
