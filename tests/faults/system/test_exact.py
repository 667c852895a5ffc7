"""The same bytes whatever runs them: workers, job sizes, load, ranks, resumes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loaderd_testing.daemon_harness import Site, digest, indices, plain, take


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (3, 4), (5, 9)])
def test_the_stream_does_not_depend_on_workers_or_prefetch(
    site: Site, undisturbed: str, workers: int, prefetch: int
) -> None:
    loader = site.write(workers=workers).serve().loader(prefetch=prefetch)
    assert digest(take(loader) + take(loader)) == undisturbed


def test_the_stream_does_not_depend_on_spawn(site: Site, undisturbed: str) -> None:
    loader = site.write(pool='start_method = "spawn"').serve().loader()
    assert digest(take(loader) + take(loader)) == undisturbed


def test_the_stream_does_not_depend_on_other_trainers(daemon: Site, undisturbed: str) -> None:
    others = [iter(daemon.loader(seed=s, batch_size=3)) for s in range(4)]
    got = []
    loader = daemon.loader()
    for _ in range(2):
        for batch in loader:
            got.append(plain(batch))
            next(others[len(got) % 4])
    assert digest(got) == undisturbed


@pytest.mark.parametrize("drop_last", [False, True])
def test_four_ranks_share_an_epoch_out(daemon: Site, drop_last: bool) -> None:
    ranks = [daemon.loader(rank=r, world_size=4, drop_last=drop_last) for r in range(4)]
    for _ in range(2):
        taken = [take(loader) for loader in ranks]
        assert {len(t) for t in taken} == {len(ranks[0])} == {3 if drop_last else 4}
        flat = [i for t in taken for i in indices(t)]
        assert len(flat) == len(set(flat)) == (96 if drop_last else 100)


def test_eleven_ranks_with_a_short_tail_get_every_sample_once(site: Site) -> None:
    site.write(stream='tail = "short"').serve()  # one whole step of 99 rows, and one row
    ranks = [site.loader(rank=r, world_size=11, batch_size=9) for r in range(11)]
    taken = [take(loader) for loader in ranks]
    assert [len(batches) for batches in taken] == [2] + [1] * 10
    assert sorted(i for batches in taken for i in indices(batches)) == list(range(100))


def test_resume_at_every_step_is_exact_twice_and_in_the_second_epoch(daemon: Site) -> None:
    loader = daemon.loader()
    whole = [take(loader), take(loader)]
    for epoch in (0, 1):
        for step in range(len(loader) + 1):
            first = daemon.loader()
            first.set_epoch(epoch)
            batches = iter(first)
            head = take(batches, step)
            state = json.loads(json.dumps(first.state_dict()))
            first.close()
            second = daemon.loader()
            second.load_state_dict(state)
            middle = take(second, 1)
            state = json.loads(json.dumps(second.state_dict()))
            second.close()
            third = daemon.loader()
            third.load_state_dict(state)
            tail = take(third) if middle else []
            third.close()
            assert digest(head + middle + tail) == digest(whole[epoch])
            # after the last step there is the empty rest of the epoch
            assert bool(middle) == (step < len(loader))


def test_elastic_resume_repeats_and_loses_nothing(daemon: Site) -> None:
    two = [daemon.loader(rank=r, world_size=2, batch_size=8) for r in range(2)]
    heads = [take(loader, 3) for loader in two]
    states = [loader.state_dict() for loader in two]
    assert states[0] == states[1]
    three = [daemon.loader(rank=r, world_size=3, batch_size=5) for r in range(3)]
    rest = []
    for loader in three:
        loader.load_state_dict(states[0])
        got = take(loader)
        assert got[0]["step"] == 3
        rest += indices(got)
    flat = [i for h in heads for i in indices(h)] + rest
    assert sorted(flat) == list(range(100))


def test_the_call_order_of_lightning_gives_the_right_batches(daemon: Site) -> None:
    plain_loader = daemon.loader()
    whole = [take(plain_loader) for _ in range(3)]
    loader = daemon.loader()
    state: dict[str, Any] = {}
    for epoch in range(2):
        batches = iter(loader)
        loader.sampler.set_epoch(epoch)
        # it stops by len() and never sees StopIteration
        got = [plain(next(batches)) for _ in range(len(loader))]
        state = loader.state_dict()
        iter(loader)
        assert digest(got) == digest(whole[epoch])
    resumed = daemon.loader()
    len(resumed)
    resumed.load_state_dict(state)
    batches = iter(resumed)
    resumed.sampler.set_epoch(2)
    assert digest([plain(next(batches)) for _ in range(len(resumed))]) == digest(whole[2])


def test_a_break_is_followed_by_the_next_epoch(daemon: Site) -> None:
    loader = daemon.loader()
    whole = [take(loader), take(loader)]
    fresh = daemon.loader()
    head = []
    for batch in fresh:
        head.append(plain(batch))
        if len(head) == 4:
            break
    assert digest(head) == digest(whole[0][:4])
    assert digest(take(fresh)) == digest(whole[1])
    fresh.set_epoch(0)
    assert digest(take(fresh)) == digest(whole[0])


def test_randomness_belongs_to_the_sample_and_the_epoch(daemon: Site) -> None:
    loader = daemon.loader(batch_size=1)
    seen = {}
    for epoch in range(2):
        for batch in loader:
            seen[epoch, int(batch["y"][0])] = batch["noise"].tobytes()
    assert len(set(seen.values())) == 200
    again = daemon.loader(batch_size=10)
    for batch in again:
        for row, index in enumerate(batch["y"]):
            assert batch["noise"][row].tobytes() == seen[0, int(index)]
