"""How a sample is made: read, decode, transform, check. The same (seed, epoch, index) gives the same bytes, in any worker, at any time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from loaderd.config.stream import StreamConfig
from loaderd.core.jobs import Stage
from loaderd.core.rng import CounterRng
from loaderd.data.errors import SampleFault
from loaderd.data.images.decode import label_mode
from loaderd.data.jpeg import fused_decode
from loaderd.data.lmdb.bulk_rows import BulkReader
from loaderd.data.pipeline.collate import Batch, batch_of, fields_of
from loaderd.data.pipeline.context import SampleContext, fault_of
from loaderd.data.pipeline.ops import RESIZING
from loaderd.data.pipeline.request import NOTHING, Note, SampleRequest
from loaderd.data.pipeline.sample_summary import Surveyor
from loaderd.data.pipeline.steps import StepRun, Transforms, for_user_code
from loaderd.data.sample import BadValue, Sample
from loaderd.data.sample_schema import RawMatcher, SampleSchema
from loaderd.data.sources.source import Source
from loaderd.data.user_code import find, invoke
from loaderd_wire.slots import FieldSpec

ANYTHING = (Exception, SystemExit)  # what user code may raise; KeyboardInterrupt is nobody's fault


class SamplePipeline:
    """A stream's plan ready to run on an open source. Raises SourceError for user code that cannot be imported and wrong arguments.

    collated: `collate` makes the batch, not the slot. schema: what `fix` said that samples must be; None before. user_code: somebody
    else's code runs, which may draw from global generators: whoever calls seeds them, for every sample. calls: transforms of the user's
    are among it, which are given an rng.
    """

    def __init__(self, plan: StreamConfig, source: Source) -> None:
        self._plan = plan
        self._modes = plan.modes()
        self._source = source
        self._transforms = Transforms(plan, lambda: source.form)
        self._surveyor = Surveyor(plan.survey, plan.data_name) if plan.survey is not None else None
        self._steps = self._all_steps()
        self.collated = plan.collate != "stack"
        self._collate = find(plan.collate, "collate") if self.collated else None
        self.calls = any(step.call for step in plan.transforms)
        self.user_code = source.user_code or self.collated or self.calls
        self._as_stored = not (self._transforms or self.collated or self._surveyor)
        self._resizes = any(step.op in RESIZING for step in plan.transforms)
        self._coded = False
        self._batch_form = ""
        self._pictures: set[str] = set()
        self.schema: SampleSchema | None = None
        self._moldable = False
        self._matcher: RawMatcher | None = None
        self._read_raw: Callable[[int], Any] | None = None

    @property
    def form(self) -> str:
        """ "dict" or "tuple"; known for certain after the first sample (or batch)."""
        return self._batch_form or self._transforms.form or self._source.form or "dict"

    @property
    def jpeg_extension(self) -> str:
        """The decoder's share in the samples made so far: `swift.version()` if stored images may have been resized, else "not used"."""
        return fused_decode.version() if self._resizes and self._coded else "not used"

    def _all_steps(self) -> list[StepRun]:
        steps = [self._finish]
        if self._transforms:
            steps.insert(0, self._transform)
        if self._surveyor is not None:
            steps = [self._surveyor.begin, *steps, self._surveyor.end]
        return steps

    def label_notes(self, indices: Sequence[int]) -> tuple[str, ...]:
        """A line for each field of these samples whose stored images hold numbers that become colours, without the config saying so."""
        found: dict[str, str] = {}
        modes = self._modes
        if not self._plan.decode or self._source.dataset is not None:
            return ()
        for index in indices:
            try:
                sample = self._source.read(index)
                for name in sample.encoded - found.keys():
                    unsaid = modes.of(name) != "index" and not modes.said(name)
                    if unsaid and (mode := label_mode(sample[name], gray=modes.beside(name))):
                        found[name] = mode
            except ANYTHING:
                continue
        return tuple(
            f"field {name!r} has stored images of mode {mode}, whose numbers become colours; if they are labels, add "
            f'{{op = "decode", field = "{name}", mode = "index"}} to the transforms, or mode = "rgb" in it if they are not'
            for name, mode in found.items()
        )

    # -- running

    def make(self, request: SampleRequest, note: Note) -> Sample:
        """The sample as it goes into a batch; once the schema is fixed, one that fits it. Raises SampleFault.

        note: called with each stage before it begins. Arrays may be views into the database, valid until the source is closed; values are
        arrays, str and bytes.
        """
        making = SampleContext(request, note, NOTHING if self.user_code else request.out)
        try:
            making.enter(Stage.READ)
            making.sample = self._source.read(request.index)
            return self._run(making)
        except ANYTHING as error:
            raise fault_of(error, making.stage) from None

    def row(self, request: SampleRequest, note: Note) -> dict[str, Any]:
        """`make` for one who copies the sample at once: where user code hands over just what the schema says, that is its own dict, in
        which a number may stand for an array without axes. Raises SampleFault. READ has been noted."""
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
        self, requests: Sequence[SampleRequest], note: Note, at: Callable[[int], None] = lambda row: None, *, copied: bool = False
    ) -> list[dict[str, Any] | SampleFault]:
        """The samples of these requests through `__getitems__`, or the fault of each; only where source.many.

        copied: they are as from `row`. note(FETCH_MANY) comes before the fetch of all; at(row) before each row's own stages, if it has any. Raises SampleFault where the
        fetch as a whole failed: then `make` each by itself to find the culprit.
        """
        try:
            note(Stage.FETCH_MANY)
            values = self._source.fetch([request.index for request in requests])
        except ANYTHING as error:
            raise fault_of(error, Stage.FETCH_MANY) from None
        made: list[dict[str, Any] | SampleFault] = []
        matcher = self._matcher if copied else None
        for row, (request, value) in enumerate(zip(requests, values, strict=True)):
            taken = matcher.take(value) if matcher is not None else None
            if taken is not None:
                made.append(taken)
                continue
            making = SampleContext(request, note)
            at(row)
            try:
                making.sample = self._source.take(value)
                made.append(self._run(making))
            except ANYTHING as error:
                made.append(fault_of(error, making.stage))
        return made

    def _run(self, making: SampleContext) -> Sample:
        for step in self._steps:
            step(making)
        sample = making.sample
        if self.schema is not None:
            self.schema.check(sample)
            if self._moldable and self._matcher is None:
                self._matcher, self._read_raw = RawMatcher(self.schema, self._source.form), self._source.value
        return sample

    def _transform(self, making: SampleContext) -> None:
        if self._plan.decode:
            self._transforms.open_images(making)
        making.enter(Stage.TRANSFORM)
        self._transforms.run(making)

    def _finish(self, making: SampleContext) -> None:
        """Make the pictures that are planned, and look whether all numbers are finite where the stream wants that."""
        if self._plan.decode:
            self._transforms.open_images(making)
        making.materialize_all()
        sample = making.sample
        for name, value in sample.items():
            if isinstance(value, (memoryview, bytearray)):
                sample[name] = bytes(value)
            elif self._plan.nonfinite == "error" and isinstance(value, np.ndarray) and value.dtype.kind in "fc":
                _finite(name, value)
        self._pictures |= sample.images
        self._coded |= making.coded

    # -- checking

    def specs(self, sample: Sample) -> tuple[FieldSpec, ...]:
        """The fields that this sample fixes for its stream. Raises SampleFault ("check")."""
        return SampleSchema.of(sample, collated=self.collated, where=self._plan.data_name).specs

    def fix(self, specs: tuple[FieldSpec, ...]) -> None:
        """From now on samples must have these fields."""
        self.schema = SampleSchema(specs, collated=self.collated, where=self._plan.data_name)
        as_read = self._source.user_code and self._as_stored and self._plan.nonfinite == "allow"
        self._moldable = as_read and all(spec.kind != "bytes" for spec in specs)
        self._matcher = None

    def bulk(self) -> BulkReader | None:
        """What makes rows of the schema's fields without a sample for each, with the same bytes as `make`; None unless samples are delivered
        as they are stored, as arrays of numbers. A row that it can't make is to be made by `make`, which tells why."""
        return self._source.bulk(self.schema.specs) if self.schema is not None and self._as_stored else None

    # -- collating

    def collate(self, samples: Sequence[Sample], seed: int, epoch: int, position: int) -> Batch:
        """The batch that the stream's collate function makes; only where `collated`. position: of the batch's first row in the epoch.

        Field -> numpy array, list of str or list of bytes, all the caller's own. Raises SampleFault ("collate").
        """
        assert self._collate is not None
        key = CounterRng(seed, epoch, position).key()
        try:
            rng = np.random.Generator(np.random.PCG64([key, 1]))  # not the generator of the sample that has this index
            made = invoke(self._collate, f"{self._plan.collate}(samples, rng)", [for_user_code(sample) for sample in samples], rng)
            batch, form = batch_of(made, self._modes)
            if self._batch_form and form != self._batch_form:
                raise BadValue(f"collate returned a {form}, before it was a {self._batch_form}")
        except ANYTHING as error:
            raise SampleFault.of("collate", error) from None
        self._batch_form = form
        return batch

    def batch_specs(self, batch: Batch) -> tuple[FieldSpec, ...]:
        """The fields of a collated batch, with the row shapes that this one has."""
        return fields_of(batch, self._pictures)


def _finite(name: str, value: np.ndarray) -> None:
    good = np.isfinite(value)
    if not good.all():
        first = tuple(int(n) for n in np.argwhere(~good)[0]) if value.ndim else ()
        raise SampleFault(
            "check", "NonFinite", f"field {name!r} has {int(np.count_nonzero(~good))} values that are not finite, the first at {first}"
        )
