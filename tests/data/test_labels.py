"""Labels: which field they are, and what they become under the classes of another stream."""

from __future__ import annotations

import numpy as np
import pytest

from loaderd.data.errors import SourceError
from loaderd.data.labels import LabelMap, label_field
from loaderd.data.sample import BadValue, Sample


def mapped(label: object, own: str = "ac", given: str = "abc", name: str = "label") -> Sample:
    made = LabelMap(tuple(own), tuple(given), "val.lmdb", "train.lmdb")
    made.map(Sample({name: np.int64(0)}))
    return made.map(Sample({"x": np.zeros(3), name: label}))


def test_label_becomes_the_number_of_the_class_with_its_name() -> None:
    assert [int(mapped(np.int64(n))["label"]) for n in (0, 1)] == [0, 2]
    assert mapped(np.int64(1), own="cba")["label"] == 1
    assert mapped(np.int64(1), name="y")["y"] == 2


def test_label_keeps_its_dtype_where_that_holds_every_class() -> None:
    made = mapped(np.uint8(1))
    assert made["label"].dtype == np.uint8
    assert made["label"].flags.writeable
    many = tuple(map(str, range(300)))
    wide = LabelMap(("299", "0"), many, "v", "t").map(Sample({"label": np.uint8(1)}))
    assert (wide["label"].dtype, int(wide["label"])) == (np.int64, 0)


@pytest.mark.parametrize(
    ("label", "text"),
    [
        (np.int64(2), "field 'label' is 2, and there are 2 classes"),
        (np.int64(-1), "field 'label' is -1"),
        (np.float32(1), "field 'label' is not the number of a class"),
        (np.zeros(2, np.int64), "field 'label' is not the number of a class"),
    ],
)
def test_value_that_is_no_class_is_a_bad_sample(label: object, text: str) -> None:
    with pytest.raises(BadValue, match=text):
        mapped(label)


def test_class_that_the_other_list_lacks_is_named_with_the_nearest() -> None:
    with pytest.raises(SourceError) as caught:
        LabelMap(("cat", "dgo"), ("cat", "dog"), "val.lmdb", "train.lmdb")
    assert str(caught.value) == (
        "val.lmdb: class 'dgo' (label 1) is not one of the 2 classes of train.lmdb; did you mean "
        "'dog'?"
    )


def test_dataset_without_class_names_cannot_be_mapped() -> None:
    with pytest.raises(SourceError, match=r"val\.lmdb: has no class names"):
        LabelMap((), ("a",), "val.lmdb", "train.lmdb")


def test_label_is_the_field_of_that_name_or_the_only_whole_number() -> None:
    assert label_field({"n": np.int64(1), "label": np.float32(1)}) == "label"
    assert label_field({"x": np.zeros(2, np.int64), "y": np.int32(1), "z": "t"}) == "y"
    with pytest.raises(BadValue, match="several are whole numbers: 'a' and 'b'"):
        label_field({"a": np.int64(1), "b": np.uint8(1)})
    with pytest.raises(BadValue, match="none is a whole number: 'a'"):
        label_field({"a": np.float64(1)})
