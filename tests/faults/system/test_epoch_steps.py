"""`epoch_steps`: epochs of a fixed number of steps over an endless order."""

from __future__ import annotations

import json

import pytest

from loaderd_client import ConfigError
from loaderd_testing.daemon_harness import Site, digest, indices, rows, take

# 100 samples, of which an epoch takes 7 x 8, so that passes end in the middle of batches
STEPS = "epoch_steps = 7"


def test_epochs_have_their_steps_and_go_on_where_the_last_one_ended(site: Site) -> None:
    loader = site.write(stream=STEPS).serve().loader()
    epochs = [take(loader) for _ in range(8)]
    assert [len(epoch) for epoch in epochs] == [len(loader)] * 8 == [7] * 8
    passes = indices([batch for epoch in epochs for batch in epoch])
    orders = [passes[at : at + 100] for at in range(0, 400, 100)]
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    # what is drawn for a sample is another in each pass
    first, second = rows(epochs[0]), rows(epochs[1] + epochs[2])
    assert not {first[i] for i in first} & {second[i] for i in second}


def test_a_resume_in_the_middle_of_any_epoch_is_exact(site: Site) -> None:
    site.write(stream=STEPS).serve()
    loader = site.loader()
    whole = [take(loader) for _ in range(3)]
    for epoch, step in ((0, 0), (0, 3), (1, 5), (2, 1)):
        first = site.loader()
        first.set_epoch(epoch)
        head = take(iter(first), step)
        state = json.loads(json.dumps(first.state_dict()))
        first.close()
        second = site.loader()
        second.load_state_dict(state)
        if not step:
            second.set_epoch(epoch)
        assert digest(head + take(second)) == digest(whole[epoch])
        second.close()


@pytest.mark.parametrize("workers", [1, 3])
def test_ranks_share_the_endless_order_out(site: Site, workers: int) -> None:
    site.write(stream=STEPS, workers=workers).serve()
    ranks = [site.loader(rank=rank, world_size=3, batch_size=5) for rank in range(3)]
    seen: list[int] = []
    for _ in range(2):
        taken = [take(loader) for loader in ranks]
        assert [len(batches) for batches in taken] == [7] * 3
        seen += indices([batches[step] for step in range(7) for batches in taken])
    assert sorted(seen[:100]) == sorted(seen[100:200]) == list(range(100))


def test_a_resume_with_other_ranks_goes_on_and_says_what_differs(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.write(stream=STEPS).serve()
    first = site.loader()
    take(iter(first), 2)
    state = first.state_dict()
    second = site.loader(batch_size=4)
    second.load_state_dict(state)
    assert take(second, 1)[0]["step"] == 2
    assert "epoch_samples was 56, is 28" in caplog.text
    take(iter(first), 4)
    third = site.loader(batch_size=4)
    third.load_state_dict(first.state_dict())
    with pytest.raises(ConfigError, match="beyond the epoch's 28 samples"):
        take(third, 1)


def test_preview_shows_the_batch_of_an_epoch_of_steps(site: Site) -> None:
    site.write(stream=STEPS).serve()
    loader = site.loader()
    loader.set_epoch(3)
    batch = take(loader)[4]
    shown = site.cli("preview", str(site.config), "--epoch", "3", "--step", "4", "--json")
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout)["rows"]
    assert [row["index"] for row in found] == batch["indices"]


def test_a_bad_sample_is_replaced_within_its_own_pass(site: Site) -> None:
    site.write(
        stream=f'{STEPS}\non_error = "replace"',
        fault="""
        def fault(index):
            if index == 5:
                raise ValueError("sour")
        """,
    ).serve()
    loader = site.loader()
    again = site.loader(prefetch=1)
    epochs = [take(loader) for _ in range(3)]
    assert 5 not in indices([batch for epoch in epochs for batch in epoch])
    assert digest([batch for epoch in epochs for batch in epoch]) == digest(
        [batch for _ in range(3) for batch in take(again)]
    )


def test_check_makes_each_sample_once(site: Site) -> None:
    site.write(stream=STEPS, n=30)
    done = site.cli("check", str(site.config), "--all")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "30" in done.stdout
