"""`check` says what to do next where its figures say so, and nothing on a healthy stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loaderd.cli.check.advice import Figures, advice
from loaderd.cli.check.field_tally import MOST_LABELS, FieldTally
from loaderd.cli.check.stored_sizes import stored_sizes
from loaderd.config.stream import StreamConfig, TransformConfig
from loaderd.data.sample import Sample
from loaderd.engine.messages import StreamInfo
from loaderd_testing.cli_harness import Place
from loaderd_testing.sample_builders import coded, image_samples, picture, write_own
from loaderd_wire.slots import FieldSpec

IMAGE = FieldSpec("image", "|u1", (224, 224, 3), image=True)
FACTS = StreamInfo(
    stream="train", total=999, samples=999, identity="", state="", layout="loaderd", keys="index", classes=("cat", "dog", "owl"),
    specs=(IMAGE,), sample_specs=(IMAGE,), form="dict", collated=False, tail_row_bytes=64, body_bytes=0, jpeg_extension="",
    warnings=(),
)  # fmt: skip
BYTES = TransformConfig("normalize", None, {"mean": [127.5, 63.75], "std": [51, 102.0]})
RESIZE = TransformConfig("resize", None, {"size": 224})
PLAN = StreamConfig("train", lmdb="/d.lmdb", batch_size=8, shuffle=1, transforms=(RESIZE,))


def tally(labels: Sequence[int], **more: np.ndarray) -> FieldTally:
    made = FieldTally()
    rng = np.random.default_rng(0)
    for first in range(0, len(labels), 32):
        part = np.array(labels[first : first + 32])
        rows = len(part)
        fields = {"image": rng.integers(0, 256, (rows, 4, 4, 3), np.uint8), "label": part}
        made.add(fields | {name: value[first : first + 32] for name, value in more.items()}, rows)
    return made


BALANCED = [n % 3 for n in range(256)]
HEALTHY = Figures(
    facts=FACTS,
    tally=tally(BALANCED),
    seconds={"read": 0.02, "decode": 0.9, "transform": 0.05, "write": 0.03},
    rows=512,
    bad=0,
    stored=((375, 500),) * 32,
    need_bytes=1 << 20,
    free_bytes=1 << 30,
)


def told(plan: StreamConfig = PLAN, **changes: Any) -> list[str]:
    return advice(plan, replace(HEALTHY, **changes))


def test_a_healthy_stream_gets_no_advice() -> None:
    assert told() == []


@pytest.mark.parametrize(
    ("plan", "changes"),
    [
        (PLAN, {"tally": tally([0] * 63)}),  # too few to say anything
        (PLAN, {"tally": tally([0] * 140 + [1] * 116)}),
        (PLAN, {"tally": tally([0] * 100 + [n % 40 for n in range(156)])}),
        (replace(PLAN, shuffle=0), {"tally": tally([0] * 230 + [1] * 26)}),  # an evaluation
        (replace(PLAN, weights="balanced"), {"tally": tally([0] * 230 + [1] * 26)}),
        (PLAN, {"tally": tally(BALANCED, attention_mask=np.ones((256, 8), np.int64))}),
        (PLAN, {"tally": tally(BALANCED, x=np.zeros((256, 0)))}),
        (PLAN, {"stored": ((3000, 4000),) * 32, "seconds": {"decode": 0.5}}),  # large and fast
        (replace(PLAN, transforms=()), {"stored": ((3000, 4000),) * 32, "seconds": {"decode": 5}}),
        (PLAN, {"stored": ((32, 32),) * 2}),
        (PLAN, {"stored": ((60, 60),) * 32}),
        (PLAN, {"seconds": {"read": 1.0}, "rows": 512}),  # one stage, and quick
        (PLAN, {"seconds": {"read": 20.0, "decode": 20.0}}),  # slow, and no stage stands out
        (replace(PLAN, on_error="replace"), {"bad": 3}),
        (PLAN, {"seconds": {}, "rows": 0, "tally": FieldTally()}),
        (replace(PLAN, transforms=(TransformConfig(None, "a:floats"), BYTES)), {}),
        (replace(PLAN, transforms=(replace(BYTES, args={"mean": [0.5], "std": [2.0]}),)), {}),
    ],
)
def test_figures_that_leave_doubt_give_none(plan: StreamConfig, changes: dict[str, Any]) -> None:
    assert told(plan, **changes) == []


@pytest.mark.parametrize(
    ("plan", "changes", "said"),
    [
        (PLAN, {"bad": 3}, ["each bad sample (3 here)", 'on_error = "replace"']),
        (PLAN, {"bad": 255}, ["255 samples are bad, more than half", "the first line with BAD"]),
        (  # few samples, each of them made twenty times
            PLAN,
            {"bad": 60, "rows": 2000, "facts": replace(FACTS, samples=100)},
            ["60 samples are bad, more than half", "the first line with BAD"],
        ),
        (
            PLAN,
            {"bad": 50, "rows": 2000, "facts": replace(FACTS, samples=100)},
            ["each bad sample (50 here)"],
        ),
        (
            replace(PLAN, transforms=(BYTES, TransformConfig(None, "a:later"))),
            {},
            ["[127.5, 63.75]", "divide", "mean = [0.5, 0.25] and std = [0.2, 0.4]"],
        ),
        (PLAN, {"need_bytes": 2 << 30}, ["needs 2.0 GiB", "1.0 GiB", "smaller batch_size"]),
        (PLAN, {"tally": tally([1] * 256)}, ["all 256 labels are dog", "split"]),
        (
            PLAN,
            {"tally": tally([0] * 230 + [1] * 26)},
            ["90% of 256 labels are cat", "of 2 classes", 'weights = "balanced"'],
        ),
        (
            PLAN,
            {"tally": tally([7] * 150 + [n % 40 for n in range(106)])},
            ["% of 256 labels are 7, of 40 classes"],
        ),
        (
            PLAN,
            {"tally": tally(BALANCED, mask=np.zeros((256, 4, 4), np.uint8))},
            ["field 'mask' is 0 everywhere in 256 samples"],
        ),
        (
            PLAN,
            {"stored": ((3000, 4000),) * 32, "seconds": {"decode": 10.0, "read": 9.0}},
            ["3000 x 4000", "224 x 224", "20 ms", "pack lmdb /d.lmdb", "--resize 448"],
        ),
        (PLAN, {"stored": ((32, 32),) * 32}, ["32 x 32", "on the GPU", "49 times smaller"]),
        (
            PLAN,
            {"seconds": {"read": 19.0, "decode": 1.0}},
            ["read takes 95% of 39 ms a sample", "copy /d.lmdb to a local disk"],
        ),
        (
            replace(PLAN, lmdb=None, dataset="a:B"),
            {"seconds": {"read": 20.0}},
            ["that is a:B", "pack dataset"],
        ),
        (PLAN, {"seconds": {"decode": 20.0}}, ["decode takes 100%", "--resize"]),
        (
            replace(PLAN, transforms=(TransformConfig(None, "aug:slow"),)),
            {"seconds": {"transform": 20.0, "read": 1.0}},
            ["transform takes 95%", "look at aug:slow", "check --index 0"],
        ),
        (
            PLAN,
            {
                "facts": replace(FACTS, sample_specs=(replace(IMAGE, shape=(2000, 3000, 3)),)),
                "stored": (),
            },
            ["'image' is delivered at 2000 x 3000", "add a resize or a crop"],
        ),
        (
            PLAN,
            {"facts": replace(FACTS, sample_specs=(replace(IMAGE, shape=(1, 1, 3)),))},
            ["'image' is delivered at 1 x 1"],
        ),
    ],
)
def test_each_oddity_is_one_line_with_its_figures_and_what_to_change(
    plan: StreamConfig, changes: dict[str, Any], said: list[str]
) -> None:
    (line,) = told(plan, **changes)
    assert [word for word in said if word not in line] == [], line


def test_a_field_is_constant_until_one_value_differs() -> None:
    made = FieldTally()
    same = np.full((2, 3), 7)
    made.add({"x": same, "y": same, "z": np.array([np.nan, np.nan]), "t": ["a", "b"]}, 2)
    made.add({"x": same, "y": same + np.eye(2, 3, dtype=int)}, 2)
    made.add({"y": same}, 2)
    assert (made.constant, made.rows) == ({"x": 7}, 6)
    made.add({}, 0)
    assert made.rows == 6


def test_no_more_labels_are_counted_than_a_classifier_has() -> None:
    made = FieldTally()
    for n in range(0, 3 * MOST_LABELS, MOST_LABELS // 2):
        made.add({"id": np.arange(n, n + MOST_LABELS // 2)}, 1)
    assert len(made.labels["id"]) == MOST_LABELS


def test_sizes_of_stored_pictures_are_read_from_their_headers(tmp_path: Any) -> None:
    samples = [*image_samples(kind="PNG"), Sample({"image": b"broken"}, encoded=("image",))]
    path = str(write_own(tmp_path / "db", samples))
    sizes = stored_sizes(StreamConfig("t", lmdb=path))
    assert sizes == ((40, 50),) * (len(samples) - 1)
    assert stored_sizes(StreamConfig("t", dataset="a:B")) == ()
    assert stored_sizes(StreamConfig("t", lmdb=str(tmp_path / "none"))) == ()


def test_check_prints_what_to_do_next_and_nothing_more_on_a_healthy_database(place: Place) -> None:
    def labelled(labels: list[int]) -> list[Sample]:
        return [
            Sample({"image": coded(picture(seed=n)), "label": np.array(label)}, encoded=("image",))
            for n, label in enumerate(labels)
        ]

    write_own(place.folder / "good", labelled([n % 2 for n in range(80)]))
    write_own(place.folder / "odd", labelled([1] * 80))
    streams = "".join(
        f"[streams.{name}]\nlmdb = '{name}'\nshuffle = true\n" for name in ("good", "odd")
    )
    (place.folder / "c.toml").write_text("[workers]\nnum_workers = 1\n" + streams)
    good, _, odd = place.cli("check", "c.toml").stdout.partition("\nodd")
    assert "next" not in good
    assert "  next      all 80 labels are 1" in odd
