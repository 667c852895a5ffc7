"""How the image fields of a stream become pixels: a mode for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_PIXELS = 178_956_970  # what Pillow refuses too


@dataclass(frozen=True, slots=True)
class DecodeModes:
    """How the image fields of a stream become pixels.

    Attributes:
        stream: One of config.transforms.MODES, of the fields that `fields` doesn't name.
        fields: Name -> mode.
        paired: Fields that share the geometry of others.
        exif: Stored images are turned as their EXIF data says.
        max_pixels: As many as an image may have.
    """

    stream: str = "rgb"
    fields: Mapping[str, str] = field(default_factory=dict[str, str])
    paired: frozenset[str] = frozenset()
    exif: bool = False
    max_pixels: int = MAX_PIXELS

    def of(self, name: str) -> str:
        """The mode of the field `name`: its own, or else the stream's."""
        return self.fields.get(name, self.stream)

    def beside(self, name: str) -> bool:
        """Whether the field shares the geometry of others, and a gray one would become "rgb".

        The mask of an image is such a field.
        """
        return name in self.paired and self.of(name) == "rgb"

    def said(self, name: str) -> bool:
        """Whether the config names a mode for this very field."""
        return name in self.fields
