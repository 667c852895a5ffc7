"""Several views of one sample: its transforms run once for each, with draws of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from loaderd.config.stream import StreamConfig
from loaderd.config.transforms import MARKS
from loaderd.data.ops.marks import LABELS
from loaderd.data.pipeline.context import SampleContext
from loaderd.data.sample import Sample

StepRun = Callable[[SampleContext], None]


class Views:
    """The steps of a stream with `views`, as one step.

    A picture, and what follows one (boxes, their labels), becomes a field for each view: "image"
    becomes "image.0", "image.1". Other fields are those of the first view, whose draws are those
    that the sample would have without views.
    """

    def __init__(self, plan: StreamConfig, steps: list[StepRun]) -> None:
        self._count, self._steps = plan.views, steps
        self._followers = _followers(plan)

    def __call__(self, making: SampleContext) -> None:
        """Run the steps once for each view, and put the results into one sample."""
        parts = list[Sample]()
        for number in range(self._count):
            part = making.of_view(number, _copied(making.sample), _end_of(making.out, number))
            try:
                for step in self._steps:
                    step(part)
            finally:
                making.stage, making.coded = part.stage, making.coded or part.coded
            parts.append(part.sample)
        making.sample = self._merged(parts)

    def _merged(self, parts: list[Sample]) -> Sample:
        merged = Sample()
        for name, value in parts[0].items():
            split = name in parts[0].images | parts[0].planar | self._followers
            for number, part in enumerate(parts if split else parts[:1]):
                to = f"{name}.{number}" if split else name
                merged[to] = part[name] if split else value
                for mine, others in (
                    (merged.encoded, part.encoded),
                    (merged.images, part.images),
                    (merged.planar, part.planar),
                    (merged.fresh, part.fresh),
                ):
                    if name in others:
                        mine.add(to)
        return merged


def _followers(plan: StreamConfig) -> set[str]:
    """The fields, pictures apart, that an op changes with a picture."""
    found = set[str]()
    for step in plan.transforms:
        for word in MARKS if step.op else ():
            value = step.args.get(word) or ()
            found.update([value] if isinstance(value, str) else value)
        if step.op and step.args.get("boxes") and "follow" not in step.args:
            found.update(LABELS)
    return found


def _copied(sample: Sample) -> Sample:
    """The same fields. None is `fresh`, since others have the arrays too."""
    copy = Sample(sample)
    copy.encoded, copy.images = set(sample.encoded), set(sample.images)
    copy.planar = set(sample.planar)
    return copy


def _end_of(out: Mapping[str, np.ndarray], number: int) -> dict[str, Any]:
    """Where the pictures of this view may be made, by their names without the number."""
    end = f".{number}"
    return {name[: -len(end)]: array for name, array in out.items() if name.endswith(end)}
