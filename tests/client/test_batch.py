"""A batch knows where it came from, also in a copy, and decodes its keys when first asked."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from loaderd_client.batch import Batch, DictBatch, TupleBatch, describe

INDICES = np.array([7, 3], "<i8").tobytes()


def made(keys: list[str] | None = None) -> tuple[DictBatch[Any], list[int]]:
    """A batch with these keys, None for those of the indices; and a list that has an entry for each
    time they were decoded.
    """
    batch: DictBatch[Any] = DictBatch(y=[1, 2])
    decoded: list[int] = []

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


@pytest.mark.parametrize(
    "copied",
    [copy.copy, lambda batch: pickle.loads(pickle.dumps(batch))],
    ids=["copied", "pickled"],
)
def test_a_copy_knows_the_same(copied: object) -> None:
    batch, _ = made(["a", "b"])
    again = copied(batch)  # type: ignore[operator]
    assert again == {"y": [1, 2]}
    assert (again.epoch, again.step, again.rows, again.errors) == (2, 5, 2, ())
    assert (again.indices.tolist(), again.sample_keys) == ([7, 3], ["a", "b"])


def test_what_a_framework_builds_anew_knows_nothing() -> None:
    for batch in (DictBatch(y=[1]), TupleBatch([1])):
        assert (
            batch.epoch,
            batch.step,
            batch.rows,
            batch.errors,
            batch.indices,
            batch.sample_keys,
        ) == (None,) * 6


def test_a_batch_of_either_kind_is_a_batch() -> None:
    assert isinstance(DictBatch(), Batch)
    assert isinstance(TupleBatch(), Batch)


def test_a_field_that_is_not_there_is_an_error_that_names_those_that_are() -> None:
    batch: DictBatch[Any] = DictBatch(image=1, label=2)
    with pytest.raises(KeyError, match="imge: this batch has the fields 'image', 'label'"):
        batch["imge"]
    assert batch.get("imge") is None
    assert "imge" not in batch


def test_a_batch_prints_as_one_line_a_field_and_no_numbers() -> None:
    batch: DictBatch[Any] = DictBatch(
        image=np.zeros((2, 8, 6, 3), "u1"),
        label=np.array([4, 5]),
        name=["a", b"b"],
        rest=[],
        other=7,
    )
    lines = [
        "  image  uint8                  (2, 8, 6, 3)",
        "  label  int64                  (2,)",
        "  name   list of bytes and str  (2,)",
        "  rest   list                   (0,)",
        "  other  int",
    ]
    assert repr(batch).splitlines() == ["DictBatch", *lines]
    describe(batch, 2, 5, 2, INDICES, None, ())
    assert str(batch).splitlines() == ["DictBatch: epoch 2, step 5, rows 2", *lines]


def test_a_tuple_batch_prints_with_its_places() -> None:
    assert repr(TupleBatch([np.zeros(3, "<f4"), ["a"]])).splitlines() == [
        "TupleBatch",
        "  0  float32      (3,)",
        "  1  list of str  (1,)",
    ]


def test_a_tensor_prints_with_its_dtype_and_with_its_device_where_that_is_not_the_cpu() -> None:
    import torch

    batch: DictBatch[Any] = DictBatch(
        a=torch.zeros(2, 3, dtype=torch.bfloat16), b=torch.zeros(2, device="meta")
    )
    assert repr(batch).splitlines()[1:] == ["  a  bfloat16  (2, 3)", "  b  float32   (2,) on meta"]
