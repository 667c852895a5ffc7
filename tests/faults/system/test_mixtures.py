"""Mixtures of streams, through a real daemon."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaderd_client import ConfigError, SampleError, StreamChangedError
from loaderd_testing.daemon_harness import TOP, Site, digest, indices, rows, take
from loaderd_testing.deadlines import DEADLINE_S, until

AUGMENT = """
[[streams.{name}.transforms]]
call = "mine:augment"
"""
A, B = 70, 20  # samples of the sources


def write(site: Site, *, a: str = "", b: str = "", mix: str = "", fault: str = "") -> Site:
    """A config with two sources and their mixture."""
    site.write(fault=fault)
    top = TOP.format(daemon="", workers=2, timeout=20.0, pool="").replace("[streams.train]\n", "")
    sources = [
        f'[streams.{name}]\ndataset = "mine:Numbers"\ndataset_args = {{n = {count}}}\n'
        f"shuffle = true\nseed = {seed}\n{more}\n{AUGMENT.format(name=name)}"
        for name, count, seed, more in (("a", A, 3, a), ("b", B, 4, b))
    ]
    mixture = f"[streams.mix]\nof = {{a = 0.7, b = 0.3}}\nbatch_size = 8\n{mix}\n"
    site.config.write_text("\n".join([top, *sources, mixture]))
    return site


def mixed(site: Site, **kwargs: Any) -> Any:
    return site.loader(stream="mix", **kwargs)


def without_source(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in batch.items() if name != "__source__"}


def test_samples_are_those_of_the_streams_in_the_order_of_the_streams(site: Site) -> None:
    write(site).serve()
    loader = mixed(site)
    epochs = [take(loader) for _ in range(2)]
    assert len(epochs[0]) == len(loader) == 9  # b ends it, after 67 samples
    batches = [batch for epoch in epochs for batch in epoch]
    for name, offset, count in (("a", 0, A), ("b", A, B)):
        alone = site.loader(stream=name, batch_size=10)
        expected = [rows([without_source(batch) for batch in take(alone)]) for _ in range(2)]
        order = [index for each in expected for index in each]
        got = [
            (index - offset, batch, place)
            for batch in batches
            for place, index in enumerate(batch["indices"])
            if batch["__source__"][place] == name
        ]
        assert [index for index, _, _ in got] == order[: len(got)]
        for number, (index, batch, place) in enumerate(got):
            one = {
                key: value[place : place + 1]
                for key, value in without_source(batch).items()
                if key not in ("epoch", "step")
            } | {"indices": [index]}
            assert rows([one])[index] == expected[number // count][index]


def test_each_step_has_its_shares_and_names_the_sources(site: Site) -> None:
    write(site).serve()
    for batch in take(mixed(site)):
        shares = Counter(batch["__source__"])
        assert abs(shares["a"] - 0.7 * len(batch["y"])) < 1
        assert [index >= A for index in batch["indices"]] == [
            name == "b" for name in batch["__source__"]
        ]


def test_a_killed_daemon_and_a_resume_change_no_byte(site: Site) -> None:
    write(site, mix='stop = "all"').serve()
    loader = mixed(site)
    whole = [take(loader) for _ in range(2)]
    second = mixed(site)
    batches = iter(second)
    head = take(batches, 4)
    site.kill()
    site.serve()
    middle = take(batches, 3)
    state = json.loads(json.dumps(second.state_dict()))
    second.close()
    third = mixed(site, prefetch=1)
    third.load_state_dict(state)
    assert digest(head + middle + take(third)) == digest(whole[0])
    site.kill(site.workers()[0])
    assert digest(take(third)) == digest(whole[1])


@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_share_a_mixture_out(site: Site, drop_last: bool) -> None:
    write(site).serve()
    ranks = [mixed(site, rank=r, world_size=3, drop_last=drop_last) for r in range(3)]
    one = indices(take(mixed(site, batch_size=1)))
    taken = [take(loader) for loader in ranks]
    assert {len(batches) for batches in taken} == {2 if drop_last else 3}
    flat = indices([taken[rank][step] for step in range(len(taken[0])) for rank in range(3)])
    assert flat == one[: len(flat)]
    assert len(flat) == (48 if drop_last else len(one))


def test_epochs_of_steps_keep_their_shares_over_the_ends_of_epochs(site: Site) -> None:
    write(site, mix="epoch_steps = 3").serve()
    loader = mixed(site, batch_size=5)
    batches = [batch for _ in range(6) for batch in take(loader)]
    assert len(batches) == 18
    owners = [name == "b" for batch in batches for name in batch["__source__"]]
    assert owners == np.resize(owners[:10], 90).tolist()
    of_b = [index - A for index in indices(batches) if index >= A]
    assert sorted(of_b[:B]) == list(range(B))


SOUR = """
def fault(index):
    if index == 5:
        raise ValueError("sour")
