"""One sample while it is made.

Its fields, the images that are planned, its random generator, and its stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISpawnableSeedSequence

from loaderd.config.decode_modes import DecodeModes
from loaderd.core.jobs import Stage
from loaderd.core.rng import CounterRng
from loaderd.data.errors import SampleFault
from loaderd.data.images.image_error import OpError
from loaderd.data.images.lazy_image import LazyImage
from loaderd.data.images.orientation import orientation_of, upright
from loaderd.data.images.pixel_source import ArraySource, open_image
from loaderd.data.ops.table import picture
from loaderd.data.pipeline.request import NOTHING, Note, SampleRequest
from loaderd.data.sample import Sample

NAMES = {
    Stage.READ: "read",
    Stage.FETCH_MANY: "read",
    Stage.DECODE: "decode",
    Stage.TRANSFORM: "transform",
    Stage.COLLATE: "collate",
}


class Seeds(ISpawnableSeedSequence):
    """SeedSequence(draws.key()) whose seeds for a PCG64 are known already.

    The whole sequence is made only when more of it is asked for.
    """

    def __init__(self, draws: CounterRng, seeds: np.ndarray) -> None:
        self._draws = draws
        self._seeds = seeds
        self._full: np.random.SeedSequence | None = None

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        """As SeedSequence's: uint32[n_words], or uint64."""
        return (
            self._seeds
            if n_words == 4 and dtype is np.uint64
            else self.full.generate_state(n_words, dtype)
        )

    def spawn(self, n_children: int) -> list[np.random.SeedSequence]:
        """As SeedSequence's."""
        return self.full.spawn(n_children)

    @property
    def full(self) -> np.random.SeedSequence:
        """The whole sequence, made once."""
        if self._full is None:
            self._full = np.random.SeedSequence(self._draws.key())
        return self._full

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.full, name)


