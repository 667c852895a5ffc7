"""Small JPEGs of every kind that is read here, to begin with: python tests/fuzz/jpegs.py FOLDER"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from loaderd.data.jpeg import rewrite

SHAPES = ((8, 8), (33, 47), (16, 131), (70, 17))
KINDS = (
    {"subsampling": 2},
    {"subsampling": 1},
    {"subsampling": 0},
    {"subsampling": 2, "restart_marker_blocks": 1},
    {"subsampling": 0, "restart_marker_blocks": 3},
    {"subsampling": 2, "progressive": True},
    {"subsampling": 0, "progressive": True, "restart_marker_blocks": 2},
)


def jpegs() -> Iterator[bytes]:
    rng = np.random.default_rng(0)
    for height, width in SHAPES:
        rough = Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))
        smooth = Image.fromarray(rng.integers(0, 256, (3, 4, 3), np.uint8)).resize(
            (width, height), Image.Resampling.BICUBIC
        )
        for image, quality in ((rough, 30), (smooth, 95)):
            for kind in KINDS:
                for shown in (image, image.convert("L")):
                    out = io.BytesIO()
                    shown.save(out, "JPEG", quality=quality, optimize=True, **kind)
                    yield out.getvalue()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(jpegs()):
        (folder / f"{number}.jpg").write_bytes(data)
        tiles = rewrite.rewrite(data, growth=9.0, progressive_growth=9.0)
        (folder / f"{number}-tiles.jpg").write_bytes(tiles)
        (folder / f"{number}-behind.jpg").write_bytes(
            (tiles if number % 2 else data) + b"\xd9\0\xff\xd9\xff" * (number % 4) + b"behind"
        )
