"""A batch knows where it came from, also in a copy, and decodes its keys when first asked."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from loaderd_client.batch import DictBatch, TupleBatch, describe

INDICES = np.array([7, 3], "<i8").tobytes()


def made(keys: list[str] | None = None) -> tuple[DictBatch, list[int]]:
    """A batch with these keys, None for those of the indices; and a list that has an entry for each time they were decoded."""
    batch, decoded = DictBatch(y=[1, 2]), []

    def decode() -> list[str]:
        decoded.append(1)
        return keys or []

    describe(batch, 2, 5, 2, INDICES, decode if keys else None, ())
    return batch, decoded


def test_keys_of_its_own_are_decoded_once_and_not_before() -> None:
    batch, decoded = made(["a", "b"])
    assert decoded == []
    assert batch.sample_keys == ["a", "b"] == batch.sample_keys
    assert decoded == [1]


def test_without_keys_of_its_own_the_indices_are_the_keys() -> None:
    assert made()[0].sample_keys == ["7", "3"]


def test_indices_are_the_callers_own_to_write_into() -> None:
    batch, _ = made()
    batch.indices[0] = 100
    assert batch.indices.tolist() == [100, 3]
    assert batch._indices == INDICES


@pytest.mark.parametrize("copied", [copy.copy, lambda batch: pickle.loads(pickle.dumps(batch))], ids=["copied", "pickled"])
def test_a_copy_knows_the_same(copied: object) -> None:
    batch, _ = made(["a", "b"])
    again = copied(batch)  # type: ignore[operator]
    assert again == {"y": [1, 2]}
    assert (again.epoch, again.step, again.rows, again.errors) == (2, 5, 2, ())
    assert (again.indices.tolist(), again.sample_keys) == ([7, 3], ["a", "b"])


def test_what_a_framework_builds_anew_knows_nothing() -> None:
    for batch in (DictBatch(y=[1]), TupleBatch([1])):
        assert (batch.epoch, batch.step, batch.rows, batch.errors, batch.indices, batch.sample_keys) == (None,) * 6
