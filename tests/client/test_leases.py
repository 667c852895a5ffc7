"""Views of a batch: whoever holds one keeps the slot, and nobody waits for that."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from loaderd_client import Loader
from loaderd_testing.fake_daemon import FakeDaemon, T, checked, epoch_indices, seen, until
from loaderd_testing.holding import WAYS, content, cycle
from loaderd_wire.slots import FieldSpec

Fake = Callable[..., FakeDaemon]
Load = Callable[..., Loader[Any]]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_kept_stays_what_it_was_and_its_slot_comes_back_at_its_end(
    fake: Fake, load: Load, way: str
) -> None:
    daemon, loader = fake(), load(output="torch")
    batches = iter(loader)
    batch = next(batches)
    before = content(WAYS[way](batch["x"]))
    slot = leased(loader)
    kept = WAYS[way](batch["x"])
    del batch
    gc.collect()
    rest = seen(batches) + seen(loader)
    assert content(kept) == before
    assert slot <= leased(loader)
    assert rest == epoch_indices(0, daemon.rules)[4:] + epoch_indices(1, daemon.rules)
    del kept
    gc.collect()
    assert slot & leased(loader) == set()


def leased(loader: Loader[Any]) -> set[tuple[int, int]]:
    """(slot, generation) of what the trainer holds."""
    session = loader._delivery._current.session
    assert session is not None
    session._memory.settle()
    (told,) = session._protocol.progress().released
    return {
        (s, out)
        for s, (back, out) in enumerate(zip(told.generations, told.taken, strict=True))
        if out > back
    }


def test_an_autograd_graph_keeps_its_batch(fake: Fake, load: Load) -> None:
    fake()
    weight = torch.ones((), requires_grad=True)
    reconnects, expected = [], 0.0
    for step, batch in enumerate(load(output="torch")):
        if step < 2:
            x = batch["x"].view(torch.uint8)
            reconnects.append((x.to(torch.float32) * weight).sum())
            expected += float(batch["x"].to(torch.float64).sum())
    torch.stack(reconnects).sum().backward()
    assert weight.grad is not None
    assert float(weight.grad) == pytest.approx(expected, rel=1e-3)


def test_the_same_few_slots_serve_a_whole_epoch(
    fake: Fake, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    daemon, loader = fake(samples=48), load(prefetch=3)
    pointers = {batch["x"].ctypes.data for _ in range(3) for batch in loader}
    assert len(pointers) <= 5
    assert loader.stats()["copied_batches"] == 0
    assert caplog.text == ""
    assert not daemon.error


def test_an_epoch_of_kept_batches_is_right_and_warned_of_once(
    fake: Fake, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    daemon, loader = fake(), load(prefetch=3)
    with caplog.at_level(logging.WARNING):
        kept = [list(loader), list(loader)]
    for epoch, batches in enumerate(kept):
        assert seen(batches) == epoch_indices(epoch, daemon.rules)
    assert len(caplog.records) == 1
    assert "4 batches are held" in caplog.text
    assert loader.stats()["copied_batches"] > 5
    del kept
    gc.collect()
    copied = loader.stats()["copied_batches"]
    seen(loader)
    assert loader.stats()["copied_batches"] == copied


def test_labels_texts_indices_and_keys_pin_nothing(
    fake: Fake, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    fake(keys="stored")
    loader = load(output="torch", prefetch=2)
    kept: list[Any] = []
    for batch in loader:
        kept.append((batch["y"], batch["t"], batch.indices, batch.sample_keys, batch.errors))
    assert sorted(torch.cat([k[0] for k in kept]).tolist()) == list(range(50))
    assert loader.stats()["copied_batches"] == 0
    assert caplog.text == ""


def test_a_view_dropped_in_another_thread_ends_its_lease(fake: Fake, load: Load) -> None:
    fake()
    loader = load(prefetch=2)
    for batch in loader:
        box = [batch["x"]]
        del batch
        thread = threading.Thread(target=box.clear)
        thread.start()
        thread.join()
    assert loader.stats()["copied_batches"] == 0


def test_a_collection_in_the_middle_of_any_call_is_harmless(fake: Fake, load: Load) -> None:
    daemon, loader = fake(), load(prefetch=2)
    old = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for epoch in range(2):
            rows = []
            for batch in loader:
                rows += checked(batch)
                cycle(batch["x"])
            assert rows == epoch_indices(epoch, daemon.rules)
    finally:
        gc.set_threshold(*old)


def test_writing_into_a_batch_changes_no_other(fake: Fake, load: Load) -> None:
    daemon, loader = fake(), load(output="torch", prefetch=1)
    for epoch in range(3):
        rows = []
        for batch in loader:
            rows += checked(batch)
            batch["x"].zero_()
            batch["y"].fill_(-1)
            batch.indices[:] = -1
        assert rows == epoch_indices(epoch, daemon.rules)


def test_zip_of_two_loaders_keeps_both(fake: Fake, load: Load) -> None:
    daemon = fake()
    for a, b in zip(load(), load(seed=3), strict=True):
        assert checked(a) == epoch_indices(0, daemon.rules)[a.step * 4 : a.step * 4 + 4]
        assert checked(b) == epoch_indices(0, daemon.rules, 3)[b.step * 4 : b.step * 4 + 4]


def test_a_copied_batch_holds_no_slot(fake: Fake, load: Load) -> None:
    fake()
    loader = load(prefetch=1)
    batches = iter(loader)
    held = [next(batches) for _ in range(6)]
    assert len(leased(loader)) == 2
    last = held.pop()["x"]
    del held
    gc.collect()
    assert leased(loader) == set()
    assert last.base is None


def test_a_prefetch_of_one_goes_through_an_epoch(fake: Fake, load: Load) -> None:
    daemon, loader = fake(), load(prefetch=1)
    assert seen(loader) == epoch_indices(0, daemon.rules)


@pytest.mark.parametrize("prefetch", [1, 4])
def test_a_larger_segment_in_mid_epoch_is_taken_over_and_the_old_one_unmapped(
    fake: Fake, load: Load, prefetch: int
) -> None:
    daemon, loader = fake(grow_at=5), load(prefetch=prefetch)
    batches = iter(loader)
    held = next(batches)
    rows = checked(held) + seen(batches) + seen(loader)
    assert rows == epoch_indices(0, daemon.rules) + epoch_indices(1, daemon.rules)
    assert mapped() == 4  # two of the client's, two of the daemon's
    checked(held)
    del held
    seen(loader)
    gc.collect()
    assert mapped() == 3


def test_batches_that_come_after_their_segment_was_retired_are_made_again(
    fake: Fake, load: Load
) -> None:
    daemon = fake(grow_at=2, lose=4)  # both of the old segment, and so they come with a ping
    assert seen(load()) == epoch_indices(0, daemon.rules)


def mapped() -> int:
    with open("/proc/self/maps") as maps:
        return sum("memfd:fake" in line for line in maps)


def test_no_fd_is_used_up_by_holding_batches(fake: Fake, load: Load) -> None:
    import os

    fake()
    loader = load()
    batches = iter(loader)
    kept = [next(batches)]
    before = len(os.listdir("/proc/self/fd"))
    kept += list(batches)
    assert len(os.listdir("/proc/self/fd")) == before


def test_releases_reach_the_daemon_within_two_calls(fake: Fake, load: Load) -> None:
    daemon, loader = fake(), load()
    batches = iter(loader)
    batch = next(batches)
    del batch
    next(batches)  # with others in hand it may keep to itself what it knows
    next(batches)
    until(
        "the release",
        lambda: any(r.generations.count(1) for p in daemon.rules.said for r in p.released),
    )


# batches that others get, too


@pytest.mark.parametrize("output", ["numpy", "torch"])
@pytest.mark.parametrize("keys", ["index", "stored"])
def test_shared_batches_are_the_trainers_own_and_hold_no_slot(
    fake: Fake, load: Load, caplog: pytest.LogCaptureFixture, output: str, keys: str
) -> None:
    daemon = fake(group_slots=3, keys=keys)
    loader = load(output=output, prefetch=6, shared=True)
    fields = ["x", "y", "t", "__index__", "__key__"]
    more = load(output=output, prefetch=1, fields=fields)
    for epoch in range(2):
        kept = [*loader, *more]
        assert leased(loader) == leased(more) == set()
        assert seen(kept) == 2 * epoch_indices(epoch, daemon.rules)
        for batch in kept:
            name = "key-" if keys == "stored" else ""
            assert batch.sample_keys == [f"{name}{i}" for i in batch.indices]
            batch["x"][:] = 1
            batch["y"][:] = 1
            batch.indices[:] = 1
    assert caplog.text == ""
    assert loader.stats()["shared"]
    assert loader.stats()["copied_batches"] == 0
    assert [hello.shared for hello in daemon.hellos] == ["yes", ""]


def test_a_shared_segment_is_mapped_for_reading_only(fake: Fake, load: Load) -> None:
    fake(group_slots=3)
    loader = load(shared=True)
    next(iter(loader))
    session = loader._delivery._current.session
    assert session is not None
    with pytest.raises(TypeError, match="modify"):
        session.mappings[0][0] = 1


def test_a_collated_batch_that_is_shared_is_copied(fake: Fake, load: Load) -> None:
    fake(group_slots=3, collated=True, specs=(FieldSpec("x", "<i4", (4,)), T))
    kept = list(load(shared=True))
    for batch in kept:
        assert batch["x"].tolist() == [[i] * batch.rows for i in batch.indices]
        batch["x"][:] = 0


@pytest.mark.parametrize("prefetch", [1, 4])
def test_a_larger_segment_of_a_group_has_any_number_of_slots(
    fake: Fake, load: Load, prefetch: int
) -> None:
    daemon, loader = fake(group_slots=3, grow_at=5), load(prefetch=prefetch)
    kept = [*loader, *loader]
    assert seen(kept) == epoch_indices(0, daemon.rules) + epoch_indices(1, daemon.rules)
    assert mapped() == 3  # the newest of the client's, two of the daemon's


def test_a_loader_that_shall_not_share_says_so_and_lends_as_ever(fake: Fake, load: Load) -> None:
    daemon, loader = fake(), load(shared=False)
    batch = next(iter(loader))
    assert daemon.hellos[0].shared == "no"
    assert not loader.stats()["shared"]
    assert len(leased(loader)) == 1
    del batch


def test_a_slot_that_others_may_have_by_now_is_not_read_after_the_end_of_the_session(
    fake: Fake, load: Load
) -> None:
    daemon, loader = fake(group_slots=4), load(shared=True)
    batches = iter(loader)
    kept = [next(batches)]
    session = loader._delivery._current.session
    assert session is not None
    until("a batch that waits", lambda: session._listen() or session._protocol.here)
    said = daemon.sessions[max(daemon.sessions)]
    memories = [memory for _, memory in said.segments.values()]
    daemon.kill()
    for memory in memories:
        memory[:] = 0xEE
    kept += list(batches)
    assert seen(kept) == epoch_indices(0, daemon.rules)


def test_a_member_that_loses_its_daemon_goes_on_where_it_was(fake: Fake, load: Load) -> None:
    daemon, loader = fake(group_slots=4), load(shared=True)
    batches = iter(loader)
    kept = [next(batches) for _ in range(5)]
    daemon.kill()
    daemon.rules.group_slots = 0  # its successor shares nothing
    kept += list(batches)
    assert seen(kept) == epoch_indices(0, daemon.rules)
    assert not loader.stats()["shared"]
    assert [hello.shared for hello in daemon.hellos] == ["yes", "yes"]
