from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from loaderd.data.sample import BadValue
from loaderd.data.whole_sample import as_returned, numbers_in, top_fields, top_values


def test_only_the_top_of_a_sample_becomes_fields() -> None:
    nested, none, thing = {"a": [1]}, None, object()
    sample, form = top_fields({"n": 3, "d": nested, "none": none, "o": thing, "t": "text"}, "rgb")
    assert form == "dict"
    assert (sample["n"].dtype, int(sample["n"]), sample["t"]) == (np.dtype(np.int64), 3, "text")
    assert sample["d"] is nested
    assert sample["o"] is thing
    assert sample["none"] is None


def test_tensors_and_pictures_at_the_top_are_arrays() -> None:
    sample, form = top_fields((torch.ones(2), Image.new("RGB", (4, 3))), "rgb")
    assert form == "tuple"
    assert (sample["0"].tolist(), sample["1"].shape, sample.images) == ([1, 1], (3, 4, 3), {"1"})


def test_a_mask_that_would_lose_its_palette_is_no_field() -> None:
    with pytest.raises(BadValue, match="numbers"):
        top_fields({"mask": Image.new("P", (4, 3))}, "rgb")


def test_two_keys_that_read_alike_are_refused() -> None:
    with pytest.raises(BadValue, match="two fields are called '1'"):
        top_fields({1: "a", "1": "b"}, "rgb")


@pytest.mark.parametrize("value", [{"a": 1, "b": [2]}, ([1], "x"), "text", None])
def test_a_sample_goes_back_into_its_own_form(value: Any) -> None:
    fields, form = top_values(value), top_fields(value, "rgb")[1]
    assert as_returned(fields, form) == value


def test_a_sample_whose_names_have_changed_is_a_dict() -> None:
    assert as_returned({"0": 1, "x": 2}, "tuple") == {"0": 1, "x": 2}
    assert as_returned({"x": 2}, "single") == {"x": 2}


def test_numbers_are_found_in_containers_of_any_kind() -> None:
    value = {"a": [1.5, (torch.ones(2, dtype=torch.bfloat16), "x")], "b": np.zeros(3), "n": 4}
    found = {name: array.size for name, array in numbers_in(value)}
    assert found == {"a.0": 1, "a.1.0": 2, "b": 3}


def test_a_container_that_holds_itself_comes_to_an_end() -> None:
    endless: list[Any] = [1.0]
    endless.append(endless)
    assert len(list(numbers_in(endless))) < 100
