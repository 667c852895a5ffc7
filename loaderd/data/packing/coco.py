"""COCO: images, and boxes of objects from a JSON file. A sample has as many boxes as it has."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgpack
import numpy as np

from loaderd.data.errors import SourceError
from loaderd.data.packing.fields import chosen
from loaderd.data.packing.files import fingerprint_of, read_file
from loaderd.data.packing.source import PackItem, SourceOptions
from loaderd.data.packing.spool import Spool
from loaderd.data.sample import BadValue, Sample
from loaderd_wire.packing import packed

Table = dict[str, Any]


class CocoSource:
    """The images of an annotation file.

    Fields: `image`; `image_id`; `boxes`, n x 4: x1, y1, x2, y2 in pixels; `labels`, the numbers of
    `classes`; `area`; `iscrowd`; `keypoints`, n x k x 3, where the file has them.
    """

    kind = "coco"
    named = True
    form = "dict"
    unreadable: tuple[tuple[str, str], ...] = ()

    def __init__(self, path: str, spool_folder: str, said: SourceOptions) -> None:
        """Read the annotations.

        Raises:
            SourceError: They are none, or the folder of the images is not to be found.
            WriteFault: The temporary files cannot be written.
        """
        self._path = os.path.abspath(path)
        self._fields = said.fields
        table = _table(self._path)
        images = _rows(self._path, table, "images")
        categories = sorted(_rows(self._path, table, "categories"), key=lambda row: row["id"])
        self.classes = tuple(str(row.get("name", row["id"])) for row in categories)
        self._labels = {row["id"]: number for number, row in enumerate(categories)}
        self._folder = self._images_folder(images, said.args)
        self.fingerprint = fingerprint_of([self._path], self._folder, said.fields)
        self.notes = [
            f"labels are 0 to {len(self.classes) - 1}, by the category ids in their order"
        ]
        self._spool = Spool(spool_folder)
        try:
            self._keep(images, _rows(self._path, table, "annotations"))
            self._spool.seal()
        except BaseException:
            self._spool.close()
            raise
        self.total = len(self._spool)

    def __enter__(self) -> CocoSource:
        return self

    def __exit__(self, *exc: object) -> None:
        self._spool.close()

    def _images_folder(self, images: list[Table], args: Mapping[str, Any]) -> str:
        unknown = [word for word in args if word != "images"]
        if unknown:
            raise SourceError(
                f'--args: unknown word {unknown[0]!r}; there is {{"images": "FOLDER"}}'
            )
        if "images" in args:
            if not os.path.isdir(str(args["images"])):
                raise SourceError(f"--args: images = {args['images']!r} is not a folder")
            return os.path.abspath(str(args["images"]))
        folder = os.path.dirname(self._path)
        above = os.path.dirname(folder)
        part = os.path.splitext(os.path.basename(self._path))[0].rpartition("_")[2]
        places = [
            os.path.join(place, name)
            for place in (above, folder)
            for name in (part, os.path.join("images", part), "images", "")
        ]
        first = [str(row.get("file_name", "")) for row in images[:20]]
        for place in places:
            if any(os.path.isfile(os.path.join(place, name)) for name in first):
                return place
        raise SourceError(
            f"{self._path}: its images, such as {first[0]}, are neither in {places[0]} nor in "
            f'{places[2]}: say where with --args \'{{"images": "FOLDER"}}\''
        )

    def _keep(self, images: list[Table], annotations: list[Table]) -> None:
        """Spool each image with its annotations."""
        ids = {row["id"] for row in images}
        of: dict[Any, list[Any]] = {}
        lost = 0
        keypoints = bool(annotations) and all("keypoints" in row for row in annotations)
        for row in annotations:
            if row.get("image_id") not in ids:
                lost += 1
                continue
            words = [row.get(word) for word in ("bbox", "category_id", "area", "iscrowd")]
            points = [row["keypoints"]] if keypoints else []
            of.setdefault(row["image_id"], []).append(words + points)
        if lost:
            self.notes.append(f"{lost:,} annotations are of images that the file does not have")
        for row in images:
            self._spool.append(
                packed([row.get("file_name"), row["id"], keypoints, of.get(row["id"], [])])
            )

    def item(self, index: int) -> PackItem:
        """Named by its file_name, or by its index where it has none."""
        name, number, keypoints, rows = msgpack.unpackb(self._spool[index], use_list=False)
        shown = os.fsencode(name) if isinstance(name, str) else b"image %d" % index
        return PackItem(shown, partial(self._read, name, number, keypoints, rows))

    def _read(self, name: Any, number: Any, keypoints: bool, rows: Any) -> Sample:
        if not isinstance(name, str) or type(number) is not int:
            raise BadValue("it has no file_name and id")
        data = read_file(os.path.join(self._folder, name))
        sample = Sample({"image": data, "image_id": np.array(number, np.int64)}, encoded=("image",))
        boxes = _numbers([row[0] for row in rows], np.float64, (4,), "bbox")
        boxes[:, 2:] += boxes[:, :2]
        sample["boxes"] = boxes.astype(np.float32)
        unknown = [row[1] for row in rows if row[1] not in self._labels]
        if unknown:
            raise BadValue(f"an annotation has category_id {unknown[0]!r}, which the file has not")
        sample["labels"] = np.array([self._labels[row[1]] for row in rows], np.int64)
        area = [boxes[at, 2:] - boxes[at, :2] for at in range(len(rows))]
        areas = [row[2] if row[2] is not None else area[at].prod() for at, row in enumerate(rows)]
        sample["area"] = _numbers(areas, np.float32, (), "area")
        sample["iscrowd"] = _numbers([row[3] or 0 for row in rows], np.uint8, (), "iscrowd")
        if keypoints:
            sample["keypoints"] = _numbers(
                [row[4] for row in rows], np.float32, (-1, 3), "keypoints"
            )
        return chosen(sample, self._fields)


def _numbers(values: list[Any], dtype: Any, shape: tuple[int, ...], what: str) -> np.ndarray:
    """Rows of numbers as an array. Raises BadValue that says of what."""
    if not values:
        return np.zeros((0, *(max(0, size) for size in shape)), dtype)
    try:
        return np.array(values, dtype).reshape(len(values), *shape)
    except (ValueError, TypeError, OverflowError) as error:
        raise BadValue(f"an annotation has a {what} that cannot be: {error}") from None


def _table(path: str) -> Table:
    """The file's object. Raises SourceError."""
    try:
        with open(path, "rb") as file:
            table = json.load(file)
    except OSError as error:
        raise SourceError(
            f"{path}: {error.strerror}; give a file of annotations, such as "
            "annotations/instances_train2017.json"
        ) from None
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: is not JSON: {error}") from None
    if not isinstance(table, dict):
        raise SourceError(f"{path}: is not a file of COCO: it is a {type(table).__name__}")
    return table


def _rows(path: str, table: Table, what: str) -> list[Table]:
    """A list of the file. Raises SourceError."""
    rows = table.get(what)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise SourceError(f"{path}: is not a file of COCO: it has no list of {what}")
    if what != "annotations":
        if not rows:
            raise SourceError(f"{path}: has no {what}")
        ids = [row.get("id") for row in rows]
        if any(type(each) is not int for each in ids) or len(set(ids)) < len(ids):
            raise SourceError(f"{path}: not all of its {what} have an id of their own")
    return rows
