"""What a whole scan found, in lines for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from loaderd.cli.check.scan import Scan
from loaderd.cli.check.scan_state import ScanState
from loaderd.cli.status import size
from loaderd.config.stream import StreamConfig
from loaderd.data.pipeline.sample_summary import BITS, COUNT, HIGH, LOW, MEAN, ODD, SQUARES
from loaderd.engine.messages import StreamInfo
from loaderd_wire.slots import FieldSpec

SHOWN_SHAPES = 5
SHOWN_GROUPS, SHOWN_EACH = 10, 4
CHANNELS = 16  # a field with more is told as a whole


def lines(
    plan: StreamConfig,
    facts: StreamInfo,
    found: Scan,
    saved: ScanState,
    name: Callable[[int], str],
    trained: StreamConfig | None = None,
) -> Iterator[str]:
    """What a scan has found, in lines.

    Args:
        plan: The stream.
        facts: What it was found to be.
        found: What came out.
        saved: The files of the scan.
        name: Called with a position; returns the key of its sample.
        trained: The stream whose mean and std this one is to be normalised with; None: its own.
    """
    again = f", {found.resumed_at:,} of them by an earlier run" if found.resumed_at else ""
    made = found.done - found.resumed_at
    speed = f", {made / found.seconds:,.0f}/s" if found.seconds > 0 and made else ""
    yield f"  scanned   {found.done:,} of {found.of:,} samples{again}{speed}"
    tally = found.tally
    if tally.samples:
        yield (
            f"  stored    {size(tally.stored.median)} a sample (median), at most "
            f"{size(tally.stored.most)}"
        )
        arrays = 0
        for n, spec in enumerate(facts.sample_specs):
            yield from _field(found, spec, n, arrays)
            arrays += spec.kind == "array"
        yield from _constants(plan, facts, found, trained)
    copies, groups = saved.duplicates(SHOWN_GROUPS, SHOWN_EACH)
    if copies:
        for group in groups:
            more = " ..." if len(group) == SHOWN_EACH else ""
            yield f"  COPIES    {' = '.join(repr(name(position)) for position in group)}{more}"
        yield (
            f"  copies    {copies:,} samples have the content of another (compared by a "
            f"{BITS}-bit hash of what is stored, without labels and other scalars)"
        )


def _field(found: Scan, spec: FieldSpec, n: int, array: int) -> Iterator[str]:
    tally = found.tally
    sizes = tally.sizes[n]
    if spec.kind != "array":
        yield (
            f"  values    {spec.name}: {spec.kind}, {size(sizes.median)} (median), at most "
            f"{size(sizes.most)}"
        )
        return
    first, last = tally.spans()[n]
    numbers = tally.numbers[first:last]
    count = numbers[:, COUNT]
    if count.sum():
        std = np.sqrt(numbers[:, SQUARES] / np.maximum(count, 1))
        scale = " (of 0 to 1)" if spec.dtype == "|u1" and (spec.image or last - first > 1) else ""
        yield (
            f"  values    {spec.name}: min {_floats(numbers[:, LOW])}  max "
            f"{_floats(numbers[:, HIGH])}  mean {_floats(numbers[:, MEAN])}  std "
            f"{_floats(std)}{scale}"
        )
    shapes = list(tally.shapes_of(array).items())
    if [shape for shape, _ in shapes] == ["scalar"]:
        shapes = []
    told = ", ".join(f"{shape} ({count:,})" for shape, count in shapes[:SHOWN_SHAPES])
    more = f" and {len(shapes) - SHOWN_SHAPES:,} more" if len(shapes) > SHOWN_SHAPES else ""
    if shapes:
        yield f"  shapes    {spec.name}: {told}{more}" + (
            f"; {size(sizes.median)} (median), at most {size(sizes.most)}"
            if len(shapes) > 1
            else ""
        )
    if odd := tally.odd_samples[n]:
        allowed = '; with nonfinite = "error" these samples are bad'
        yield (
            f"  NONFINITE {spec.name}: {numbers[:, ODD].sum():,.0f} values are NaN or infinite, "
            f"in {odd:,} samples{allowed}"
        )


def _floats(values: np.ndarray) -> str:
    """One number, or a list of them; of many channels only the outermost."""
    if len(values) > CHANNELS:
        return f"{values.min():.6g} to {values.max():.6g}"
    words = [f"{value:.6g}" for value in values]
    return words[0] if len(words) == 1 else f"[{', '.join(words)}]"


def trained_on(plan: StreamConfig, plans: Sequence[StreamConfig]) -> StreamConfig | None:
    """The stream that is trained on, if it is another than this, as far as one can see.

    That is one that is shuffled, where this one is not.
    """
    others = [other for other in plans if other.shuffle]
    return None if plan.shuffle or not others else others[0]


def _normalizes(plan: StreamConfig) -> bool:
    return any(step.op == "normalize" for step in plan.transforms)


def _constants(
    plan: StreamConfig, facts: StreamInfo, found: Scan, trained: StreamConfig | None
) -> Iterator[str]:
    """A `normalize` step as the config would have it, for each picture.

    Not for those that have been normalised by it or by code of the user.
    """
    if _normalizes(plan):
        return
    pictures = [
        spec.name
        for spec, count in zip(facts.sample_specs, found.tally.channels, strict=True)
        if spec.image or count > 1
    ]
    for n, spec in enumerate(facts.sample_specs):
        first, last = found.tally.spans()[n]
        numbers = found.tally.numbers[first:last]
        if spec.name not in pictures or last - first > CHANNELS or not numbers[:, COUNT].all():
            continue
        if numbers[:, HIGH].max() > 1 or numbers[:, LOW].min() < 0:
            continue
        if trained is not None:
            has = (
                "which has that step"
                if _normalizes(trained)
                else f"which check --all --stream {trained.name} prints"
            )
            yield (
                f"  normalize {spec.name}: with mean and std of stream {trained.name!r}, {has}; "
                "not with this stream's own"
            )
            continue
        std = np.sqrt(numbers[:, SQUARES] / numbers[:, COUNT])
        yield f"  normalize [[streams.{plan.name}.transforms]]"
        yield '            op = "normalize"'
        if len(pictures) > 1:
            yield f'            field = "{spec.name}"'
        yield f"            mean = [{', '.join(f'{value:.4f}' for value in numbers[:, MEAN])}]"
        yield f"            std = [{', '.join(f'{value:.4f}' for value in std)}]"
