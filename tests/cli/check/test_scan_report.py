"""What `loaderd check --all` says of a scan, made up here."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from loaderd.cli.check.scan import Scan
from loaderd.cli.check.scan_report import CHANNELS, SHOWN_SHAPES, lines, trained_on
from loaderd.cli.check.scan_stats import ScanStats, Sizes
from loaderd.config.stream import StreamConfig, TransformConfig
from loaderd.data.pipeline.sample_summary import COUNT, HIGH, LOW, MEAN, ODD, SQUARES
from loaderd_wire.slots import FieldSpec

PLAN = StreamConfig("train", lmdb="/d.lmdb")
NORMALIZED = StreamConfig(
    "train", lmdb="/d.lmdb", transforms=(TransformConfig("normalize", None, {}),)
)
IMAGE = FieldSpec("image", "|u1", (3, 4, 4), "array", True)
LABEL = FieldSpec("label", "<i8", ())
TEXT = FieldSpec("text", "", (), "text")


def sizes(*values: int) -> Sizes:
    found = Sizes()
    found.add(np.array(values))
    return found


def channel(
    low: float, high: float, mean: float, std: float, count: int = 100, odd: int = 0
) -> np.ndarray:
    row = np.zeros(6)
    row[[COUNT, LOW, HIGH, MEAN, SQUARES, ODD]] = (count, low, high, mean, std**2 * count, odd)
    return row


RGB = [channel(0, 1, 0.5, 0.25), channel(0.1, 0.9, 0.4, 0.2), channel(0, 1, 0.3, 0.1)]
WHOLE = channel(0, 9, 4.5, 2)


def tally(
    channels: list[int],
    numbers: Sequence[np.ndarray],
    shapes: dict[str, int],
    *,
    odd: Sequence[int] = (),
    each: Sequence[Sizes] = (),
) -> ScanStats:
    return ScanStats(
        len(channels),
        50,
        sizes(100, 200, 300),
        list(each) or [sizes(10, 20, 30)] * len(channels),
        channels,
        np.array(numbers).reshape(-1, 6),
        list(odd) or [0] * len(channels),
        shapes,
    )


def said(
    specs: Sequence[FieldSpec],
    found: Scan,
    *,
    plan: StreamConfig = PLAN,
    trained: StreamConfig | None = None,
    copies: tuple[int, list[list[int]]] = (0, []),
) -> list[str]:
    facts: Any = Namespace(sample_specs=tuple(specs))
    saved: Any = Namespace(duplicates=lambda groups, each: copies)
    return list(lines(plan, facts, found, saved, lambda position: f"k{position}", trained))


def test_fields_are_told_by_their_values_and_shapes_and_a_picture_by_its_constants() -> None:
    found = tally([3, 1, 0], [*RGB, WHOLE], {"3,4,4;": 50})
    assert said([IMAGE, LABEL, TEXT], Scan(found, of=60, done=50, seconds=8.0)) == [
        "  scanned   50 of 60 samples, 6/s",
        "  stored    200 B a sample (median), at most 300 B",
        "  values    image: min [0, 0.1, 0]  max [1, 0.9, 1]  mean [0.5, 0.4, 0.3]  "
        "std [0.25, 0.2, 0.1] (of 0 to 1)",
        "  shapes    image: 3x4x4 (50)",
        "  values    label: min 0  max 9  mean 4.5  std 2",
        "  values    text: text, 20 B (median), at most 30 B",
        "  normalize [[streams.train.transforms]]",
        '            op = "normalize"',
        "            mean = [0.5000, 0.4000, 0.3000]",
        "            std = [0.2500, 0.2000, 0.1000]",
    ]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"done": 0}, "  scanned   0 of 60 samples"),
        ({"done": 50, "seconds": 0.0}, "  scanned   50 of 60 samples"),
        ({"done": 50, "resumed_at": 50}, "  scanned   50 of 60 samples, 50 of them by an earlier"),
        ({"done": 50, "resumed_at": 10}, "  scanned   50 of 60 samples, 10 of them by an earlier"),
        ({"done": 50, "resumed_at": 10, "seconds": 4.0}, " run, 10/s"),
    ],
)
def test_the_speed_is_that_of_this_run(changes: dict[str, Any], line: str) -> None:
    first = said([], Scan(ScanStats(0), of=60, **changes))[0]
    assert line in first
    assert ("/s" in first) == bool(
        changes.get("seconds") and changes["done"] - changes.get("resumed_at", 0)
    )


def test_copies_are_named_and_counted() -> None:
    empty = Scan(ScanStats(0), of=60, done=50)
    assert said([], empty, copies=(4, [[1, 2], [3, 4, 5, 6]]))[1:] == [
        "  COPIES    'k1' = 'k2'",
        "  COPIES    'k3' = 'k4' = 'k5' = 'k6' ...",
        "  copies    4 samples have the content of another (compared by a 64-bit hash of what is "
        "stored, without labels and other scalars)",
    ]


def test_values_that_are_not_finite_are_counted() -> None:
    spec = FieldSpec("x", "<f4", (4,))
    found = tally([1], [channel(0, 9, 1, 1, odd=1200)], {"4": 50}, odd=[7])
    (line,) = (one for one in said([spec], Scan(found)) if "NONFINITE" in one)
    assert line == (
        '  NONFINITE x: 1,200 values are NaN or infinite, in 7 samples; with nonfinite = "error" '
        "these samples are bad"
    )


def test_of_many_shapes_the_first_are_told_and_how_large_they_are() -> None:
    spec = FieldSpec("x", "<f4", (4,))
    shapes = {str(n): 50 - n for n in range(SHOWN_SHAPES)}
    told = ", ".join(f"{shape} ({count})" for shape, count in shapes.items())
    values = [channel(2, 9, 4, 1)]
    size = "; 20 B (median), at most 30 B"
    assert said([spec], Scan(tally([1], values, shapes)))[3] == f"  shapes    x: {told}{size}"
    more = said([spec], Scan(tally([1], values, {**shapes, "77": 1, "78": 1})))[3]
    assert more == f"  shapes    x: {told} and 2 more{size}"


def test_of_many_channels_the_outermost_numbers_are_told_and_no_constants() -> None:
    spec = FieldSpec("x", "<f4", (CHANNELS + 1, 4, 4), "array", True)
    many = [channel(n / 100, 0.5 + n / 100, 0.3, 0.1) for n in range(CHANNELS + 1)]
    told = said([spec], Scan(tally([CHANNELS + 1], many, {"17,4,4": 50})))
    assert told[2].startswith("  values    x: min 0 to 0.16  max 0.5 to 0.66  mean 0.3 to 0.3  ")
    assert not any("normalize" in line for line in told)
    one = said([spec], Scan(tally([CHANNELS], many[:-1], {"16,4,4": 50})))
    assert "min [0, 0.01, " in one[2]
    assert any("normalize" in line for line in one)


@pytest.mark.parametrize(
    ("low", "high", "count", "offered"),
    [(0, 1, 100, True), (0, 1.01, 100, False), (-0.01, 1, 100, False), (0, 1, 0, False)],
)
def test_constants_are_offered_for_pictures_between_0_and_1_alone(
    low: float, high: float, count: int, offered: bool
) -> None:
    numbers = [channel(0, 1, 0.5, 0.1), channel(low, high, 0.5, 0.1, count)]
    told = said(
        [FieldSpec("x", "<f4", (2, 4, 4))], Scan(tally([2], numbers, {"2,4,4": 50})), plan=PLAN
    )
    assert any("normalize" in line for line in told) == offered


def test_the_field_is_named_where_there_are_several_pictures() -> None:
    other = FieldSpec("other", "<f4", (2, 4, 4))
    found = tally([3, 2], [*RGB, *RGB[:2]], {"3,4,4;2,4,4": 50})
    told = said([IMAGE, other], Scan(found))
    assert [line.strip() for line in told if "field" in line] == [
        'field = "image"',
        'field = "other"',
    ]


def test_a_stream_that_is_normalised_is_offered_no_constants() -> None:
    told = said([IMAGE], Scan(tally([3], RGB, {"3,4,4": 50})), plan=NORMALIZED)
    assert not any("normalize" in line for line in told)


@pytest.mark.parametrize(
    ("trained", "has"),
    [(NORMALIZED, "which has that step"), (PLAN, "which check --all --stream train prints")],
)
def test_a_stream_that_is_not_trained_on_is_sent_to_the_other_ones_constants(
    trained: StreamConfig, has: str
) -> None:
    val = StreamConfig("val", lmdb="/v.lmdb")
    told = said([IMAGE], Scan(tally([3], RGB, {"3,4,4": 50})), plan=val, trained=trained)
    assert told[-1] == (
        f"  normalize image: with mean and std of stream 'train', {has}; not with this stream's own"
    )


def test_the_stream_that_is_trained_on_is_the_first_that_is_shuffled() -> None:
    val, train, other = (
        StreamConfig(name, lmdb="/d", shuffle=shuffle)
        for name, shuffle in (("val", 0), ("train", 1), ("other", 4096))
    )
    assert trained_on(val, [val, train, other]) is train
    assert trained_on(other, [val, train, other]) is None
    assert trained_on(val, [val]) is None
