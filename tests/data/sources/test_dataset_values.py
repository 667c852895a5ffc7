"""Another content of the same dataset, of equal length, is noticed; the same one never is."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from loaderd.data.errors import SourceError
from loaderd.data.sources.dataset_values import of_samples, of_tables, own_fingerprint
from loaderd.data.sources.source import Source
from loaderd_testing.sample_builders import dataset_plan


class Listed:
    """A dataset that holds whatever it is given."""

    def __init__(self, total: int = 100, **held: Any) -> None:
        self.total = total
        self.__dict__.update(held)

    def __len__(self) -> int:
        return self.total

    def __getitem__(self, index: int) -> int:
        raise AssertionError("no sample is made")


def rows(folder: Path, order: list[int]) -> list[list[str]]:
    """The rows of a CSV with these lines in this order, as the usual dataset reads them."""
    path = folder / "labels.csv"
    path.write_text("".join(f"{i}.jpg,{i % 10}\n" for i in order))
    with open(path, encoding="utf-8") as file:
        return list(csv.reader(file))


def test_a_reordered_csv_has_other_values(tmp_path: Path) -> None:
    order = list(range(100))
    first = of_tables(Listed(rows=rows(tmp_path, order)), 100)
    assert first == of_tables(Listed(rows=rows(tmp_path, order)), 100)
    random.Random(1).shuffle(order)
    assert first != of_tables(Listed(rows=rows(tmp_path, order)), 100)


@pytest.mark.parametrize(
    "table",
    [
        list(range(100)),
        tuple(f"{i}.jpg" for i in range(100)),
        [Path(f"{i}.jpg") for i in range(100)],
        [{"file": f"{i}.jpg", "boxes": [[0, i]]} for i in range(100)],
        np.arange(200).reshape(100, 2),
        torch.arange(100),
        pandas.DataFrame({"file": [f"{i}.jpg" for i in range(100)], "label": range(100)}),
        pandas.Series(range(100)),
    ],
)
def test_tables_of_all_kinds_are_looked_at(table: Any) -> None:
    order = [*range(1, 100), 0]
    turned = table.iloc[order] if hasattr(table, "iloc") else (
        table[order] if hasattr(table, "ndim") else [table[i] for i in order]
    )  # fmt: skip
    said = of_tables(Listed(table=table), 100)
    assert said != ""
    assert said == of_tables(Listed(table=table), 100)
    assert said != of_tables(Listed(table=turned), 100)


def test_the_same_data_in_another_folder_has_the_same_values() -> None:
    here, there = (
        of_tables(Listed(paths=[f"{root}/cat/{i}.jpg" for i in range(100)]), 100)
        for root in ("/data/photos", "/scratch/job-17")
    )
    assert here == there


def test_what_is_no_table_says_nothing() -> None:
    held = {
        "transform": object(),
        "names": ["a", "b"],
        "objects": [object()] * 100,
        "root": "/data",
    }
    assert of_tables(Listed(**held), 100) == ""
    assert of_tables(object(), 5) == ""


def test_datasets_inside_are_looked_at() -> None:
    base = TensorDataset(torch.arange(100))
    some = Subset(base, [3, 1, 2])
    assert of_tables(some, 3) != of_tables(Subset(base, [3, 2, 1]), 3)
    other = TensorDataset(torch.arange(100).flip(0))
    assert of_tables(some, 3) != of_tables(Subset(other, [3, 1, 2]), 3)
    joined = ConcatDataset([base, other])
    assert of_tables(joined, 200) != of_tables(ConcatDataset([other, base]), 200)


def test_a_table_that_cannot_be_read_is_left_out() -> None:
    class Broken(np.ndarray):
        def __getitem__(self, index: Any) -> Any:
            raise OSError("gone")

    broken = np.zeros(100).view(Broken)
    assert of_tables(Listed(a=broken, b=list(range(100))), 100) == of_tables(
        Listed(b=list(range(100))), 100
    )


def test_a_dataset_may_say_its_fingerprint_itself() -> None:
    class Said(Listed):
        def fingerprint(self) -> str:
            return f"version {self.version}"  # type: ignore[attr-defined]

    assert own_fingerprint(Said(version=1)) == own_fingerprint(Said(version=1)) != ""
    assert own_fingerprint(Said(version=1)) != own_fingerprint(Said(version=2))
    assert own_fingerprint(Listed(__fingerprint__="abc")) != ""
    assert own_fingerprint(Listed()) == ""


def test_a_fingerprint_of_a_sample_is_none_of_the_dataset() -> None:
    class Molecules(Listed):
        def fingerprint(self, index: int) -> str:
            raise AssertionError

    assert own_fingerprint(Molecules()) == ""
    assert own_fingerprint(Listed(fingerprint=np.zeros(3))) == ""


def test_a_fingerprint_that_fails_is_told_with_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(
        SourceError, match="its fingerprint failed: ValueError: no manifest"
    ) as caught:
        Source(dataset_plan("Unprinted"))
    assert "no manifest" in caught.value.traceback


# samples


def test_samples_tell_labels_and_texts_and_no_pictures_and_nothing_random() -> None:
    def sample(label: int, pixel: int = 0) -> Any:
        def make(seed: int, index: int) -> Any:
            crop = np.random.default_rng((seed, index)).random(3)
            picture = np.full((2, 2, 3), pixel, np.uint8)
            return {"label": label + index, "crop": crop, "image": picture, "more": [("a", 1.5)]}

        return make

    said = of_samples(sample(1), range(4))
    assert said == of_samples(sample(1, pixel=9), range(4)) != ""
    assert said != of_samples(sample(2), range(4))


def test_samples_that_are_all_random_say_nothing() -> None:
    assert of_samples(lambda seed, index: np.full(3, seed), range(4)) == ""
    assert of_samples(lambda seed, index: object(), range(4)) == ""


def test_a_sample_that_cannot_be_made_is_a_part_of_what_there_is() -> None:
    def make(seed: int, index: int) -> int:
        if index == 2:
            raise ValueError(index)
        return index

    assert of_samples(make, range(4)) == of_samples(make, range(4)) != ""
