"""Where code expects a DataLoader, a Loader has its attributes and is iterated over like one."""

from __future__ import annotations

import dataclasses
import inspect
import io
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from accelerate import skip_first_batches
from torch.utils.data import DataLoader
from tqdm import tqdm

from loaderd_client import ConfigError, Loader
from loaderd_client.options import LoaderOptions
from loaderd_testing.fake_daemon import FakeDaemon, epoch_indices, seen

Fake = Callable[..., FakeDaemon]
Load = Callable[..., Loader[Any]]


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("epoch", "set_epoch"),
        ("batch_size", "batch_size="),
        ("drop_last", "drop_last="),
        ("dataset", "dataset or lmdb"),
        ("sampler", "shuffle and split"),
        ("batch_sampler", "batch_size="),
        ("num_workers", "num_workers in the daemon's config"),
        ("collate_fn", "collate"),
        ("pin_memory", "pin_memory="),
        ("shuffle", "shuffle"),
        ("prefetch_factor", "prefetch="),
        ("seed", "seed="),
        ("classes", "the database"),
        *(
            (f.name, f.name if f.name != "source" else "socket or its config")
            for f in dataclasses.fields(LoaderOptions)
        ),
    ],
)
def test_what_is_assigned_to_a_loader_is_refused_with_where_it_is_set(
    load: Load, name: str, word: str
) -> None:
    loader = load()
    with pytest.raises(ConfigError, match=rf"loader\.{name} = 3: .*{word}"):
        setattr(loader, name, 3)


def test_what_is_assigned_to_its_dataset_or_sampler_is_no_more_lost(fake: Fake, load: Load) -> None:
    fake()
    loader: Any = load()
    for face in ("dataset", "sampler"):
        with pytest.raises(ConfigError, match=rf"loader\.{face}\.epoch = 3: use loader\.set_epoch"):
            getattr(loader, face).epoch = 3
    loader.note = "a framework's own"
    assert loader.note == "a framework's own"


def test_what_frameworks_read_of_a_dataloader_is_there(load: Load) -> None:
    loader = load()
    assert (loader.batch_sampler, loader.num_workers, loader.collate_fn, loader.pin_memory) == (
        None,
        0,
        None,
        False,
    )
    ours = {*vars(type(loader)), *dir(loader)}
    arguments = {*inspect.signature(DataLoader).parameters} - {"shuffle", "in_order"}
    assert arguments <= ours
    assert not isinstance(loader, DataLoader)


def test_a_framework_that_seeds_workers_without_a_function_of_their_own_leaves_a_loader_alone(
    load: Load,
) -> None:
    loader = load()
    if loader.worker_init_fn is None:  # as Lightning does after seed_everything(0, workers=True)
        loader.worker_init_fn = print
    loader.worker_init_fn(0)


def test_a_framework_that_makes_a_dataloader_of_a_loader_is_told_how_to_go_on_in_mid_epoch(
    fake: Fake, load: Load
) -> None:
    fake()
    with pytest.raises(ConfigError, match=r"skip_first_batches.*load_state_dict.*ignore_data_skip"):
        skip_first_batches(load(), 3)  # what a Trainer of transformers calls, too


def test_a_sample_of_its_dataset_is_refused_with_where_it_is(fake: Fake, load: Load) -> None:
    fake()
    dataset: Any = load().dataset
    with pytest.raises(ConfigError, match=r"loader\.dataset\[0\]: .*iterate over the Loader"):
        next(iter(DataLoader(dataset)))


@pytest.mark.parametrize("batch_size", [4, None])
def test_a_loader_in_a_dataloader_is_told_to_be_iterated_over_itself(
    fake: Fake, load: Load, batch_size: int | None
) -> None:
    fake()
    loader: Any = load()
    with pytest.raises(ConfigError, match=r"loader\[.*\]: .*iterate over the Loader itself"):
        next(iter(DataLoader(loader, batch_size=batch_size)))


