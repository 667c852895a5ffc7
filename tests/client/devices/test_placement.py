"""Batches on a device: right bytes however late it copies, in order, once each, and errors in time."""

from __future__ import annotations

import copy
import logging
import mmap
import os
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import loaderd_client
from loaderd_client import ConfigError, Loader, SampleError
from loaderd_client.devices import page_locks, placement
from loaderd_testing.fake_daemon import PICTURE, FakeDaemon, T, X, Y, epoch_indices, seen, until
from loaderd_testing.late_device import LateDevice, LateMark
from loaderd_wire.slots import FieldSpec

Fake = Callable[..., FakeDaemon]
Load = Callable[..., Loader[Any]]


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> LateDevice:
    """What device="cuda" finds."""
    device = LateDevice()
    monkeypatch.setitem(placement.FINDERS, "cuda", lambda name: device)
    monkeypatch.setattr(page_locks, "_failed", set())
    return device


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("ahead", [1, 3])
def test_each_batch_comes_once_in_order_with_its_own_bytes_however_late_it_is_copied(
    fake: Fake, load: Load, late: LateDevice, seed: int, ahead: int
) -> None:
    late.__init__(seed, chance=0.15)
    daemon = fake(samples=90)
    loader = load(output="torch", device="cuda", device_prefetch=ahead, prefetch=2)
    kept = [batch for _ in range(2) for batch in loader]
    late.finish()
    assert seen(kept) == epoch_indices(0, daemon.rules) + epoch_indices(1, daemon.rules)
    assert late.handed == len(kept)
    assert loader.stats()["copied_batches"] == 0


@pytest.mark.parametrize("asked", [{"device": "cuda", "device_prefetch": 2}, {"pin_memory": True}])
def test_shared_batches_are_copied_on_the_host_and_their_segment_is_never_page_locked(
    fake: Fake, load: Load, late: LateDevice, asked: dict[str, Any]
) -> None:
    late.__init__(1, chance=0.15)
    daemon = fake(samples=60, group_slots=3, specs=(X, Y, T, PICTURE))
    loader = load(output="torch", shared=True, prefetch=4, **asked)
    kept = list(loader)
    assert late.locked == []
    late.finish()
    assert seen(kept) == epoch_indices(0, daemon.rules)
    for batch in kept:
        assert batch["image"].shape[1:] == (3, 64, 170)
        assert batch["image"][:, 0, 0, 0].tolist() == [i % 251 for i in batch.indices]


def test_a_lease_that_ends_before_the_copy_is_seen_as_torn_bytes(
    fake: Fake, load: Load, late: LateDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LateMark, "done", lambda mark: True)
    late.__init__(0, chance=0.0)
    fake(samples=90)
    kept = list(load(output="torch", device="cuda", prefetch=2))
    late.finish()
    with pytest.raises(AssertionError):
        seen(kept)


def test_texts_stay_on_the_host_and_numbers_of_every_kind_go_to_the_device(
    fake: Fake, load: Load, late: LateDevice
) -> None:
    fake(samples=8)
    fields = ["x", "y", "t", "__index__", "__key__", "__repeated__"]
    (first, *_) = kept = list(load(output="torch", device="cuda", fields=fields))
    late.finish()
    assert [type(first[name]) for name in fields] == [torch.Tensor] * 2 + [list, torch.Tensor] + [
        list,
        torch.Tensor,
    ]
    assert [row for batch in kept for row in batch["__index__"].tolist()] == [
        int(key) for batch in kept for key in batch["__key__"]
    ]
    assert late.own.queued == 4 * len(kept)


def test_the_state_counts_what_was_handed_out_and_not_what_is_ahead_on_the_device(
    fake: Fake, load: Load, late: LateDevice
) -> None:
    daemon = fake()
    expected = epoch_indices(0, daemon.rules)
    for steps in (1, 2, 5):
        loader = load(output="torch", device="cuda", device_prefetch=3)
        batches = iter(loader)
        begun = [next(batches) for _ in range(steps)]
        state = loader.state_dict()
        loader.close()
        second = load(output="torch", device="cuda")
        second.load_state_dict(state)
        begun += list(second)
        late.finish()
        assert seen(begun) == expected


