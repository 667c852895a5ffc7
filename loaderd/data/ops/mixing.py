"""Ops on a whole batch, as in torchvision: mixup (Zhang et al., 2017), CutMix (Yun et al., 2019).

Each row is mixed with the one before it, the first with the last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from loaderd.config.transforms import resolved
from loaderd.data.images.image_error import OpError


@dataclass(frozen=True, slots=True)
class Mixing:
    """One of them with its arguments.

    Attributes:
        op: Its name.
        alpha: Both parameters of the Beta distribution that the share of a row is drawn from.
        num_classes: How many classes there are.
        labels: Field of class numbers, which becomes float32, rows x num_classes.
        field: The picture; None: the only one.
        p: Probability, of the whole batch.
    """

    op: str
    alpha: float
    num_classes: int
    labels: str
    field: str | None
    p: float

    def __call__(
        self, batch: dict[str, Any], pictures: dict[str, bool], rng: np.random.Generator
    ) -> None:
        """Change the batch. Labels change their form even where nothing is mixed.

        Args:
            batch: Field -> array, one row a sample.
            pictures: The fields that are pictures; True: with channels first.
            rng: Of the batch.

        Raises:
            OpError: There is no such picture, or a label is no class.
        """
        name = self._picture(batch, pictures)
        shares = self._one_hot(batch)
        at_all, share = rng.random(), rng.beta(self.alpha, self.alpha)
        if at_all < self.p:
            images = batch[name]
            if self.op == "mixup":
                batch[name] = mixed(images, share)
            else:
                batch[name], share = cut(images, share, rng, planar=pictures[name])
            shares = (share * shares + (1 - share) * np.roll(shares, 1, axis=0)).astype(np.float32)
        batch[self.labels] = shares

    def _picture(self, batch: dict[str, Any], pictures: dict[str, bool]) -> str:
        if self.field is None and len(pictures) == 1:
            return next(iter(pictures))
        if self.field is None or self.field not in pictures:
            raise OpError(
                f"{self.op}: set field to the picture, one of "
                f"{', '.join(map(repr, pictures)) or 'none: the batch has no picture'}"
            )
        return self.field

    def _one_hot(self, batch: dict[str, Any]) -> np.ndarray:
        labels = batch.get(self.labels)
        if not isinstance(labels, np.ndarray):
            raise OpError(f"{self.op}: set labels to a field of class numbers, not {self.labels!r}")
        if labels.ndim == 2 and labels.dtype == np.float32 and labels.shape[1] == self.num_classes:
            return labels  # by an earlier op
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise OpError(
                f"{self.op}: field {self.labels!r} is {labels.dtype} of shape {labels.shape}; "
                "labels are one class number a sample"
            )
        if labels.min() < 0 or labels.max() >= self.num_classes:
            raise OpError(
                f"{self.op}: field {self.labels!r} has the labels {labels.min()} to "
                f"{labels.max()}, but num_classes = {self.num_classes}"
            )
        return np.eye(self.num_classes, dtype=np.float32)[labels]


def mixed(images: np.ndarray, share: float) -> np.ndarray:
    """Mix `share` of each row with 1 - share of the one before it, in the dtype that they have."""
    out = images * np.float32(share)
    out += np.roll(images, 1, axis=0) * np.float32(1 - share)
    return (np.rint(out) if images.dtype.kind in "iu" else out).astype(images.dtype)


def cut(
    images: np.ndarray, share: float, rng: np.random.Generator, *, planar: bool
) -> tuple[np.ndarray, float]:
    """(each row with a rectangle of the one before it, the share of it that is its own)."""
    height, width = images.shape[2:4] if planar else images.shape[1:3]
    x, y = rng.integers(width), rng.integers(height)
    half = 0.5 * np.sqrt(1.0 - share)
    across, down = int(half * width), int(half * height)
    top, bottom = max(0, y - down), min(height, y + down)
    left, right = max(0, x - across), min(width, x + across)
    box = (slice(top, bottom), slice(left, right))
    where = (slice(None), slice(None), *box) if planar else (slice(None), *box)
    out = images.copy()
    out[where] = np.roll(images, 1, axis=0)[where]
    return out, 1.0 - (bottom - top) * (right - left) / (height * width)


MIXERS: dict[str, Callable[..., Mixing]] = {"mixup": Mixing, "cutmix": Mixing}


def make_mixing(op: str, args: dict[str, Any]) -> Mixing:
    """Raises ValueError for wrong arguments."""
    return MIXERS[op](op, **resolved(op, args))
