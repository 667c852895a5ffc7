"""What is shown of a bad sample is what is stored, where it can be read again without harm."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from loaderd.data.errors import SampleFault, SourceError
from loaderd.data.sample import Sample
from loaderd.worker.stored_picture import stored_picture

JPEG = b"\xff\xd8\xff" + bytes(100)


@pytest.mark.parametrize(
    ("fields", "stage", "user_code", "picture"),
    [
        ({"text": b"no image", "image": JPEG}, "decode", False, JPEG),
        ({"image": JPEG}, "transform", False, JPEG),
        ({"image": JPEG}, "read", False, b""),
        ({"image": JPEG}, "decode", True, b""),  # it would run once more
        ({"image": b"no image"}, "decode", False, b""),
        ({"image": JPEG + bytes(64 << 10)}, "decode", False, b""),
        (None, "decode", False, b""),
    ],
)
def test_the_picture_of_a_bad_sample_is_what_is_stored_of_it(
    fields: dict[str, bytes] | None, stage: str, user_code: bool, picture: bytes
) -> None:
    def read(index: int) -> Sample:
        if fields is None:
            raise SourceError("gone")
        return Sample(fields, encoded=tuple(fields))

    stream: Any = SimpleNamespace(source=SimpleNamespace(user_code=user_code, read=read))
    assert stored_picture(stream, 3, SampleFault(stage, "E", "m")) == picture