def test_the_length_of_its_sampler_is_the_number_of_this_ranks_samples(
    fake: Fake, load: Load
) -> None:
    fake()
    loader = load(batch_size=4, rank=1, world_size=3)
    assert len(loader.sampler) == len(seen(loader)) == 17


def test_a_progress_bar_over_a_loader_knows_its_total(
    fake: Fake, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tqdm, "monitor_interval", 0)  # else its thread outlives the test
    fake()
    shown = io.StringIO()
    bar = tqdm(load(batch_size=5), file=shown)
    assert len(list(bar)) == bar.total == bar.n == 10
    assert "10/10" in shown.getvalue()


def test_a_slice_of_a_loader_is_the_begin_of_an_epoch_and_the_next_slice_is_of_the_next(
    fake: Fake, load: Load
) -> None:
    daemon = fake()
    loader = load(batch_size=5)
    for epoch in range(2):
        part = seen(itertools.islice(loader, 3))
        assert part == epoch_indices(epoch, daemon.rules)[:15]
        assert loader.epoch == epoch  # the pass is still open: nobody has left it


def test_one_iterator_goes_on_from_slice_to_slice(fake: Fake, load: Load) -> None:
    daemon = fake()
    batches = iter(load(batch_size=5))
    parts = [seen(itertools.islice(batches, 4)) for _ in range(3)]
    order = epoch_indices(0, daemon.rules)
    assert parts == [order[:20], order[20:40], order[40:]]


def test_enumerate_counts_the_steps(fake: Fake, load: Load) -> None:
    fake()
    assert [(i, batch.step) for i, batch in enumerate(load(batch_size=25))] == [(0, 0), (1, 1)]


def test_two_loaders_in_a_zip_give_pairs_of_the_same_step(fake: Fake, load: Load) -> None:
    fake()
    one, other = load(batch_size=5), load(batch_size=5)
    pairs = [(a.step, b.step) for a, b in zip(one, other, strict=True)]
    assert pairs == [(step, step) for step in range(10)]
    assert (one.epoch, other.epoch) == (1, 1)


def test_a_zip_that_ends_with_the_shorter_loader_leaves_both_usable(fake: Fake, load: Load) -> None:
    fake()
    short, long = load(batch_size=25), load(batch_size=5)
    assert len(list(zip(short, long, strict=False))) == 2
    assert [len(list(loader)) for loader in (short, long)] == [2, 10]
    assert (short.epoch, long.epoch) == (2, 2)


def test_a_cycle_repeats_the_batches_of_its_first_pass(fake: Fake, load: Load) -> None:
    """As it does with a DataLoader: itertools.cycle keeps what it has seen."""
    daemon = fake()
    batches = itertools.cycle(load(batch_size=25))
    got = seen(itertools.islice(batches, 5))
    epoch = epoch_indices(0, daemon.rules)
    assert got == [*epoch, *epoch, *epoch[:25]]


def cut_off(caplog: pytest.LogCaptureFixture) -> int:
    return sum("an iterator has ended before its epoch did" in line for line in caplog.messages)


def test_a_loader_in_a_zip_with_itself_gives_nothing_and_says_so(
    fake: Fake, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    fake()
    loader = load(batch_size=5)
    assert list(zip(loader, loader, strict=False)) == []
    assert cut_off(caplog) == 1
    assert len(list(loader)) == 10


def test_a_loop_inside_a_loop_over_one_loader_ends_the_outer_one_and_says_so_once(
    fake: Fake, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    fake()
    loader = load(batch_size=25)
    outer = iter(loader)
    assert [len(list(loader)) for _ in outer] == [2]
    assert list(outer) == []
    assert cut_off(caplog) == 1


def test_an_iterator_that_is_asked_after_its_end_or_was_left_says_nothing(
    fake: Fake, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    fake()
    loader = load(batch_size=25)
    over = iter(loader)
    assert len(list(over)) == len(over) == 2
    next(iter(loader))  # left
    assert len(list(loader)) == 2
    assert list(over) == []
    assert cut_off(caplog) == 0
