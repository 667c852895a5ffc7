"""A stream's transforms, ready to run: built-in ops and the user's callables, one after the other
on one sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from loaderd.config.stream import StreamConfig, TransformConfig
from loaderd.config.transforms import BATCH, resolved
from loaderd.data.errors import SourceError
from loaderd.data.images.image_error import OpError
from loaderd.data.ops.table import FLAT, ReadyOp, check, make_op, one_size
from loaderd.data.pipeline.context import SampleContext, present
from loaderd.data.sample import BadValue, Sample
from loaderd.data.user_code import find, invoke
from loaderd.data.whole_sample import fields_maker

StepRun = Callable[[SampleContext], None]


class Transforms:
    """The transforms of one stream, in order.

    Raises SourceError for user code that cannot be imported and for wrong arguments.

    form: of the samples that come out, "dict" or "tuple"; "" where no user code has returned one
    yet.
    """

    def __init__(self, plan: StreamConfig, source_form: Callable[[], str]) -> None:
        """source_form: returns the form of the samples that go in."""
        self._plan = plan
        self._modes = plan.modes()
        self._source_form = source_form
        self._fields_of = fields_maker(plan)
        self._steps = [
            self._step(step, number)
            for number, step in enumerate(plan.transforms)
            if step.op not in BATCH
        ]
        self.form = ""

    def __len__(self) -> int:
        return len(self._steps)

    def run(self, making: SampleContext) -> None:
        """Run all of them. Raises whatever they raise."""
        for step in self._steps:
            step(making)

    def open_images(self, making: SampleContext) -> None:
        """Plan an image for each field that still holds the bytes of a stored one."""
        for name in making.sample:
            if name in making.sample.encoded:
                making.view(name, self._modes, "decode")

    def _step(self, step: TransformConfig, number: int) -> StepRun:
        if (step.op is None) == (step.call is None):
            raise SourceError(f"transform {number}: set one of op and call")
        if step.call is not None:
            return self._call(step.call, dict(step.args))
        assert step.op is not None
        try:
            if step.op == "decode":
                return self._decoder(resolved("decode", step.args)["field"])
            ready = make_op(step.op, step.args, number)
        except ValueError as error:
            raise SourceError(f"transform {number}: {error}") from None
        return self._op(step.op, ready)

    def _decoder(self, field: str | None) -> StepRun:
        def step(making: SampleContext) -> None:
            name = field if field is not None else _sole_image(making.sample, "decode")
            if present(making.sample, name, "decode") in (bytes, memoryview):
                making.view(name, self._modes, "decode")
            elif name not in making.sample.images and not (
                self._modes.said(name) and isinstance(making.sample[name], np.ndarray)
            ):
                raise OpError(f"decode cannot work on field {name!r}: it is not a stored image")

        return step

    def _op(self, op: str, ready: ReadyOp) -> StepRun:
        """What an op draws depends on its place and the sample alone: fields of one size get the
        same geometry.
        """

        def step(making: SampleContext) -> None:
            views = {
                name: making.view(name, self._modes, op)
                for name in ready.fields or (_sole_image(making.sample, op),)
            }
            for name, view in views.items():
                if view.planar and op not in FLAT:
                    raise OpError(
                        f"{op} cannot work on field {name!r} after to_chw: put to_chw last"
                    )
                check(view, op, name)
            one_size(views, op)
            first = next(iter(views.values()))
            size = (first.height, first.width)
            for view in views.values():
                ready.run(view, making.draws)
            if ready.marks.moved:
                ready.marks.move(making.sample, ready.run, making.draws, size, op)

        return step

    def _call(self, name: str, args: dict[str, Any]) -> StepRun:
        function = find(name, "call")
        how = f"{name}({', '.join(['sample', 'rng', *(f'{arg}=...' for arg in args)])})"

        def step(making: SampleContext) -> None:
            if self._plan.decode:
                self.open_images(making)
            making.materialize_all()
            returned = invoke(function, how, for_user_code(making.sample), making.rng(), **args)
            if not isinstance(returned, Mapping):
                kind = "None" if returned is None else f"a {type(returned).__name__}"
                raise BadValue(f"{name} returned {kind}: a transform returns a dict of fields")
            making.sample = self._returned(returned, making.sample)

        return step

    def _returned(self, returned: Mapping[str, Any], before: Sample) -> Sample:
        """What a call returned, as a sample.

        A field stays a picture, or a stored image, as long as its value can be one.

        A tuple stays one while its fields have numbers for names.
        """
        sample, _ = self._fields_of(returned, self._modes)
        form = self._source_form()
        still = form != "dict" and all(name.partition(".")[0].isdigit() for name in sample)
        self.form = form if still else "dict"
        for name, value in sample.items():
            if isinstance(value, np.ndarray):
                if (
                    name in before.images
                    and value.ndim == 3
                    and value.shape[2] in (1, 3, 4)
                    and not _looks_planar(value, before[name])
                ):
                    sample.images.add(name)
                elif name in before.planar and value.ndim == 3:
                    sample.planar.add(name)
            elif name in before.encoded and not isinstance(value, str):
                sample.encoded.add(name)
        return sample


def for_user_code(sample: Sample) -> dict[str, Any]:
    """The sample as a plain dict, whose arrays are writable and shared with nothing."""

    def own(name: str, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value if name in sample.fresh else np.array(value, order="C")
        return bytes(value) if isinstance(value, memoryview) else value

    return {name: own(name, value) for name, value in sample.items()}


def _sole_image(sample: Sample, op: str) -> str:
    found = [
        name
        for name in sample
        if name in sample.images or name in sample.encoded or name in sample.planar
    ]
    found = found or [
        name for name, value in sample.items() if isinstance(value, (bytes, memoryview))
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        raise OpError(
            f"{op}: the sample has no image; set field to one of {', '.join(map(repr, sample))}"
        )
    raise OpError(
        f"{op}: the sample has {len(found)} images, {', '.join(map(repr, found))}: choose one "
        "with field"
    )


def _looks_planar(value: np.ndarray, before: np.ndarray) -> bool:
    """True if a picture came back with its channels first."""
    return value.shape[0] == before.shape[2] and value.shape[2] != before.shape[2]