class SampleContext:
    """One sample, from its request until it is finished. The caller reads it and sets `sample`."""

    sample: Sample
    __slots__ = (
        "_draws", "_note", "_request", "_rng", "_view", "coded", "out", "sample", "stage", "views",
    )  # fmt: skip

    def __init__(
        self, request: SampleRequest, note: Note, out: Mapping[str, np.ndarray] = NOTHING
    ) -> None:
        """Begin with no sample.

        Args:
            request: Which sample.
            note: Called with each stage.
            out: The request's, if pictures may be made there.
        """
        self._request = request
        self.out = out
        self._draws: CounterRng | None = None
        # pictures that are planned, by field; the sample still has what they are made from
        self.views: dict[str, LazyImage] = {}
        self._note = note
        self._rng: np.random.Generator | None = None
        self._view = 0
        self.stage = Stage.READ
        self.coded = False  # a stored image was decoded

    @property
    def epoch(self) -> int:
        """The epoch that the trainer counts."""
        counted = self._request.trainer_epoch
        return counted if counted >= 0 else self._request.epoch

    def enter(self, stage: Stage) -> None:
        """What follows belongs to this stage."""
        self.stage = stage
        self._note(stage)

    def of_view(self, number: int, sample: Sample, out: Mapping[str, np.ndarray]) -> SampleContext:
        """The making of one view of the sample, with draws of its own."""
        made = SampleContext(self._request, self._note, out)
        made._view, made.sample, made.stage = number, sample, self.stage
        return made

    @property
    def draws(self) -> CounterRng:
        """The random numbers of this sample in this epoch, and of its view."""
        if self._draws is None:
            request = self._request
            self._draws = CounterRng(request.seed, request.epoch, request.index, self._view)
        return self._draws

    def rng(self) -> np.random.Generator:
        """The sample's generator, the same for all of its callables."""
        if self._rng is None:
            seeds = self._request.rng_seeds if self._view == 0 else None
            seed: Any = self.draws.key() if seeds is None else Seeds(self.draws, seeds)
            self._rng = np.random.Generator(np.random.PCG64(seed))
        return self._rng

    def view(self, name: str, modes: DecodeModes, op: str) -> LazyImage:
        """The plan of this field's picture, begun if there is none.

        Raises OpError if it is none, ImageError.
        """
        view = self.views.get(name)
        if view is None:
            view = self.views[name] = self._begun(name, modes, op)
        return view

    def _begun(self, name: str, modes: DecodeModes, op: str) -> LazyImage:
        kind, sample = present(self.sample, name, op), self.sample
        if kind is str:
            raise OpError(f"{op} cannot work on field {name!r}: it is text")
        if kind not in (bytes, memoryview) and not issubclass(kind, np.ndarray):
            raise OpError(f"{op} cannot work on field {name!r}: it is a {kind.__name__}")
        value = sample[name]
        if kind in (bytes, memoryview):
            sample.images.add(name)
            before, self.coded = self.stage, True
            self.enter(Stage.DECODE)
            limit = modes.max_pixels
            origin = open_image(value, modes.of(name), limit)
            view = LazyImage(origin, labels=modes.of(name) == "index", limit=limit)
            if modes.exif:
                upright(view, orientation_of(value))
            if before is not Stage.READ:
                self.enter(before)
            return view
        if name in sample.planar:
            view = LazyImage(
                ArraySource(
                    picture(value.transpose(1, 2, 0) if value.ndim == 3 else value, op, name)
                ),
                limit=modes.max_pixels,
            )
            view.planar = True
            return view
        labels = _holds_labels(name, value, name in sample.images, modes)
        if value.ndim == 2 and value.size:
            return LazyImage(
                ArraySource(value[:, :, np.newaxis]), labels=labels, limit=modes.max_pixels
            )
        origin = ArraySource(picture(value, op, name))
        view = LazyImage(origin, labels=labels, limit=modes.max_pixels)
        sample.images.add(name)
        return view

    def materialize(self, name: str) -> None:
        """Make the picture that has been planned."""
        view, sample, before, out = (
            self.views.pop(name),
            self.sample,
            self.stage,
            self.out.get(name),
        )
        if view.stored and before is not Stage.DECODE:
            self.enter(Stage.DECODE)
            view.load(out)
            if before is not Stage.READ:
                self.enter(before)
        value, old = view.pixels(out), sample[name]
        # a mask without an axis of channels stays one
        if isinstance(old, np.ndarray) and old.ndim == 2:
            sample[name] = np.ascontiguousarray(value[:, :, 0])
            sample.fresh.discard(name)
            return
        if value is not old:
            sample[name] = value
            own = value.flags.c_contiguous and not (
                isinstance(old, np.ndarray) and np.may_share_memory(value, old)
            )
            (sample.fresh.add if own else sample.fresh.discard)(name)
        sample.encoded.discard(name)
        (sample.planar if view.planar else sample.images).add(name)
        (sample.images if view.planar else sample.planar).discard(name)

    def materialize_all(self) -> None:
        """Make the pixels of all pictures that are planned."""
        for name in list(self.views):
            self.materialize(name)


def _holds_labels(name: str, value: np.ndarray, picture: bool, modes: DecodeModes) -> bool:
    """Whether an array's numbers are labels.

    An array of a user's with one channel of whole numbers is a mask where it has no axis of
    channels or shares the geometry of other fields, unless the config says a mode.

    Args:
        name: Of the field.
        value: The array.
        picture: They were an image, in the field's mode.
        modes: How the fields of the stream are decoded.
    """
    if modes.of(name) == "index":
        return True
    if (
        modes.said(name)
        or value.dtype.kind not in "biu"
        or (value.ndim > 2 and value.shape[2] != 1)
    ):
        return False
    if value.dtype != np.uint8:
        return True
    return not (picture and modes.of(name) == "gray") and (value.ndim == 2 or name in modes.paired)


def fault_of(error: BaseException, stage: Stage) -> SampleFault:
    """What was raised in this stage, as the sample's fault."""
    return error if isinstance(error, SampleFault) else SampleFault.of(NAMES[stage], error)


def sole_image(sample: Sample, op: str) -> str:
    """The field of the sample's only picture. Raises OpError where there are several or none."""
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


def present(sample: Sample, name: str, op: str) -> type:
    """The type of the field's value. Raises OpError where there is none."""
    if name not in sample:
        raise OpError(
            f"{op}: the sample has no field {name!r}; it has {', '.join(map(repr, sample))}"
        )
    return type(sample[name])