def test_a_new_epoch_begins_at_its_first_batch_whatever_was_ahead(
    fake: Fake, load: Load, late: LateDevice
) -> None:
    daemon = fake()
    loader = load(output="torch", device="cuda", device_prefetch=3)
    left = next(iter(loader))
    loader.set_epoch(5)
    whole = list(loader)
    late.finish()
    assert seen([left]) == epoch_indices(0, daemon.rules)[:4]
    assert seen(whole) == epoch_indices(5, daemon.rules)


def test_a_bad_sample_is_raised_at_its_own_step_and_its_neighbours_arrive(
    fake: Fake, load: Load, late: LateDevice
) -> None:
    daemon = fake(samples=24)
    order = epoch_indices(0, daemon.rules)
    daemon.rules.bad = frozenset({order[9]})
    loader = load(output="torch", device="cuda", device_prefetch=4)
    batches, kept, raised = iter(loader), [], []
    for step in range(6):
        try:
            kept.append(next(batches))
        except SampleError as error:
            raised.append((step, error.index))
    late.finish()
    assert raised == [(2, order[9])]
    assert seen(kept) == order[:8] + order[12:]


def test_too_many_bad_samples_end_the_run_behind_the_batches_before_them(
    fake: Fake, load: Load, late: LateDevice
) -> None:
    daemon = fake(samples=24, on_error="skip", max_errors=2)
    order = epoch_indices(0, daemon.rules)
    daemon.rules.bad = frozenset(order[9:12])
    loader = load(output="torch", device="cuda", device_prefetch=4)
    batches = iter(loader)
    kept = [next(batches), next(batches)]
    for _ in range(2):
        with pytest.raises(loaderd_client.StreamFailedError):
            next(batches)
    late.finish()
    assert seen(kept) == order[:8]


def test_a_daemon_that_dies_under_copies_costs_nothing(
    fake: Fake, load: Load, late: LateDevice
) -> None:
    daemon = fake(samples=60)
    loader = load(output="torch", device="cuda", device_prefetch=2)
    kept = []
    for batch in loader:
        kept.append(batch)
        if len(kept) in (3, 8):
            daemon.kill()
    late.finish()
    assert seen(kept) == epoch_indices(0, daemon.rules)


def test_every_segment_is_unlocked_once_its_copies_are_done(
    fake: Fake, load: Load, late: LateDevice
) -> None:
    daemon = fake(samples=60, grow_at=5)
    loader = load(output="torch", device="cuda")
    kept = []
    for batch in loader:
        kept.append(batch)
        assert len(late.locked) <= 3
        if len(kept) == 8:
            daemon.kill()
    loader.close()
    assert late.locked == []
    late.finish()
    assert seen(kept) == epoch_indices(0, daemon.rules)


def test_nothing_is_waited_for_once_a_segment_has_been_unlocked(
    fake: Fake, load: Load, late: LateDevice
) -> None:
    fake(samples=60, grow_at=5)
    loader = load(output="torch", device="cuda")
    for _ in loader:
        late.finish()
    session = loader._delivery._current.session
    assert session is not None
    session._memory.settle()
    assert len(late.locked) == 1
    assert not session._memory.busy


def test_a_segment_is_unlocked_while_no_batch_of_its_successor_has_come(late: LateDevice) -> None:
    locks = page_locks.PageLocks(late)
    old = SimpleNamespace(segment=SimpleNamespace(segment=1), mapping=mmap.mmap(-1, 4096))
    locks.lock(old)  # type: ignore[arg-type] - as much of a segment as it asks for
    locks.unlock({1})
    assert len(late.locked) == 1
    locks.unlock({2})
    assert late.locked == []


def test_a_loader_that_is_never_closed_leaves_its_page_locks_to_the_next_call_of_another(
    fake: Fake, load: Load, late: LateDevice
) -> None:
    fake()
    loader = load(output="torch", device="cuda")
    next(iter(loader))
    late.finish()
    loader._delivery._current.drop()  # as the finalizer does
    assert len(late.locked) == 1
    for _ in load(output="torch", device="cuda"):
        late.finish()
    assert len(late.locked) == 1


