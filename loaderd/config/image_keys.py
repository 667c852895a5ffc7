"""The keys of a stream that say how stored images become pictures."""

from __future__ import annotations

from loaderd.config.stream import MAX_PIXELS
from loaderd.config.transforms import MODES
from loaderd.config.types import Choice, Flag, Key, Whole

KEYS = {
    "decode": Key(Flag(), "false delivers images as they are stored.", True),
    "mode": Key(
        Choice(MODES),
        "Decoded images: rgb has 3 channels, gray 1, rgba 4; index keeps the numbers of "
        "palette, gray, 1-bit and 16-bit gray images, 1 channel; unchanged has the channels "
        "that are stored, and 16 bits where they are (palettes become colours). "
        "For one field: a decode op with field and mode.",
        "rgb",
    ),
    "exif": Key(Flag(), "Turns stored images as their EXIF orientation says.", False),
    "max_pixels": Key(
        Whole(1, 1 << 30),
        "A stored image with more pixels is bad, and one that an op would make so large.",
        MAX_PIXELS,
    ),
    "views": Key(
        Whole(1, 16),
        "Views of each image: the transforms run so often, with draws of their own, and "
        "image becomes image.0, image.1 and so on.",
        1,
    ),
}