"""


def test_a_bad_sample_is_named_with_its_source(site: Site) -> None:
    write(site, fault=SOUR).serve()
    names: list[str] = []
    batches = iter(mixed(site))
    while True:
        try:
            next(batches)
        except SampleError as error:
            names += [bad.key for bad in error.errors]
        except StopIteration:
            break
    assert sorted(names) == ["a:5", "b:5"]
    quarantine = site.folder / "d.sock.bad.jsonl"
    until("the record", lambda: quarantine.exists() and "a:5" in quarantine.read_text())


def test_a_bad_sample_is_replaced_by_another_of_its_source(site: Site) -> None:
    replaced = 'on_error = "replace"'
    write(site, a=replaced, b=replaced, mix='stop = "all"', fault=SOUR).serve()
    batches = take(mixed(site))
    assert not {5, A + 5} & set(indices(batches))
    assert all(
        abs(Counter(batch["__source__"])["b"] - 0.3 * len(batch["y"])) < 1 for batch in batches
    )


def test_a_mixture_is_padded_as_one(site: Site) -> None:
    write(site, mix="pad = {noise = 0}").serve()
    (batch, *_) = take(mixed(site))
    assert batch["noise"].shape == (8, 4)
    assert batch["__length__"].tolist() == [4] * 8
    assert len(batch["__source__"]) == 8


PACKED = """
[daemon]
socket = "d.sock"
[workers]
num_workers = 1
[streams.a]
lmdb = "a.lmdb"
[streams.b]
lmdb = "b.lmdb"
{b}
[streams.mix]
of = {{a = 2, b = 1}}
batch_size = 6
"""


def pack(site: Site, name: str, count: int) -> Path:
    done = site.cli("pack", "dataset", "mine:Numbers", name, "--args", f'{{"n": {count}}}')
    assert done.returncode == 0, done.stderr
    return site.folder / name


def packed(site: Site, b: str = "") -> Site:
    site.write()
    pack(site, "a.lmdb", 40)
    pack(site, "b.lmdb", 30)
    site.config.write_text(PACKED.format(b=b))
    return site


def test_a_source_whose_database_changes_ends_the_mixture_by_its_path(site: Site) -> None:
    packed(site).serve()
    batches = iter(mixed(site, prefetch=1))
    take(batches, 2)
    os.replace(pack(site, "new.lmdb", 31), site.folder / "b.lmdb")
    with pytest.raises(StreamChangedError, match=r"b\.lmdb"):
        take(batches)


def test_a_state_of_another_source_is_refused_by_the_name_of_the_source(site: Site) -> None:
    packed(site).serve()
    loader = mixed(site)
    take(iter(loader), 2)
    state = loader.state_dict()
    loader.close()
    site.kill()
    site.config.write_text(PACKED.format(b='split = "0%:50%"'))
    later = mixed(site.serve())
    later.load_state_dict(state)
    with pytest.raises(ConfigError, match=r"b.samples was 30, is 15; b.split was 0%:100%"):
        take(later, 1)


def test_sources_with_other_fields_are_refused_at_the_start_by_source_and_field(
    site: Site,
) -> None:
    packed(site, b='transforms = [{call = "mine:augment"}]')
    site.serve(wait=False)
    assert site.process.wait(DEADLINE_S) == 3
    assert "'b' has a field 'noise', which 'a' lacks" in site.text()


def test_check_preview_and_status_know_a_mixture(site: Site) -> None:
    write(site).serve()
    batch = take(mixed(site))[3]
    shown = site.cli("preview", str(site.config), "--stream", "mix", "--step", "3", "--json")
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout)["rows"]
    assert [row["index"] for row in found] == batch["indices"]
    assert [row["key"].partition(":")[0] for row in found] == batch["__source__"]
    assert "a + b" in json.dumps(site.status()["streams"])
    for how in ([], ["--all"]):
        done = site.cli("check", str(site.config), "--stream", "mix", *how)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "mix  a + b" in done.stdout


def test_bench_compares_no_dataloader_with_a_mixture(site: Site) -> None:
    write(site)
    done = site.cli("bench", str(site.config), "--stream", "mix", "--against", "dataloader")
    assert done.returncode == 2
    assert "compare a source with --stream a" in done.stderr
