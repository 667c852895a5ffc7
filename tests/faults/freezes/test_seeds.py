"""Accounts of training that stood still, as their users would bring them: slow, large, crowded.

What breaks is in test_seeds_faults.py.
"""

from __future__ import annotations

import os
import re

import numpy as np
import pytest

from faults.freezes.users import anonymous_bytes, bring, pull
from loaderd.core.order import Order
from loaderd.system.resource_limits import cpuset
from loaderd_client import RefusedError
from loaderd_testing.daemon_harness import Site, digest, indices, take, until

SHUFFLED = "shuffle = true\nseed = 7"


def test_s1_heavy_arithmetic_is_done_by_all_workers_at_once_outside_the_trainer(site: Site) -> None:
    module = """
    class Data:
        def __len__(self):
            return 64
        def __getitem__(self, index):
            image = np.full((32, 32, 3), index, np.float32)
            for _ in range(1000):
                image = image * 1.0001 + 0.5
            return {"image": image, "label": index, "pid": os.getpid()}
    """
    bring(site, module, workers=2, stream=SHUFFLED).serve().settled()
    loader = site.loader()
    got = take(loader)
    makers = {pid for batch in got for pid in batch["pid"].tolist()}
    assert makers == set(site.workers())
    assert sorted(indices(got)) == list(range(64))
    stream = site.status()["streams"]["train"]
    # the arithmetic is in __getitem__
    assert stream["stage_s"]["read"] > 10 * stream["stage_s"]["write"] > 0
    assert "workers' time: read " in site.shown()
    assert 0 < loader.stats()["wait_fraction"] <= 1


def test_s2_a_batch_too_large_for_the_memory_is_refused_with_numbers_and_a_smaller_one_is_served(
    site: Site,
) -> None:
    module = """
    class Data:
        def __len__(self):
            return 2048
        def __getitem__(self, index):
            return {"image": np.full((64, 64, 3), index % 251, np.uint8)}
    """
    bring(site, module, batch=1024, daemon='memory = "16MiB"').serve()
    with pytest.raises(RefusedError) as refused:
        next(iter(site.loader()))
    needed, available = 6 * 1024 * 64 * 64 * 3, 16 << 20
    numbers = [float(n) for n in re.findall(r"[\d.]+(?= [MG]iB)", str(refused.value))]
    assert any(abs(n - needed / 2**20) < 2 for n in numbers)
    assert any(abs(n - available / 2**20) < 2 for n in numbers)
    loader = site.loader(batch_size=128)
    for step, batch in enumerate(loader):
        assert (batch["image"][:, 0, 0, 0] == np.arange(step * 128, step * 128 + 128) % 251).all()
        if step % 5 == 0:
            memory = site.status()["memory"]
            assert 0 < memory["segments"] <= memory["limit"] == 16 << 20


def test_s3_more_workers_than_cpus_work_and_are_warned_of_once(
    site: Site, undisturbed: str
) -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        site.write(workers=4).serve()
    finally:
        os.sched_setaffinity(0, allowed)
    loader = site.loader()
    assert digest(take(loader) + take(loader)) == undisturbed
    until("all workers", lambda: len(site.workers()) == 4)
    warnings = [line for line in site.text().splitlines() if "num_workers = 4" in line]
    assert len(warnings) == 1
    assert "1 CPU" in warnings[0]


def test_s3_auto_takes_as_many_workers_as_the_affinity_gives(site: Site) -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        site.write(workers='"auto"').serve()  # type: ignore[arg-type]  # goes into the config as it is
    finally:
        os.sched_setaffinity(0, allowed)
    assert len(site.workers()) == 1
    assert "num_workers" not in site.text()
    named = f"this process may run on 1 of {len(cpuset())} CPUs" in site.text()
    assert named == (len(cpuset()) > 1)


def test_s3_workers_use_all_cpus_although_the_daemon_and_their_own_imports_were_pinned(
    site: Site,
) -> None:
    allowed = os.sched_getaffinity(0)
    module = f"""
    import os
    os.sched_setaffinity(0, {{{min(allowed)}}})
    class Data:
        def __len__(self):
            return 40
        def __getitem__(self, index):
            return {{"cpus": np.array(sorted(os.sched_getaffinity(0)))}}
    """
    os.sched_setaffinity(0, {min(allowed)})
    try:
        bring(site, module, pool="reset_affinity = true", batch=10, stream=SHUFFLED).serve()
    finally:
        os.sched_setaffinity(0, allowed)
    (batch, *_) = take(site.loader())
    assert set(batch["cpus"][0].tolist()) == cpuset()
    assert "may run on" not in site.text()


def test_s4_a_list_of_ten_million_ints_stays_flat_in_every_worker(site: Site) -> None:
    module = """
    class Data:
        def __init__(self):
            self.labels = list(range(0, 10_000_000_000, 1000))
        def __len__(self):
            return 4000
        def __getitem__(self, index):
            return {"sum": sum(self.labels[index * 2500 : index * 2500 + 2500])}
    """
    bring(site, module, batch=100, stream=SHUFFLED).serve()
    loader = site.loader()

    def memory() -> list[int]:
        """Of each worker, after an epoch, when none is at work."""
        for batch in loader:
            assert (batch["sum"] == 1000 * 2500 * (batch.indices * 2500 + 2499 / 2)).all()
        until("nothing to do", lambda: not site.status()["jobs"])
        return [anonymous_bytes(pid) for pid in site.settled()]

    # a worker makes its list for its first job
    before = until("a list in each", lambda: min(now := memory()) > 300 << 20 and now)
    after = [memory() for _ in range(4)][-1]
    assert all(last < first + (4 << 20) for first, last in zip(before, after, strict=True))


