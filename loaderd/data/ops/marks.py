"""Boxes, keypoints and polygons that follow a picture's geometry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loaderd.core.rng import CounterRng
from loaderd.data.images.edges import ZEROS, Fill
from loaderd.data.images.image_error import OpError
from loaderd.data.ops.plane import Run
from loaderd.data.sample import Sample

LABELS = ("labels",)  # what goes with boxes where the config doesn't say


class Marks:
    """Points on a picture; a `Plane`.

    Attributes:
        height: Of the picture, in pixels.
        width: Likewise.
        points: float64, n x 2: x and y in pixels, 0 is the left and the top edge.
    """

    def __init__(self, height: int, width: int, points: np.ndarray) -> None:
        self.height, self.width, self.points = height, width, points

    def crop(self, top: int, left: int, height: int, width: int) -> None:
        self.points = self.points - (left, top)
        self.height, self.width = height, width

    def resize(
        self, height: int, width: int, how: str = "bilinear", *, exact: bool = False
    ) -> None:
        self.points = self.points * (width / self.width, height / self.height)
        self.height, self.width = height, width

    def flip(self, *, rows: bool = False) -> None:
        size, sign = ((0, self.height), (1, -1)) if rows else ((self.width, 0), (-1, 1))
        self.points = self.points * sign + size

    def turn(self, quarters: int) -> None:
        for _ in range(quarters):
            x, y = self.points.T
            self.points = np.stack([y, self.width - x], axis=1)
            self.height, self.width = self.width, self.height

    def pad(self, top: int, bottom: int, left: int, right: int, fill: Fill = ZEROS) -> None:
        self.points = self.points + np.array([left, top])
        self.height, self.width = self.height + top + bottom, self.width + left + right


@dataclass(frozen=True, slots=True)
class MarkNames:
    """The fields of a sample that one op moves with the picture; None where there is none.

    Attributes:
        boxes: n x 4, x1, y1, x2, y2 in pixels.
        keypoints: n x 2 or n x 3 (with a visibility), or n x k x 2 or 3 for k points of each of n
            objects.
        polygons: n x k x 2.
        follow: Fields with a row for each box; None: `LABELS`.
    """

    boxes: str | None = None
    keypoints: str | None = None
    polygons: str | None = None
    follow: Sequence[str] | None = None

    @property
    def moved(self) -> list[str]:
        """The fields whose points the op moves."""
        return [name for name in (self.boxes, self.keypoints, self.polygons) if name is not None]

    def move(
        self, sample: Sample, run: Run, draws: CounterRng, size: tuple[int, int], op: str
    ) -> None:
        """Do to them what `run` does to a picture of this (height, width).

        The results go into the sample: clipped, without those that lie outside, in the dtype that
        they had.

        Raises OpError naming op and field for values of another shape or order.
        """
        parts = {name: self._points(sample, name, op) for name in self.moved}
        marks = Marks(*size, np.concatenate(list(parts.values())))
        run(marks, draws)
        ends = np.cumsum([len(part) for part in parts.values()])
        moved = dict(zip(parts, np.split(marks.points, ends[:-1]), strict=True))
        limit = (marks.width, marks.height)
        objects = None
        if self.boxes is not None:
            objects = self._set_boxes(sample, moved[self.boxes], limit)
            self._set_followers(sample, objects, op)
        if self.keypoints is not None:
            self._set_keypoints(sample, moved[self.keypoints], limit, objects)
        if self.polygons is not None:
            self._set_polygons(sample, moved[self.polygons], limit, objects)

    def _points(self, sample: Sample, name: str, op: str) -> np.ndarray:
        """The points of a field, float64, n x 2. A box is its two corners."""
        if name not in sample:
            raise OpError(f"{op} cannot move field {name!r}: the sample does not have it")
        try:
            value = np.asarray(sample[name])
        except (TypeError, ValueError, RuntimeError):  # lists of different lengths, a device's
            value = np.empty(0, np.object_)
        if value.dtype.kind not in "iuf":
            raise OpError(f"{op} cannot move field {name!r}: it is no array of numbers")
        sample[name] = value
        if value.size == 0:
            return np.empty((0, 2))
        shapes = {
            self.boxes: ("n x 4", value.ndim == 2 and value.shape[-1] == 4),
            self.keypoints: (
                "n x 2, n x 3, n x k x 2 or n x k x 3",
                value.ndim in (2, 3) and value.shape[-1] in (2, 3),
            ),
            self.polygons: ("n x k x 2", value.ndim == 3 and value.shape[-1] == 2),
        }
        wanted, good = shapes[name]
        if not good:
            raise OpError(
                f"{op} cannot move field {name!r} of shape {value.shape}: it is to be {wanted}"
            )
        points = value.astype(np.float64)
        if name == self.boxes:
            bad = ~((points[:, 2] >= points[:, 0]) & (points[:, 3] >= points[:, 1]))
            if bad.any():
                first = int(np.argmax(bad))
                raise OpError(
                    f"{op} cannot move field {name!r}: box {first} is {value[first].tolist()}, but "
                    "boxes are to be x1, y1, x2, y2 in pixels with x1 <= x2 and y1 <= y2"
                )
            return points.reshape(-1, 2)
        return points[..., :2].reshape(-1, 2)

    def _set_boxes(self, sample: Sample, points: np.ndarray, limit: tuple[int, int]) -> np.ndarray:
        """Returns bool, n: which boxes are left."""
        assert self.boxes is not None
        corners = points.reshape(-1, 2, 2)
        low = corners.min(axis=1).clip(0, limit)
        high = corners.max(axis=1).clip(0, limit)
        left = (high > low).all(axis=1)
        _put(sample, self.boxes, np.concatenate([low, high], axis=1)[left])
        return left

    def _set_followers(self, sample: Sample, left: np.ndarray, op: str) -> None:
        names = LABELS if self.follow is None else self.follow
        for name in self.follow or ():
            if name not in sample:
                raise OpError(f"{op}: the sample has no field {name!r}, which follow names")
        for name, value in list(sample.items()):
            if name in self.moved or not isinstance(value, (np.ndarray, list)):
                continue
            rows = len(value) if isinstance(value, list) or value.ndim else -1
            if name in names:
                if rows != len(left):
                    raise OpError(
                        f"{op}: field {name!r} has {max(rows, 0)} rows and field {self.boxes!r} "
                        f"{len(left)} boxes: fields in follow have a row for each box"
                    )
                if isinstance(value, list):
                    sample[name] = [each for each, keep in zip(value, left, strict=True) if keep]
                else:
                    _put(sample, name, value[left])
            elif (
                rows == len(left)
                and self.follow is None
                and not left.all()
                and not _picture(sample, name)
            ):
                raise OpError(
                    f"{op} drops boxes that lie outside, and field {name!r} has a row for each "
                    f"box, too: say follow = [{', '.join(f'{each!r}' for each in (*LABELS, name))}]"
                    ' if its rows go with the boxes, or follow = ["labels"] if they do not'
                )

    def _set_keypoints(
        self, sample: Sample, points: np.ndarray, limit: tuple[int, int], objects: Any
    ) -> None:
        assert self.keypoints is not None
        value = sample[self.keypoints]
        if value.size == 0:
            return
        out = value.astype(np.float64)
        out[..., :2] = points.reshape(*value.shape[:-1], 2)
        inside = ((out[..., :2] >= 0) & (out[..., :2] < limit)).all(axis=-1)
        if value.ndim == 2:
            out = out[inside]
        else:
            if value.shape[-1] == 3:
                out[~inside] = 0
            else:
                out = out.clip(0, limit)
            if objects is not None and len(objects) == len(out):
                out = out[objects]
        _put(sample, self.keypoints, out)

    def _set_polygons(
        self, sample: Sample, points: np.ndarray, limit: tuple[int, int], objects: Any
    ) -> None:
        assert self.polygons is not None
        value = sample[self.polygons]
        if value.size == 0:
            return
        out = points.reshape(value.shape).clip(0, limit)
        if objects is None or len(objects) != len(out):
            objects = (out.max(axis=1) > out.min(axis=1)).all(axis=1)
        _put(sample, self.polygons, out[objects])


def _picture(sample: Sample, name: str) -> bool:
    return name in sample.images or name in sample.planar or name in sample.encoded


def _put(sample: Sample, name: str, value: np.ndarray) -> None:
    """In the dtype that the field had; whole numbers are rounded."""
    before = sample[name].dtype
    if before.kind in "iu" and value.dtype.kind == "f":
        value = np.rint(value)
    sample[name] = np.ascontiguousarray(value, before)
    sample.fresh.add(name)
