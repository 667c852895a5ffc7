"""How a sample is made: read, decode, transform, check.

The same (seed, epoch, index) gives the same bytes, in any worker, at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from loaderd.config.stream import StreamConfig
from loaderd.core.jobs import Stage
from loaderd.data.errors import ANYTHING, SampleFault
from loaderd.data.jpeg import fused_decode
from loaderd.data.lmdb.bulk_rows import RowCopier
from loaderd.data.ops.table import RESIZING
from loaderd.data.pipeline.call_styles import for_user_code
from loaderd.data.pipeline.context import SampleContext, fault_of
from loaderd.data.pipeline.request import NOTHING, Note, SampleRequest
from loaderd.data.pipeline.sample_batcher import SampleBatcher
from loaderd.data.pipeline.sample_summary import Surveyor
from loaderd.data.pipeline.steps import StepRun, Transforms
from loaderd.data.pipeline.views import Views
from loaderd.data.sample import BadValue, Sample
from loaderd.data.sample_schema import RawMatcher, SampleSchema
from loaderd.data.sources.source import Source
from loaderd.data.whole_sample import WholeSample, as_returned, numbers_in, top_fields
from loaderd_wire.slots import FieldSpec


class SamplePipeline:
    """Makes the samples of one stream from an open source.

    Raises SourceError for user code that cannot be imported, and for wrong arguments.

    Attributes:
        schema: What every sample must be; None until `fix` is called.
        collated: Whether a batch is made of whole samples.
        batcher: Makes the batches, where `collated`.
        user_code: Whether user code runs. It may draw from global generators, so the caller seeds
            them for every sample.
        calls: Whether transforms of the user run. They are given an rng.
    """

    def __init__(self, plan: StreamConfig, source: Source) -> None:
        self._plan = plan
        self._modes = plan.modes()
        self._source = source
        self._transforms = Transforms(plan, lambda: source.form)
        self._surveyor = Surveyor(plan.survey, plan.data_name) if plan.survey is not None else None
        self._steps = self._all_steps()
        self.collated = plan.collated
        self._whole_samples = plan.whole_samples and self._surveyor is None
        # the dataset's own samples, which nothing touches before they are collated
        changed = len(self._transforms) > 0 or plan.views > 1
        self._untouched = self._whole_samples and not changed and source.dataset is not None
        self.calls = any(step.call for step in plan.transforms)
        self.user_code = source.user_code or self._whole_samples or self.calls
        self._as_stored = not (changed or self.collated or self._surveyor or source.relabels)
        self._resizes = any(step.op in RESIZING for step in plan.transforms)
        self._free = plan.free_fields
        self._coded = False
        self._pictures: set[str] = set()
        self.batcher = SampleBatcher(plan, self._whole_samples, self._pictures)
        self.schema: SampleSchema | None = None
        self._moldable = False
        self._matcher: RawMatcher | None = None
        self._read_raw: Callable[[int], Any] | None = None

    @property
    def form(self) -> str:
        """ "dict" or "tuple"; known for certain after the first sample (or batch)."""
        form = self.batcher.form or self._transforms.form or self._source.form or "dict"
        return "tuple" if form == "single" else form

    def tell_ops(self, tell: Callable[[str], None]) -> None:
        """Have `tell` called with what each op does to each sample from now on, in words."""
        self._transforms.tell = tell

    @property
    def jpeg_extension(self) -> str:
        """`fused_decode.version()` if images made so far may have been decoded by it.

        Else "not used".
        """
        return fused_decode.version() if self._resizes and self._coded else "not used"

    def _all_steps(self) -> list[StepRun]:
        steps = [self._finish]
        if self._transforms:
            steps.insert(0, self._transform)
        if self._plan.views > 1:
            steps = [Views(self._plan, steps)]
        if self._surveyor is not None:
            steps = [self._surveyor.begin, *steps, self._surveyor.end]
        return steps

    # -- running

    def make(self, request: SampleRequest, note: Note) -> Any:
        """Make one sample as it goes into a batch.

        Args:
            request: Which sample, and where its images may be made.
            note: Called with each stage before it begins.

        Returns:
            Arrays, str and bytes. Arrays may be views into the database, valid until the source is
                closed. A WholeSample instead for a collate function.

        Raises:
            SampleFault: The sample cannot be made, or it does not fit the schema.
        """
        making = SampleContext(request, note, NOTHING if self.user_code else request.out)
        try:
            making.enter(Stage.READ)
            if self._untouched:
                return self._whole(self._source.value(request.index))
            making.sample = self._source.read(request.index)
            return self._run(making)
        except ANYTHING as error:
            raise fault_of(error, making.stage) from None

    def row(self, request: SampleRequest, note: Note) -> Any:
        """`make` for a caller that copies the sample at once. It has noted READ already.

        Returns:
            Where user code returns exactly what the schema says, its own dict, not copied. A number
                may then stand for an array without axes.
            Otherwise what `make` returns.

        Raises:
            SampleFault: As `make`.
        """
        matcher, read = self._matcher, self._read_raw
        if matcher is None or read is None:
            return self.make(request, note)
        making: SampleContext | None = None
        try:
            value = read(request.index)
            taken = matcher.take(value)
            if taken is not None:
                return taken
            making = SampleContext(request, note)
            making.sample = self._source.take(value)
            return self._run(making)
        except ANYTHING as error:
            raise fault_of(error, making.stage if making else Stage.READ) from None

    def make_many(
        self,
        requests: Sequence[SampleRequest],
        note: Note,
        at: Callable[[int], None] = lambda row: None,
        *,
        copied: bool = False,
    ) -> list[Any]:
        """Make several samples through the dataset's `__getitems__`; only where `source.many`.

        Args:
            requests: Which samples.
            note: Called with FETCH_MANY before the fetch, and with each later stage of each sample.
            at: Called with the number of a request before the stages of that sample.
            copied: The caller copies the samples at once, as for `row`.

        Returns:
            The sample or the fault of each request.

        Raises:
            SampleFault: The fetch as a whole failed. Call `make` for each request to find out which
                sample it is.
        """
        try:
            note(Stage.FETCH_MANY)
            values = self._source.fetch([request.index for request in requests])
        except ANYTHING as error:
            raise fault_of(error, Stage.FETCH_MANY) from None
        made: list[Any] = []
        matcher = self._matcher if copied else None
        for row, (request, value) in enumerate(zip(requests, values, strict=True)):
            taken = matcher.take(value) if matcher is not None else None
            if taken is not None:
                made.append(taken)
                continue
            making = SampleContext(request, note)
            at(row)
            try:
                if self._untouched:
                    made.append(self._whole(value))
                    continue
                making.sample = self._source.take(value)
                made.append(self._run(making))
            except ANYTHING as error:
                made.append(fault_of(error, making.stage))
        return made

    def _run(self, making: SampleContext) -> Sample | WholeSample:
        for step in self._steps:
            step(making)
        sample = making.sample
        if self._whole_samples:
            form = self._transforms.form or self._source.form
            return WholeSample(as_returned(for_user_code(sample), form))
        if self.schema is not None:
            if self._free:
                self.schema.take_empty(sample)
            self.schema.check(sample)
            if self._moldable and self._matcher is None:
                self._matcher, self._read_raw = (
                    RawMatcher(self.schema, self._source.form),
                    self._source.value,
                )
        return sample

    def _whole(self, value: Any) -> WholeSample:
        """What the dataset returned, as it is."""
        if self._plan.nonfinite == "error":
            for name, array in numbers_in(value):
                if array.dtype.kind in "fc":
                    _finite(name, array)
        return WholeSample(value)

    def _transform(self, making: SampleContext) -> None:
        if self._plan.decode:
            self._transforms.open_images(making)
        making.enter(Stage.TRANSFORM)
        self._transforms.run(making)

    def _finish(self, making: SampleContext) -> None:
        """Make the images that are planned.

        Check that all numbers are finite, where the stream asks for it.
        """
        if self._plan.decode:
            self._transforms.open_images(making)
        making.materialize_all()
        sample = making.sample
        for name, value in sample.items():
            if isinstance(value, (memoryview, bytearray)):
                sample[name] = bytes(value)
            elif (
                self._plan.nonfinite == "error"
                and isinstance(value, np.ndarray)
                and value.dtype.kind in "fc"
            ):
                _finite(name, value)
        self._pictures |= sample.images
        self._coded |= making.coded

    # -- checking

    def fields(self, sample: Sample | WholeSample) -> Sample:
        """The fields of what `make` returned, to be looked at.

        Of a WholeSample those at its top that a batch could hold.
        """
        if isinstance(sample, Sample):
            return sample
        try:
            found, _ = top_fields(sample.value, self._modes)
        except BadValue:
            return Sample()
        for name in [n for n, v in found.items() if not isinstance(v, (np.ndarray, str, bytes))]:
            del found[name]
        return found

    def specs(self, sample: Sample | WholeSample) -> tuple[FieldSpec, ...]:
        """The fields that this sample fixes for its stream; where `collated` those of `fields`.

        Raises SampleFault ("check").
        """
        return SampleSchema.of(
            self.fields(sample), collated=self._whole_samples, where=self._plan.data_name
        ).specs

    def undecided(self, sample: Sample | WholeSample) -> bool:
        """Whether a field whose length is free has no elements here, which may hide its dtype."""
        values = [sample.get(name) for name in self._free] if isinstance(sample, Sample) else []
        return any(isinstance(value, np.ndarray) and not value.size for value in values)

    def fix(self, specs: tuple[FieldSpec, ...]) -> None:
        """From now on samples must have these fields, unless a collate function gets them."""
        self.schema = SampleSchema(
            specs, collated=self._whole_samples, where=self._plan.data_name, free=self._free
        )
        as_read = self._source.user_code and self._as_stored and self._plan.nonfinite == "allow"
        self._moldable = as_read and all(spec.kind != "bytes" for spec in specs)
        self._matcher = None

    def unlike(self, sample: Sample | WholeSample) -> str:
        """How a sample that goes to a collate function differs from the stream's first one.

        It may in the dtypes of its fields, or which it has; "" if it does not.
        """
        if not isinstance(sample, WholeSample):
            return ""
        if sample.value is None:
            return f"{self._plan.data_name}: the sample is None"
        try:
            if self.schema is not None:
                self.schema.check(self.fields(sample))
        except SampleFault as fault:
            return fault.message
        return ""

    def bulk(self) -> RowCopier | None:
        """What copies rows straight from the database, with the same bytes as `make`.

        None unless samples are delivered as they are stored, as arrays of numbers. `make` makes a
        row that this cannot copy, or says why not.
        """
        return (
            self._source.bulk(self.schema.specs)
            if self.schema is not None and self._as_stored
            else None
        )


def _finite(name: str, value: np.ndarray) -> None:
    good = np.isfinite(value)
    if not good.all():
        first = tuple(int(n) for n in np.argwhere(~good)[0]) if value.ndim else ()
        raise SampleFault(
            "check",
            "NonFinite",
            f"field {name!r} has {int(np.count_nonzero(~good))} values that are not finite, the "
            f"first at {first}",
        )
