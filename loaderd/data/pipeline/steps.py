"""A stream's transforms, ready to run.

Built-in ops and the user's callables, one after the other on one sample.
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
from loaderd.data.ops.told import told
from loaderd.data.pipeline.calls import UserCall
from loaderd.data.pipeline.context import SampleContext, present, sole_image
from loaderd.data.sample import Sample
from loaderd.data.whole_sample import fields_maker

StepRun = Callable[[SampleContext], None]


class Transforms:
    """The transforms of one stream, in order.

    Attributes:
        form: Of the samples that come out, "dict" or "tuple"; "" where no user code has returned
            one yet.
    """

    def __init__(self, plan: StreamConfig, source_form: Callable[[], str]) -> None:
        """Import the user's callables and make the ops.

        Args:
            plan: The stream.
            source_form: Returns the form of the samples that go in.

        Raises:
            SourceError: User code cannot be imported, or arguments are wrong.
        """
        self._plan = plan
        self._modes = plan.modes()
        self._source_form = source_form
        # is told what each op does to each sample, in words; None: nobody looks
        self.tell: Callable[[str], None] | None = None
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
            return self._call(step)
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
            name = field if field is not None else sole_image(making.sample, "decode")
            if present(making.sample, name, "decode") in (bytes, memoryview):
                making.view(name, self._modes, "decode")
            elif name not in making.sample.images and not (
                self._modes.said(name) and isinstance(making.sample[name], np.ndarray)
            ):
                raise OpError(f"decode cannot work on field {name!r}: it is not a stored image")

        return step

    def _op(self, op: str, ready: ReadyOp) -> StepRun:
        """A built-in op as a step.

        What an op draws depends on its place and the sample alone: fields of one size get the same
        geometry.
        """

        def step(making: SampleContext) -> None:
            views = {
                name: making.view(name, self._modes, op)
                for name in ready.fields or (sole_image(making.sample, op),)
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
            if self.tell is not None:
                self.tell(told(op, ready.run, *size, making.draws))
            for view in views.values():
                ready.run(view, making.draws)
            if ready.marks.moved:
                ready.marks.move(making.sample, ready.run, making.draws, size, op)

        return step

    def _call(self, step: TransformConfig) -> StepRun:
        call = UserCall(step, self._modes)

        def run(making: SampleContext) -> None:
            if self._plan.decode:
                self.open_images(making)
            making.materialize_all()
            making.sample = self._returned(call(making), making.sample)

        return run

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


def _looks_planar(value: np.ndarray, before: np.ndarray) -> bool:
    """True if a picture came back with its channels first."""
    return value.shape[0] == before.shape[2] and value.shape[2] != before.shape[2]
