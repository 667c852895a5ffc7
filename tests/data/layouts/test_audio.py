"""Databases of RAVE."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from loaderd.data.errors import SourceError
from loaderd.data.values.arrays import UnreadableValue
from loaderd_testing.foreign_databases import (
    JPEG,
    bytes_field,
    layout_of,
    number_field,
    numbered,
    samples,
    source,
    varint,
)

WAVE = np.random.default_rng(0).integers(-2000, 2000, 2048).astype("<i2")


def buffer(data: bytes, precision: int, channels: int = 1, rate: int = 44_100) -> bytes:
    """A buffer as `udls` writes it, whose shape counts bytes."""
    shape = varint(channels) + varint(len(data) // channels)
    return (
        bytes_field(1, shape)
        + number_field(2, rate)
        + bytes_field(3, data)
        + number_field(4, precision)
    )


def example(name: str, content: bytes, field: int = 1) -> bytes:
    return bytes_field(field, bytes_field(1, name.encode()) + bytes_field(2, content))


def test_samples_are_counted_by_the_data_and_not_by_the_shape(tmp_path: Path) -> None:
    value = example("waveform", buffer(WAVE.tobytes(), 3)) + example("length", b"0.05", 2)
    path = numbered(tmp_path / "db", [value] * 3, "%08d")
    found = samples(path)
    assert layout_of(path) == "rave"
    assert len(found) == 3
    assert (found[0]["waveform"] == WAVE[None]).all()
    assert found[0]["waveform"].dtype == np.int16
    assert found[0]["sampling_rate"] == 44_100
    assert list(samples(path, fields=("waveform",))[0]) == ["waveform"]


def test_channels_lie_one_behind_the_other(tmp_path: Path) -> None:
    two = np.stack([WAVE, -WAVE]).astype("<f4")
    path = numbered(tmp_path / "db", [example("w", buffer(two.tobytes(), 1, 2, 8000))], "%08d")
    (found,) = samples(path)
    assert (found["w"] == two).all()
    assert found["sampling_rate"] == 8000


def test_a_buffer_may_be_a_file(tmp_path: Path) -> None:
    path = numbered(tmp_path / "db", [example("mp3", buffer(b"ID3...", 6))], "%08d")
    assert samples(path)[0]["mp3"] == b"ID3..."


def test_a_lazy_database_has_no_audio_and_says_so(tmp_path: Path) -> None:
    path = numbered(tmp_path / "db", [example("path", b"/music/a.wav", 2)], "%08d")
    with source(path) as opened, pytest.raises(UnreadableValue, match=r"--lazy") as caught:
        opened.read(0)
    assert opened.layout == "rave"
    assert "/music/a.wav" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (buffer(b"12345", 3), "5 bytes of data"),
        (buffer(b"12", 9), "precision 9"),
        (buffer(b"1234", 3)[:-4], "damaged or cut short"),
    ],
)
def test_a_damaged_buffer_is_a_bad_sample(tmp_path: Path, content: bytes, told: str) -> None:
    good = example("w", buffer(WAVE.tobytes(), 3))
    path = numbered(tmp_path / "db", [good, good, good, example("w", content)], "%08d")
    with source(path) as opened, pytest.raises(UnreadableValue, match=told):
        opened.read(3)


def test_other_messages_are_not_taken_for_audio(tmp_path: Path) -> None:
    tensor = bytes_field(1, number_field(2, 4) + bytes_field(6, JPEG))
    with pytest.raises(SourceError, match="is not of this layout"):
        source(numbered(tmp_path / "a", [tensor] * 3, "%08d"), "rave")
    datum = number_field(1, 1) + number_field(2, 1) + number_field(3, 1)
    datum += struct.pack("<B", 6 << 3 | 5) + struct.pack("<f", 0.5)
    assert layout_of(numbered(tmp_path / "b", [datum] * 3, "%08d")) == "caffe"
