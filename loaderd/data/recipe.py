"""How a sample is made: read, decode, transform, check. The same (seed, epoch, index) gives the same bytes, in any worker, at any time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from loaderd.core.draws import Draws
from loaderd.core.jobs import Stage
from loaderd.data import swift
from loaderd.data.bulk import Bulk
from loaderd.data.collate import Batch, batch_of
from loaderd.data.faults import SampleFault, SourceError
from loaderd.data.images import label_mode
from loaderd.data.making import NOTHING, Making, Note, fault_of, present
from loaderd.data.ops import FLAT, RESIZING, OpError, Run, check, make_op, one_size
from loaderd.data.ops_table import resolved
from loaderd.data.plan import Step, StreamPlan
from loaderd.data.sample import BadValue, Sample, flatten
from loaderd.data.shape import Mold, Shape, batch_specs, check_fit, plainly_fits, shape_of, specs_of
from loaderd.data.source import Source
from loaderd.data.survey import Surveyor, mark
from loaderd.data.userland import find, invoke
from loaderd_wire.slots import FieldSpec

ANYTHING = (Exception, SystemExit)  # what user code may raise; KeyboardInterrupt is nobody's fault


class Recipe:
    """A stream's plan ready to run on an open source. Raises SourceError for user code that cannot be imported and wrong arguments.

    collated: `collate` makes the batch, not the slot. form: "dict" or "tuple"; known for certain after the first sample (or batch).
    user_code: somebody else's code runs, which may draw from global generators: whoever calls seeds them, for every sample.
    """

    def __init__(self, plan: StreamPlan, source: Source) -> None:
        self._plan = plan
        self._modes = plan.modes()
        self._source = source
        self._steps = [self._step(step, number) for number, step in enumerate(plan.transforms)]
        self.collated = plan.collate != "stack"
        self._collate = find(plan.collate, "collate") if self.collated else None
        self.user_code = source.user_code or self.collated or any(step.call for step in plan.transforms)
        self.calls = any(step.call for step in plan.transforms)
        self._resizes = any(step.op in RESIZING for step in plan.transforms)
        self._coded = False
        self._sample_form = ""
        self._batch_form = ""
        self._where = plan.lmdb or plan.dataset or ""
        self._pictures: set[str] = set()
        self._specs: tuple[FieldSpec, ...] = ()
        self._shape: Shape = ()
        self._moldable = False
        self._mold: Mold | None = None
        self._surveyor = Surveyor(plan.survey, self._where) if plan.survey is not None else None

    @property
    def form(self) -> str:
        return self._batch_form or self._sample_form or self._source.form or "dict"

    @property
    def jpeg_extension(self) -> str:
        """The decoder's share in the samples made so far: `swift.version()` if stored images may have been resized, else "not used"."""
        return swift.version() if self._resizes and self._coded else "not used"

    # -- building

    def _step(self, step: Step, number: int) -> Callable[[Making], None]:
        if (step.op is None) == (step.call is None):
            raise SourceError(f"transform {number}: set one of op and call")
        if step.call is not None:
            return self._call(step.call, dict(step.args))
        assert step.op is not None
        try:
            if step.op == "decode":
                values = resolved("decode", step.args)
                return self._decoder(values["field"])
            run, fields = make_op(step.op, step.args, number)
        except ValueError as error:
            raise SourceError(f"transform {number}: {error}") from None
        return self._op(step.op, run, fields)

    def _decoder(self, field: str | None) -> Callable[[Making], None]:
        def step(making: Making) -> None:
            name = field if field is not None else _sole_image(making.sample, "decode")
            if present(making.sample, name, "decode") in (bytes, memoryview):
                making.view(name, self._modes, "decode")
            elif name not in making.sample.images and not (self._modes.said(name) and isinstance(making.sample[name], np.ndarray)):
                raise OpError(f"decode cannot work on field {name!r}: it is not a stored image")

        return step

    def _op(self, op: str, run: Run, fields: tuple[str, ...]) -> Callable[[Making], None]:
        """What an op draws depends on its place and the sample alone: fields of one size get the same geometry."""

        def step(making: Making) -> None:
            views = {name: making.view(name, self._modes, op) for name in fields or (_sole_image(making.sample, op),)}
            for name, view in views.items():
                if view.planar and op not in FLAT:
                    raise OpError(f"{op} cannot work on field {name!r} after to_chw: put to_chw last")
                check(view, op, name)
            one_size(views, op)
            for view in views.values():
                run(view, making.draws)

        return step

    def _call(self, name: str, args: dict[str, Any]) -> Callable[[Making], None]:
        function = find(name, "call")
        how = f"{name}({', '.join(['sample', 'rng', *(f'{arg}=...' for arg in args)])})"

        def step(making: Making) -> None:
            if self._plan.decode:
                self._look_at_all(making)
            making.carry_out_all()
            given = _own(making.sample)
            returned = invoke(function, how, given, making.rng(), **args)
            if not isinstance(returned, Mapping):
                raise BadValue(f"{name} returned {_kind(returned)}: a transform returns a dict of fields")
            making.sample = self._returned(returned, making.sample)

        return step

    def _returned(self, returned: Mapping[str, Any], before: Sample) -> Sample:
        """What a call returned, as a sample. A field stays a picture, or a stored image, while it looks like one.

        A tuple stays one while its fields have numbers for names.
        """
        sample, _ = flatten(returned, self._modes)
        tuple_still = self._source.form == "tuple" and all(name.partition(".")[0].isdigit() for name in sample)
        self._sample_form = "tuple" if tuple_still else "dict"
        for name, value in sample.items():
            if isinstance(value, np.ndarray):
                if name in before.images and value.ndim == 3 and value.shape[2] in (1, 3, 4) and not _looks_planar(value, before[name]):
                    sample.images.add(name)
                elif name in before.planar and value.ndim == 3:
                    sample.planar.add(name)
            elif name in before.encoded and not isinstance(value, str):
                sample.encoded.add(name)
        return sample

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

    def make(
        self,
        index: int,
        seed: int,
        epoch: int,
        note: Note,
        room: Mapping[str, np.ndarray] = NOTHING,
        seeds: np.ndarray | None = None,
    ) -> Sample:
        """Sample `index` as it goes into a batch. note: told each stage before it begins. Raises SampleFault.

        Arrays may be views into the database, valid until the source is closed; values are arrays, str and bytes. room: by field, an
        array that may be written to, even in vain: a picture of its shape and dtype may be made there, and is that array then. Somebody
        else's code never sees it. seeds: `pcg_seeds` of the sample's key, if they are known; asked for where `calls`.
        """
        making = Making((seed, epoch, index), note, NOTHING if self.user_code or self._surveyor else room, seeds)
        try:
            making.enter(Stage.READ)
            making.sample = self._source.read(index)
            return self._finish(making)
        except ANYTHING as error:
            raise fault_of(error, making.stage) from None

    def row(
        self,
        index: int,
        seed: int,
        epoch: int,
        note: Note,
        specs: tuple[FieldSpec, ...],
        room: Mapping[str, np.ndarray] = NOTHING,
        seeds: np.ndarray | None = None,
    ) -> dict[str, Any]:
        """`make` and `fit` for one who copies the sample at once: where user code hands over just what these specs say, that is its own
        dict, in which a number may stand for an array without axes. Raises SampleFault. READ has been noted."""
        if self._mold is None or specs is not self._specs:
            sample = self.make(index, seed, epoch, note, room, seeds)
            self.fit(sample, specs)
            return sample
        making: Making | None = None
        try:
            value = self._source.value(index)
            as_it_is = self._mold.take(value)
            if as_it_is is not None:
                return as_it_is
            making = Making((seed, epoch, index), note)
            making.sample = self._source.take(value)
            sample = self._finish(making)
        except ANYTHING as error:
            raise fault_of(error, making.stage if making else Stage.READ) from None
        self.fit(sample, specs)
        return sample

    def make_many(
        self,
        indices: Sequence[int],
        seed: int,
        epoch: int,
        note: Note,
        at: Callable[[int], None] = lambda row: None,
        specs: tuple[FieldSpec, ...] = (),
    ) -> list[dict[str, Any] | SampleFault]:
        """The samples of these indices through `__getitems__`, or the fault of each; only where source.many.

        specs: if they are told, as from `row`. note(FETCH_MANY) comes before the fetch of all; at(row) before each row's own stages, if it
        has any. Raises SampleFault where the fetch as a
        whole failed: then `make` each by itself to find the culprit.
        """
        fetching = Making((seed, epoch, indices[0]), note)
        try:
            fetching.enter(Stage.FETCH_MANY)
            values = self._source.fetch(indices)
        except ANYTHING as error:
            raise fault_of(error, Stage.FETCH_MANY) from None
        made: list[dict[str, Any] | SampleFault] = []
        if specs:
            self._know(specs)
        mold = self._mold if specs else None
        for row, (index, value) in enumerate(zip(indices, values, strict=True)):
            as_it_is = mold.take(value) if mold is not None else None
            if as_it_is is not None:
                made.append(as_it_is)
                continue
            making = Making((seed, epoch, index), note)
            at(row)
            try:
                making.sample = self._source.take(value)
                sample = self._finish(making)
                if specs:
                    self.fit(sample, specs)
                made.append(sample)
            except ANYTHING as error:
                made.append(fault_of(error, making.stage))
        return made

    def _finish(self, making: Making) -> Sample:
        if self._surveyor is not None:
            making.mark = mark(making.sample)
        if self._steps:
            if self._plan.decode:
                self._look_at_all(making)
            making.enter(Stage.TRANSFORM)
            for step in self._steps:
                step(making)
        if self._plan.decode:
            self._look_at_all(making)
        making.carry_out_all()
        sample = making.sample
        for name, value in sample.items():
            if isinstance(value, (memoryview, bytearray)):
                sample[name] = bytes(value)
            elif self._plan.nonfinite == "error" and isinstance(value, np.ndarray) and value.dtype.kind in "fc":
                _finite(name, value)
        self._pictures |= sample.images
        self._coded |= making.coded
        return sample if self._surveyor is None else self._surveyor.summary(sample, making.mark)

    def _look_at_all(self, making: Making) -> None:
        for name in making.sample:
            if name in making.sample.encoded:
                making.view(name, self._modes, "decode")

    # -- checking

    def specs(self, sample: Sample) -> tuple[FieldSpec, ...]:
        """The fields that this sample fixes for its stream. Raises SampleFault ("check")."""
        return specs_of(sample, self.collated)

    def fit(self, sample: Sample, specs: tuple[FieldSpec, ...]) -> None:
        """Raises SampleFault ("check") if the sample's fields, dtypes or (unless a collate function is used) shapes are not these."""
        self._know(specs)
        if not plainly_fits(sample, self._shape, self.collated):
            check_fit(sample, specs, self.collated, self._where)
        if self._moldable and self._mold is None:
            self._mold = Mold(specs, self._source.form)

    def _know(self, specs: tuple[FieldSpec, ...]) -> None:
        """Prepare for these specs."""
        if specs is not self._specs:
            self._specs, self._shape = specs, shape_of(specs)
            as_read = self._source.user_code and not (self._steps or self.collated or self._surveyor) and self._plan.nonfinite == "allow"
            self._moldable = as_read and all(spec.kind != "bytes" for spec in specs)
            self._mold = None

    def bulk(self, specs: tuple[FieldSpec, ...]) -> Bulk | None:
        """What makes rows of these fields without a sample for each, with the same bytes as `make`; None unless samples are delivered as
        they are stored, as arrays of numbers. A row that it can't make is to be made by `make`, which tells why."""
        return None if self._steps or self.collated or self._surveyor else self._source.bulk(specs)

    # -- collating

    def collate(self, samples: Sequence[Sample], seed: int, epoch: int, position: int) -> Batch:
        """The batch that the stream's collate function makes; only where `collated`. position: of the batch's first row in the epoch.

        Field -> numpy array, list of str or list of bytes, all the caller's own. Raises SampleFault ("collate").
        """
        assert self._collate is not None
        key = Draws(seed, epoch, position).key()
        try:
            rng = np.random.Generator(np.random.PCG64([key, 1]))  # not the generator of the sample that has this index
            made = invoke(self._collate, f"{self._plan.collate}(samples, rng)", [_own(sample) for sample in samples], rng)
            batch, form = batch_of(made, self._modes)
            if self._batch_form and form != self._batch_form:
                raise BadValue(f"collate returned a {form}, before it was a {self._batch_form}")
        except ANYTHING as error:
            raise SampleFault.of("collate", error) from None
        self._batch_form = form
        return batch

    def batch_specs(self, batch: Batch) -> tuple[FieldSpec, ...]:
        """The fields of a collated batch, with the row shapes that this one has."""
        return batch_specs(batch, self._pictures)


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _sole_image(sample: Sample, op: str) -> str:
    found = [name for name in sample if name in sample.images or name in sample.encoded or name in sample.planar]
    found = found or [name for name, value in sample.items() if isinstance(value, (bytes, memoryview))]
    if len(found) == 1:
        return found[0]
    if not found:
        raise OpError(f"{op}: the sample has no image; say field = one of {', '.join(map(repr, sample))}")
    raise OpError(f"{op}: the sample has {len(found)} images, {', '.join(map(repr, found))}: say which with field")


def _looks_planar(value: np.ndarray, before: np.ndarray) -> bool:
    """True if a picture came back with its channels first."""
    return value.shape[0] == before.shape[2] and value.shape[2] != before.shape[2]


def _own(sample: Sample) -> dict[str, Any]:
    """The sample for user code: a plain dict whose arrays are writable and nobody else's."""
    return {
        name: (value if name in sample.fresh else np.array(value, order="C")) if isinstance(value, np.ndarray)
        else bytes(value) if isinstance(value, memoryview)
        else value
        for name, value in sample.items()
    }  # fmt: skip


def _finite(name: str, value: np.ndarray) -> None:
    good = np.isfinite(value)
    if not good.all():
        first = tuple(int(n) for n in np.argwhere(~good)[0]) if value.ndim else ()
        raise SampleFault(
            "check", "NonFinite", f"field {name!r} has {int(np.count_nonzero(~good))} values that are not finite, the first at {first}"
        )
