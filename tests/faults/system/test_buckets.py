"""Batches of samples of similar length, through a real daemon."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loaderd_client import ConfigError
from loaderd_testing.daemon_harness import TOP, Site, digest, indices, take
from loaderd_testing.deadlines import DEADLINE_S

TEXTS = """
import numpy as np

class Texts:
    def __len__(self):
        return 150
    def __getitem__(self, index):
        {fault}
        length = int(np.random.default_rng(index).integers(1, 60))
        return {{"ids": np.full(length, index), "y": index}}
"""
STREAM = """
dataset = "texts:Texts"
shuffle = true
seed = 7
batch_size = 16
bucket_by = "ids"
max_tokens = 256
pad = {ids = {value = -1, multiple = 8}}
"""


def write(site: Site, more: str = "", fault: str = "pass", stream: str = STREAM) -> Site:
    (site.folder / "texts.py").write_text(TEXTS.format(fault=fault))
    top = TOP.format(daemon="", workers=2, timeout=20.0, pool="")
    site.config.write_text(f"{top}{stream}{more}\n")
    site.num_workers = 2
    return site


def check(batches: list[dict[str, Any]], *, tokens: int = 256, rows: int = 16) -> None:
    """Each batch is within the limits and whole."""
    for batch in batches:
        assert batch["ids"].size <= tokens
        assert 0 < len(batch["ids"]) == len(batch["y"]) == len(batch["indices"]) <= rows
        assert batch["y"].tolist() == batch["indices"] == batch["ids"][:, 0].tolist()
        assert batch["__length__"].tolist() == (batch["ids"] >= 0).sum(1).tolist()


def test_every_sample_comes_once_and_a_kill_or_a_resume_changes_no_byte(site: Site) -> None:
    write(site).serve()
    loader = site.loader()
    whole = [take(loader) for _ in range(2)]
    for epoch in whole:
        check(epoch)
        assert len(epoch) == len(loader)
        assert sorted(indices(epoch)) == list(range(150))
    assert indices(whole[0]) != indices(whole[1])
    second = site.loader(prefetch=2)
    batches = iter(second)
    head = take(batches, 5)
    site.kill()
    site.serve()
    middle = take(batches, 4)
    state = json.loads(json.dumps(second.state_dict()))
    second.close()
    third = site.loader()
    third.load_state_dict(state)
    assert digest(head + middle + take(third)) == digest(whole[0])
    shown = site.cli("preview", str(site.config), "--epoch", "1", "--step", "2", "--json")
    assert shown.returncode == 0, shown.stderr
    assert [row["index"] for row in json.loads(shown.stdout)["rows"]] == whole[1][2]["indices"]
    other = site.loader(batch_size=8)
    other.load_state_dict(state)
    with pytest.raises(ConfigError, match="batch_size was 16, is 8"):
        take(other, 1)


def test_ranks_have_as_many_batches_and_share_the_samples_out(site: Site) -> None:
    write(site).serve()
    whole = take(site.loader())
    ranks = [
        site.loader(rank=r, world_size=4, fields=["ids", "y", "__length__", "__repeated__"])
        for r in range(4)
    ]
    taken = [take(loader) for loader in ranks]
    assert {len(batches) for batches in taken} == {-(-len(whole) // 4)}
    steps = [taken[rank][step] for step in range(len(taken[0])) for rank in range(4)]
    own = [batch for batch in steps if not batch["__repeated__"].any()]
    again = [batch for batch in steps if batch["__repeated__"].all()]
    assert [batch["indices"] for batch in own] == [batch["indices"] for batch in whole]
    assert [batch["indices"] for batch in again] == [
        batch["indices"] for batch in whole[: len(steps) - len(whole)]
    ]
    dropped = [site.loader(rank=r, world_size=4, drop_last=True) for r in range(4)]
    assert {len(take(loader)) for loader in dropped} == {len(whole) // 4}


@pytest.mark.parametrize("ranks", [(1, 3), (3, 2), (4, 1)])
def test_other_ranks_go_on_with_the_batches_that_are_left(
    site: Site, ranks: tuple[int, int]
) -> None:
    before, now = ranks
    write(site).serve()
    whole = [batch["indices"] for batch in take(site.loader())]
    first = site.loader(rank=0, world_size=before)
    batches = iter(first)
    for _ in range(-(-len(whole) // before) - 1):
        next(batches)
    behind = whole[first.state_dict()["step"] * before :]
    for _ in range(2):  # with one step left, and behind the last one
        state = first.state_dict()
        taken = []
        for rank in range(now):
            loader = site.loader(rank=rank, world_size=now, fields=["y", "__repeated__"])
            loader.load_state_dict(state)
            taken.append(take(loader))
        steps = [batch for step in zip(*taken, strict=True) for batch in step]
        assert [b["indices"] for b in steps if not b["__repeated__"].any()] == behind
        again = [b["indices"] for b in steps if b["__repeated__"].all()]
        assert again == whole[: -len(behind) % now]
        next(batches, None)
        behind = []


@pytest.mark.parametrize("rule", ["skip", "replace"])
def test_bad_samples_leave_the_batches_within_their_limits(site: Site, rule: str) -> None:
    fault = "if index % 20 == 0: raise ValueError('sour')"
    write(site, f'on_error = "{rule}"', fault).serve()
    batches = take(site.loader())
    check(batches)
    found = indices(batches)
    assert not set(found) & set(range(0, 150, 20))
    assert len(found) == (142 if rule == "skip" else 150)


def test_a_sample_that_fits_into_no_batch_is_told_with_its_length(site: Site) -> None:
    write(site, stream=STREAM.replace("256", "48")).serve(wait=False)
    site.process.wait(DEADLINE_S)
    assert "alone is over max_tokens = 48" in site.text()
