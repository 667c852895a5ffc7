from __future__ import annotations

import gzip
import io
import json
import pickle
import zlib

import msgpack
import numpy as np
import pytest

from loaderd.data.lmdb.sniff import guess
from loaderd.data.sample import is_image_file
from loaderd_testing.sample_builders import coded, picture


def npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.arange(3))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("value", "looks"),
    [
        (coded(picture(), "JPEG"), "JPEG"),
        (coded(picture(), "PNG"), "PNG"),
        (coded(picture(), "WEBP"), "RIFF (WebP or WAV)"),
        (pickle.dumps({"a": 1}), "pickle"),
        (gzip.compress(b"x", mtime=0), "gzip"),
        (zlib.compress(b"x"), "zlib"),
        (npy(), "npy"),
        (json.dumps({"a": 1}).encode(), "JSON?"),
        (msgpack.packb({"a": 1}), "msgpack map?"),
        (msgpack.packb({}), "msgpack map?"),
        (msgpack.packb([1, 2]), "msgpack array?"),
        (b"\x08\x03\x10\x20", "protobuf?"),
        (b"1281167", "digits"),
        (b"hello world", "text"),
        (b"", "nothing"),
        (b"\xf0\x01\x02", ""),
    ],
)
def test_a_value_is_guessed_from_its_first_bytes(value: bytes, looks: str) -> None:
    assert guess(value) == looks
    assert guess(memoryview(value)) == looks


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "TIFF"])
def test_stored_images_are_told_from_other_bytes(kind: str) -> None:
    assert is_image_file(memoryview(coded(picture(), kind)))
    assert not is_image_file(b"RIFF0000WAVE")
    assert not is_image_file(b"")
