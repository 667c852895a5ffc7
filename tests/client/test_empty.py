"""Steps that lost all their rows under "skip": passed over, or delivered with zero rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from loaderd_client import Loader, StreamFailedError
from loaderd_testing.fake_daemon import PICTURE, FakeDaemon, T, X, Y, epoch_indices, seen

Fake = Callable[..., FakeDaemon]
Load = Callable[..., Loader[Any]]
FIRST = frozenset({7, 8, 9, 10})  # the first step of epoch 0
# steps 1 and 2, a row of step 8, and the last step
GAPS = frozenset({11, 12, 13, 14, 15, 16, 17, 18, 40, 5, 6})


def rest(daemon: FakeDaemon, epoch: int = 0) -> list[int]:
    return [index for index in epoch_indices(epoch, daemon.rules) if index not in daemon.rules.bad]


def test_a_step_that_lost_all_its_rows_is_passed_over_and_counted(fake: Fake, load: Load) -> None:
    daemon, loader = fake(bad=FIRST, on_error="skip"), load()
    batches = iter(loader)
    first = next(batches)
    assert (first.step, first.rows, first.errors) == (1, 4, ())
    assert loader.state_dict()["errors"] == {"rows": 8, "bad": 4}
    assert seen([first, *batches]) == rest(daemon)
    assert len(loader) == 13
    assert loader.stats()["batches"] == 12
    assert loader.stats()["passed_batches"] == 1


def test_single_rows_are_passed_over_one_by_one(fake: Fake, load: Load) -> None:
    daemon, loader = fake(bad=frozenset({7, 8, 20, 6}), on_error="skip", batch_size=1), load()
    assert seen(loader) == rest(daemon)
    assert seen(loader) == rest(daemon, 1)
    assert len(loader) == 50


@pytest.mark.parametrize("taken", range(11))
def test_a_run_that_is_resumed_at_any_batch_goes_on_as_the_one_that_was_not(
    fake: Fake, load: Load, taken: int
) -> None:
    daemon = fake(bad=GAPS, on_error="skip")
    first, second = load(), load()
    batches = iter(first)
    got = [next(batches) for _ in range(min(taken, 10))]
    if taken > 10:
        assert next(batches, None) is None
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    more = list(second)
    if taken <= 10:
        assert seen([*got, *more]) == rest(daemon)
        assert [batch.step for batch in (*got, *more)] == [0, *range(3, 12)]
    else:
        assert seen(more) == rest(daemon, 1)
    assert second.state_dict()["errors"] == {
        "rows": 50 if taken <= 10 else 100,
        "bad": 11 if taken <= 10 else 22,
    }


def test_errors_of_steps_that_are_passed_over_count_towards_max_errors(
    fake: Fake, load: Load
) -> None:
    fake(bad=GAPS, on_error="skip", max_errors=7)
    batches = iter(load())
    assert next(batches).step == 0
    with pytest.raises(StreamFailedError, match=r"8 bad samples.*max_errors = 7"):
        next(batches)


def test_an_epoch_of_bad_samples_alone_is_empty_with_one_warning(
    fake: Fake, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    fake(bad=frozenset(range(50)), on_error="skip")
    loader = load()
    assert list(loader) == []
    assert loader.state_dict()["epoch"] == 1
    (record,) = caplog.records
    assert "epoch 0 gave no batch: all 13 of its steps lost all their rows" in record.getMessage()
    assert "it is bad" in record.getMessage()


def test_an_epoch_of_bad_samples_alone_ends_by_max_errors(fake: Fake, load: Load) -> None:
    fake(bad=frozenset(range(50)), on_error="skip", max_errors=20)
    with pytest.raises(StreamFailedError, match="24 bad samples"):
        list(load())


def test_an_epoch_that_gave_a_batch_is_no_reason_to_warn(
    fake: Fake, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    fake(bad=frozenset(range(50)) - {30}, on_error="skip")
    assert [batch.rows for batch in load()] == [1]
    assert not caplog.records


@pytest.mark.parametrize("output", ["torch", "numpy"])
@pytest.mark.parametrize("as_tuple", [False, True])
def test_where_the_stream_says_so_it_is_delivered_with_zero_rows(
    fake: Fake, load: Load, output: str, as_tuple: bool
) -> None:
    fake(bad=FIRST, on_error="skip", empty="deliver", keys="stored", specs=(X, Y, T, PICTURE))
    fields = ("x", "y", "t", "image", "__index__", "__key__")
    loader = load(output=output, as_tuple=as_tuple, fields=fields)
    batches = list(loader)
    first = batches[0]
    x, y, t, image, index, key = first if as_tuple else [first[name] for name in fields]
    assert (first.rows, first.step, first.sample_keys, first.indices.tolist()) == (0, 0, [], [])
    assert [error.index for error in first.errors] == [7, 8, 9, 10]
    assert (t, key) == ([], [])
    assert tuple(x.shape) == (0, 64, 512)
    assert (tuple(y.shape), tuple(index.shape)) == ((0,), (0,))
    if output == "torch":
        assert (tuple(image.shape), x.dtype, y.dtype, index.dtype) == (
            (0, 3, 64, 170),
            torch.uint8,
            torch.int64,
            torch.int64,
        )
    else:
        assert (image.shape, x.dtype, y.dtype, index.dtype) == (
            (0, 64, 170, 3),
            np.uint8,
            np.int64,
            np.int64,
        )
    assert [batch.rows for batch in batches] == [0, *[4] * 11, 2]
    assert loader.stats()["passed_batches"] == 0


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_a_collated_batch_without_rows_has_the_fields_of_the_streams_first_one(
    fake: Fake, load: Load, output: str
) -> None:
    from loaderd_wire.slots import FieldSpec

    specs = (FieldSpec("x", "<i4", (3, 2)), FieldSpec("names", "", (), "text"))
    fake(bad=FIRST, on_error="skip", empty="deliver", collated=True, specs=specs)
    first: Any = next(iter(load(output=output)))
    assert first.rows == 0
    assert tuple(first["x"].shape) == (0, 3, 2)
    assert str(first["x"].dtype).endswith("int32")
    assert first["names"] == []