def test_s5_slow_reads_overlap_and_the_first_batch_waits_for_no_other(site: Site) -> None:
    module = """
    class Data:
        def __len__(self):
            return 40
        def __getitem__(self, index):
            if not os.path.exists(place("served")):
                return index
            if index < 2:  # each waits for the other: one worker alone would wait for ever
                mark("here-%d" % index)
                wait_for("here-%d" % (1 - index))
            elif index < 10:
                wait_for("the first batch is taken")
            return index
    """
    bring(site, module, workers=2, batch=2).serve()
    (site.folder / "served").touch()
    batches = iter(site.loader(as_tuple=True))
    (first,) = next(batches)
    assert first.tolist() == [0, 1]
    (site.folder / "the first batch is taken").touch()
    assert [b[0].tolist() for b in batches] == [[i, i + 1] for i in range(2, 40, 2)]


def test_s6_a_million_samples_in_batches_of_one(site: Site) -> None:
    module = """
    class Data:
        def __len__(self):
            return 1_000_000
        def __getitem__(self, index):
            return {"x": np.full(4, index, np.int64)}
    """
    loader = bring(site, module, batch=1, stream=SHUFFLED).serve().loader()
    assert len(loader) == 1_000_000
    expected = Order(1_000_000, shuffle=1).indices(7, 0, np.arange(400)).tolist()
    got = [int(batch["x"][0, 3]) for batch, _ in zip(loader, range(400), strict=False)]
    assert got == expected


def test_s7_workers_that_read_one_file_at_once_without_locks_read_what_one_reads(
    site: Site,
) -> None:
    module = """
    class Data:
        file = open(place("numbers"), "rb")  # opened before the workers are made: they share its offset
        def __len__(self):
            return 400
        def __getitem__(self, index):
            with open(place("numbers"), "rb") as own:
                own.seek(index * 64)
                return {"own": np.frombuffer(own.read(64), np.uint8), "shared": np.frombuffer(os.pread(self.file.fileno(), 64, index * 64), np.uint8)}
    """
    numbers = np.random.default_rng(0).integers(0, 256, (400, 64), np.uint8)
    (site.folder / "numbers").write_bytes(numbers.tobytes())
    for batch in bring(site, module, workers=4, stream=SHUFFLED).serve().loader():
        assert (batch["own"] == numbers[batch.indices]).all()
        assert (batch["shared"] == numbers[batch.indices]).all()


def test_s11_a_lock_that_all_workers_share_serialises_them_and_no_more(site: Site) -> None:
    module = """
    LOCK = multiprocessing.get_context("fork").Lock()  # made where the module is imported, once for all workers
    class Data:
        def __len__(self):
            return 40
        def __getitem__(self, index):
            with LOCK:
                assert mark("inside"), "two at once"
                time.sleep(0.005)
                os.unlink(place("inside"))
            return {"y": index}
    """
    got = take(bring(site, module, workers=4).serve().loader())
    assert indices(got) == list(range(40))
    assert [y for b in got for y in b["y"]] == list(range(40))
    assert site.status()["streams"]["train"]["stage_s"]["read"] >= 0.2


def test_s18_s19_a_trainer_that_writes_into_its_batches_and_keeps_them_all(
    site: Site, undisturbed: str
) -> None:
    loader = site.write().serve().loader(output="torch")
    kept, before = [], []
    for batch in loader:
        before.append((batch["x"] + 1).clone())
        batch["x"].add_(1)
        batch["noise"].mul_(0)
        kept.append(batch)
    assert all(
        (b["x"] == x).all() and not b["noise"].any() for b, x in zip(kept, before, strict=True)
    )
    again = site.loader()
    assert digest(take(again) + take(again)) == undisturbed


def test_s22_slots_are_filled_ahead_while_the_trainer_computes(site: Site) -> None:
    loader = site.write().serve().loader(prefetch=5)
    batches = iter(loader)
    held = next(batches)
    slots = until(
        "five batches ahead",
        lambda: (
            (s := site.status()["sessions"][0])["taken"] == 1
            and s["slots"]["announced"] == 5
            and s["slots"]
        ),
    )
    assert slots["leased"] <= 1
    assert "■■■■■" in site.shown()
    assert len(held["y"]) == 8


def test_e8_the_next_epoch_is_made_before_this_one_is_left(site: Site) -> None:
    site.write().serve()
    loader = site.loader(prefetch=3)
    workers = set(site.settled())
    got, _ = pull(loader)
    until(
        "the next epoch's batches", lambda: site.status()["sessions"][0]["slots"]["announced"] == 3
    )
    assert site.status()["sessions"][0]["epoch"] == 1
    assert len(got) == len(take(loader))
    assert set(site.workers()) == workers