def test_memory_that_cannot_be_page_locked_is_told_once_and_copied_from_all_the_same(
    fake: Fake, load: Load, late: LateDevice, caplog: pytest.LogCaptureFixture
) -> None:
    late.refuses = "error 2"
    daemon = fake()
    with caplog.at_level(logging.WARNING):
        kept = [
            batch for _ in range(2) for batch in load(output="torch", device="cuda", batch_size=4)
        ]
    late.finish()
    assert seen(kept) == 2 * epoch_indices(0, daemon.rules)
    assert [r.getMessage() for r in caplog.records] == [
        "loaderd: batches cannot be page-locked for cuda:0 (error 2): they are copied from "
        "pageable memory, which is slower"
    ]


def test_stats_count_the_copies_of_the_device(fake: Fake, load: Load, late: LateDevice) -> None:
    fake(samples=40)
    loader = load(output="torch", device="cuda")
    for _ in range(2):  # a copy is counted at a later one
        for _ in loader:
            late.finish()
    stats = loader.stats()
    assert stats["device_bytes"] >= 10 * 4 * 64 * 512
    assert stats["device_gb_per_s"] == pytest.approx(
        stats["device_bytes"] / stats["device_copy_s"] / 1e9
    )


# Page-locked host memory


def copied(device: LateDevice, batch: Any, stream: Any = None) -> Any:
    """What a trainer has of a batch that it copies by itself."""
    made = type(batch)(batch)
    made["x"] = device.copy_from(batch["x"], stream)
    made.__dict__["indices"] = batch.indices
    return made


@pytest.mark.parametrize("seed", range(4))
def test_a_copy_on_the_current_stream_is_done_before_its_slot_goes_back(
    fake: Fake, load: Load, late: LateDevice, seed: int
) -> None:
    daemon = fake(samples=90)
    late.__init__(seed, chance=0.15)
    kept = [copied(late, b) for b in load(output="torch", pin_memory=True, prefetch=2)]
    late.finish()
    assert seen(kept) == epoch_indices(0, daemon.rules)


def test_a_copy_on_another_stream_is_done_before_its_slot_goes_back_where_it_is_recorded(
    fake: Fake, load: Load, late: LateDevice
) -> None:
    daemon = fake(samples=90)
    late.__init__(1, chance=0.15)
    kept = []
    for batch in load(output="torch", pin_memory=True, prefetch=2):
        kept.append(copied(late, batch, late.own))
        batch.record_stream(late.own)
    late.finish()
    assert seen(kept) == epoch_indices(0, daemon.rules)


def test_no_slot_goes_back_and_nothing_is_asked_while_a_graph_is_captured(
    fake: Fake, load: Load, late: LateDevice
) -> None:
    daemon = fake(samples=24)
    kept = []
    for step, batch in enumerate(load(output="torch", pin_memory=True, prefetch=4)):
        kept.append(copied(late, batch))
        late.graph = step in (1, 2)
    late.finish()
    assert seen(kept) == epoch_indices(0, daemon.rules)


def test_a_batch_that_outlives_its_loader_keeps_its_page_lock_until_it_is_dropped(
    fake: Fake, load: Load, late: LateDevice
) -> None:
    fake()
    loader = load(output="torch", pin_memory=True)
    batch = next(iter(loader))
    loader.close()
    assert len(late.locked) == 1
    before = batch["x"].clone()
    assert torch.equal(batch["x"], before)
    del batch
    late.finish()
    page_locks.sweep()
    until("the lock to end", lambda: page_locks.sweep() or late.locked == [])


