"""What to do next, where the figures of a check say that something is slow, unbalanced or odd.

Each line needs figures that leave little doubt: on a healthy stream there is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np

from loaderd.cli.check.field_tally import FieldTally
from loaderd.cli.status import size
from loaderd.config.stream import StreamConfig
from loaderd.data.ops.table import RESIZING
from loaderd.engine.messages import StreamInfo

ENOUGH = 64  # samples, before anything is said of what they have in common
SLOW_S = 0.02  # a sample
NEARLY_ALL = 0.8  # of the time, or of the labels
HALF = 0.5
RARER = 3  # times: a class has so much more than its share
LARGER = 16  # times: stored pictures have so many more pixels than delivered ones, or fewer
DECODE_S = 0.005  # a sample, from which on large stored pictures matter
HUGE = 4_000_000  # pixels of a picture that is delivered
TINY = 4  # pixels of a side


@dataclass(frozen=True, slots=True)
class Figures:
    """What a check has found of one stream.

    Attributes:
        facts: What the stream is.
        tally: What its fields have in common.
        seconds: Of workers, by stage.
        rows: That were made in them.
        bad: Samples that are bad.
        stored: (height, width) of some of its stored pictures.
        need_bytes: What a trainer's batches take.
        free_bytes: What the daemon may take for all trainers.
    """

    facts: StreamInfo
    tally: FieldTally
    seconds: Mapping[str, float]
    rows: int
    bad: int
    stored: tuple[tuple[int, int], ...]
    need_bytes: int
    free_bytes: int


def advice(plan: StreamConfig, found: Figures) -> list[str]:
    """Lines for people, each with a figure and what to change."""
    return [
        *_faults(plan, found),
        *_memory(found),
        *_labels(plan, found),
        *_constants(found),
        *_levels(plan),
        *_pictures(plan, found),
        *_time(plan, found),
    ]


def _faults(plan: StreamConfig, found: Figures) -> Iterator[str]:
    # each sample is made twice; of few samples each more often
    if found.bad > HALF * min(found.rows / 2, found.facts.samples):
        yield (
            f"{found.bad:,} samples are bad, more than half of those that were made: the first "
            "line with BAD says what to change in the config or in the code"
        )
    elif found.bad and plan.on_error == "raise":
        yield (
            f'on_error = "raise" gives a trainer a SampleError for each bad sample ({found.bad:,} '
            'here): repair them, or set on_error = "replace"'
        )


def _memory(found: Figures) -> Iterator[str]:
    if found.need_bytes > found.free_bytes:
        yield (
            f"a trainer needs {size(found.need_bytes)}, and the daemon may take "
            f"{size(found.free_bytes)} here: set a smaller batch_size, or prefetch in the Loader"
        )


def _labels(plan: StreamConfig, found: Figures) -> Iterator[str]:
    counts = _label_counts(found) or Counter[int]()
    total = counts.total()
    if total < ENOUGH:
        return
    (label, most), *others = counts.most_common()
    name = found.facts.classes[label] if 0 <= label < len(found.facts.classes) else str(label)
    if not others:
        yield (
            f"all {total:,} labels are {name}: look at how labels are made, or at split and keys "
            "of the stream"
        )
        return
    classes = len(counts)
    lopsided = most >= NEARLY_ALL * total or (
        classes > 2 and most >= HALF * total and most >= RARER * total / classes
    )
    if lopsided and plan.shuffle and not plan.weights:
        yield (
            f"{most / total:.0%} of {total:,} labels are {name}, of {classes} classes: weights = "
            '"balanced" draws all classes alike'
        )


def _label_counts(found: Figures) -> Counter[int] | None:
    """The counts of `label`, or of the only field of single whole numbers."""
    labels = found.tally.labels
    if "label" in labels:
        return labels["label"]
    return next(iter(labels.values())) if len(labels) == 1 else None


def _constants(found: Figures) -> Iterator[str]:
    if found.tally.rows < ENOUGH:
        return
    counts = _label_counts(found)
    for name, value in found.tally.constant.items():
        masks = name.endswith("mask") and value == 1  # every token counts
        if masks or (counts is not None and found.tally.labels.get(name) is counts):
            continue
        yield (
            f"field {name!r} is {value:g} everywhere in {found.tally.rows:,} samples: look at how "
            "it is made, or leave it out with fields of the Loader"
        )


def _levels(plan: StreamConfig) -> Iterator[str]:
    """A normalize with constants of pixels from 0 to 255, which no op delivers."""
    for at, step in enumerate(plan.transforms):
        mean, std = (np.ravel(step.args.get(name, 0)) for name in ("mean", "std"))
        if step.op != "normalize" or np.max(mean, initial=0) <= 1:
            continue
        if any(before.call for before in plan.transforms[:at]):
            continue  # it may deliver anything
        words = " and ".join(
            f"{name} = {[round(float(value) / 255, 4) for value in values]}"
            for name, values in (("mean", mean), ("std", std))
        )
        yield (
            f"normalize has mean = {mean.tolist()}, and pixels are in [0, 1] there: divide mean "
            f"and std by 255, that is {words}"
        )


def _pictures(plan: StreamConfig, found: Figures) -> Iterator[str]:
    made = [spec for spec in found.facts.sample_specs if spec.image and len(spec.shape) == 3]
    for spec in made:
        height, width = spec.shape[:2]
        if height * width >= HUGE:
            yield (
                f"{spec.name!r} is delivered at {height} x {width}, {size(spec.row_bytes)} a row: "
                "add a resize or a crop"
            )
        elif min(height, width) <= TINY:
            yield f"{spec.name!r} is delivered at {height} x {width}: look at the transforms"
    if not found.stored or len(made) != 1 or len(found.stored) < TINY:
        return
    height, width = made[0].shape[:2]
    high, wide = (round(median(sides)) for sides in zip(*found.stored, strict=True))
    resizes = any(step.op in RESIZING for step in plan.transforms)
    decode_s = found.seconds.get("decode", 0.0) / found.rows if found.rows else 0.0
    if not resizes:
        return
    if high * wide >= LARGER * height * width and decode_s >= DECODE_S:
        side = 2 * max(height, width)
        yield (
            f"stored pictures have {high} x {wide} pixels (median) and {height} x {width} are "
            f"delivered, {decode_s * 1e3:.0f} ms a sample: loaderd pack lmdb {plan.lmdb} "
            f"small.lmdb --resize {side}"
        )
    elif high * wide * LARGER <= height * width:
        yield (
            f"stored pictures have {high} x {wide} pixels (median) and are enlarged to {height} x "
            f"{width}: enlarge them on the GPU, and a batch is "
            f"{height * width // max(1, high * wide)} times smaller"
        )


def _time(plan: StreamConfig, found: Figures) -> Iterator[str]:
    """The stage that takes nearly all time of a slow stream."""
    total = sum(found.seconds.values())
    if not found.rows or total / found.rows < SLOW_S:
        return
    stage, seconds = max(found.seconds.items(), key=lambda each: each[1])
    if seconds < NEARLY_ALL * total:
        return
    part = f"{stage} takes {seconds / total:.0%} of {total / found.rows * 1e3:.0f} ms a sample: "
    calls = [step.call for step in plan.transforms if step.call]
    if stage == "read" and plan.dataset is not None:
        yield (
            f"{part}that is {plan.dataset}; loaderd pack dataset stores what it returns, if that "
            "is always the same"
        )
    elif stage == "read":
        yield f"{part}copy {plan.data_name} to a local disk"
    elif stage == "decode":
        yield f"{part}pack the pictures at the size that is needed, with --resize"
    elif stage == "transform":
        what = f"look at {' and '.join(calls)}" if calls else "look at the ops"
        yield f"{part}{what}; loaderd check --index 0 tells the time of each stage"
