"""What becomes of samples behind the last whole step of all ranks, as the trainers see it."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from loaderd_client import Loader, StreamChangedError
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_testing.fake_daemon import FakeDaemon, T, X, Y, epoch_indices, seen

Fake = Callable[..., FakeDaemon]
Load = Callable[..., Loader[Any]]


def ranks_of(load: Load, world_size: int, **options: Any) -> list[list[Any]]:
    """The batches of an epoch of each rank."""
    return [list(load(rank=rank, world_size=world_size, **options)) for rank in range(world_size)]


def test_a_short_tail_gives_every_sample_once(fake: Fake, load: Load) -> None:
    daemon = fake(samples=50, tail="short")
    ranks = ranks_of(load, 4, batch_size=4)  # three whole steps of 16 rows, and 2 rows
    assert [len(batches) for batches in ranks] == [4, 4, 3, 3]
    order = epoch_indices(0, daemon.rules)
    assert sorted(seen(itertools.chain(*ranks))) == sorted(order)
    assert [seen(batches[3:]) for batches in ranks] == [[order[48]], [order[49]], [], []]


def test_a_rank_without_rows_gets_an_empty_batch_where_the_stream_delivers_them(
    fake: Fake, load: Load
) -> None:
    fake(samples=50, tail="short", empty="deliver")
    ranks = ranks_of(load, 4, batch_size=4, output="torch")
    assert [[batch.rows for batch in batches] for batches in ranks] == [
        [4, 4, 4, 1],
        [4, 4, 4, 1],
        [4, 4, 4, 0],
        [4, 4, 4, 0],
    ]
    empty = ranks[3][3]
    assert (empty["x"].shape, empty["x"].dtype) == ((0, *X.shape), torch.uint8)
    assert (empty["y"].shape, empty["t"], empty.step) == ((0,), [], 3)


def test_states_of_all_ranks_are_equal_with_a_short_tail(fake: Fake, load: Load) -> None:
    fake(samples=50, tail="short", empty="deliver")
    loaders = [load(rank=rank, world_size=4, batch_size=4) for rank in range(4)]
    passes = [iter(loader) for loader in loaders]
    states: list[dict[str, Any]] = []
    for _ in range(4):
        for batches in passes:
            next(batches)
        states = [loader.state_dict() for loader in loaders]
        assert states == states[:1] * 4
    assert states[0]["position"] == 50


def test_a_state_behind_the_whole_steps_goes_on_with_the_short_tail(fake: Fake, load: Load) -> None:
    daemon = fake(samples=50, tail="short")
    first = load(rank=0, world_size=4, batch_size=4)
    assert len(list(itertools.islice(first, 3))) == 3
    rests = []
    for rank in range(4):
        loader = load(rank=rank, world_size=4, batch_size=4)
        loader.load_state_dict(first.state_dict())
        rests.append(seen(loader))
        assert loader.epoch == 1
    order = epoch_indices(0, daemon.rules)
    assert rests == [[order[48]], [order[49]], [], []]


def test_a_rank_that_has_no_sample_in_a_whole_epoch_is_told_so(
    fake: Fake, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    fake(samples=2, tail="short")
    with caplog.at_level(logging.WARNING, "loaderd_client"):
        ranks = ranks_of(load, 4, batch_size=4)
    assert [len(batches) for batches in ranks] == [1, 1, 0, 0]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert 'gave rank 2 no batch: it has 2 samples for 4 ranks, and tail = "short"' in lines[0]


def test_repeated_rows_are_marked(fake: Fake, load: Load) -> None:
    daemon = fake(samples=50)
    ranks = ranks_of(load, 4, batch_size=4, fields=["y", "__repeated__", "x", "t"])
    marked = [[batch["__repeated__"].tolist() for batch in batches] for batches in ranks]
    whole = [[False] * 4] * 3
    assert marked == [[*whole, [last]] for last in (False, False, True, True)]
    assert ranks[0][0]["__repeated__"].dtype == np.bool_
    counted = [
        int(index)
        for batch in itertools.chain(*ranks)
        for index in batch["y"][~batch["__repeated__"]]
    ]
    assert sorted(counted) == sorted(epoch_indices(0, daemon.rules))


def test_marks_are_tensors_where_tensors_are_asked_for(fake: Fake, load: Load) -> None:
    fake(samples=5)
    batch = next(iter(load(output="torch", fields=["__repeated__"], batch_size=4)))
    assert list(batch) == ["__repeated__"]
    assert batch["__repeated__"].dtype == torch.bool
    assert not batch["__repeated__"].any()


def test_a_daemon_that_comes_back_with_another_tail_is_refused(fake: Fake, load: Load) -> None:
    daemon = fake(specs=(X, Y, T))
    batches = iter(load(prefetch=1, timeout_s=DEADLINE_S))
    next(batches)
    daemon.rules.tail = "short"
    daemon.kill()
    with pytest.raises(StreamChangedError, match="tail was repeat, is short"):
        for _ in batches:
            pass