def test_a_forked_child_unlocks_nothing(fake: Fake, load: Load, late: LateDevice) -> None:
    fake()
    loader, other = load(output="torch", device="cuda"), load(output="torch", device="cuda")
    next(iter(loader))
    next(iter(other))
    late.finish()
    other._delivery._current.drop()
    child = os.fork()
    if child == 0:
        locked = len(late.locked)
        loader.close()
        page_locks.sweep(wait_s=1.0)
        os._exit(0 if len(late.locked) == locked == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    loader.close()
    assert late.locked == []


def test_pin_memory_without_a_gpu_is_one_warning_and_ordinary_batches(
    fake: Fake, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = fake()
    loader = load(output="torch", pin_memory=True)
    with caplog.at_level(logging.WARNING):
        assert seen(loader) == epoch_indices(0, daemon.rules)
        seen(loader)
    assert [r.getMessage() for r in caplog.records] == [
        "loaderd: pin_memory=True does nothing here: torch finds no GPU"
    ]
    assert loader.pin_memory


# A device whose copies are over when they return


def test_images_are_normalized_and_converted_on_the_device_and_masks_are_not(
    fake: Fake, load: Load
) -> None:
    mask = FieldSpec("mask", "|u1", (64, 170, 1), image=True)
    fake(specs=(PICTURE, mask, Y, T))
    plain = [{name: batch[name] for name in batch} for batch in load(output="torch")]
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    loader = load(
        output="torch",
        device="cpu",
        normalize={"mean": mean, "std": std},
        dtype=torch.bfloat16,
    )
    for batch, before in zip(loader, plain, strict=True):
        expected = loaderd_client.normalize(before["image"], mean, std).to(torch.bfloat16)
        assert torch.equal(batch["image"], expected)
        assert batch["image"].is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(batch["mask"], before["mask"])
        assert torch.equal(batch["y"], before["y"])


def test_dtype_alone_keeps_the_numbers_of_images(fake: Fake, load: Load) -> None:
    fake(specs=(PICTURE, Y, T), samples=4)
    (before,) = load(output="torch")
    (batch,) = load(output="torch", dtype="float16")
    assert batch["image"].dtype == torch.float16
    assert torch.equal(batch["image"], before["image"].to(torch.float16))


@pytest.mark.parametrize(
    ("normalize", "words"),
    [
        ({"mean": [0.5], "std": [0.5]}, "field 'image' has 3 channels"),
        ({"mean": [0.5] * 3, "std": [0.5] * 3, "fields": ["y"]}, "field 'y' has no uint8 images"),
    ],
)
def test_what_cannot_be_normalized_is_refused_by_name(
    fake: Fake, load: Load, normalize: Any, words: str
) -> None:
    fake(specs=(PICTURE, Y, T))
    with pytest.raises(ConfigError, match=words):
        next(iter(load(output="torch", normalize=normalize)))


def test_a_stream_without_images_has_nothing_to_normalize(fake: Fake, load: Load) -> None:
    fake()
    with pytest.raises(ConfigError, match="delivers no uint8 images"):
        next(iter(load(output="torch", dtype="float16")))


def test_a_device_that_is_not_here_is_named_with_the_way_out(fake: Fake, load: Load) -> None:
    fake()
    with pytest.raises(ConfigError, match="torch finds no GPU here"):
        next(iter(load(output="torch", device="cuda:1")))
    with pytest.raises(ConfigError, match="device='xpu': torch cannot use it here"):
        next(iter(load(output="torch", device="xpu")))


def test_auto_is_the_cpu_where_there_is_no_gpu(fake: Fake, load: Load) -> None:
    daemon = fake()
    batches = list(load(output="torch", device="auto"))
    assert {batch["x"].device.type for batch in batches} == {"cpu"}
    assert seen(batches) == epoch_indices(0, daemon.rules)


# A batch that is moved


def test_to_moves_the_tensors_and_keeps_what_the_batch_knows_of_itself(
    fake: Fake, load: Load
) -> None:
    fake()
    for as_tuple in (False, True):
        batch = next(iter(load(output="torch", as_tuple=as_tuple)))
        there = batch.to("meta", non_blocking=True)
        assert type(there) is type(batch)
        assert (there.epoch, there.step, there.rows) == (batch.epoch, batch.step, batch.rows)
        assert there.sample_keys == batch.sample_keys
        values = list(there) if as_tuple else list(there.values())
        assert [getattr(v, "device", v) for v in values] == [torch.device("meta")] * 2 + [
            batch[2] if as_tuple else batch["t"]
        ]


def test_to_ends_the_lease_behind_its_own_copies(fake: Fake, load: Load, late: LateDevice) -> None:
    fake()
    batch = next(iter(load(output="torch", pin_memory=True)))
    uses = batch._uses
    late.copy_from(batch["x"])
    batch.to("cpu")
    assert [mark.done() for mark in uses.marks] == [False]
    late.finish()
    assert [mark.done() for mark in uses.marks] == [True]
    assert pickle.loads(pickle.dumps(batch))._uses is None
    assert copy.copy(batch)._uses is None


def test_arrays_of_numpy_are_not_moved(fake: Fake, load: Load) -> None:
    fake()
    with pytest.raises(TypeError, match="output='torch'"):
        next(iter(load())).to("cpu")
