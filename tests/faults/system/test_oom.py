"""The kernel's OOM killer, in a cgroup of the daemon's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from faults.system.cgroup import MemoryCgroup, memory_cgroup
from loaderd_testing.daemon_harness import Site, digest, indices, plain, take

pytestmark = pytest.mark.needs("memory_cgroup")

LIMIT = 800 << 20  # the daemon, its template and two workers take a third of it
HOGS = """
def fault(index):
    if index == 42 and {when}:
        hoard = [bytearray(b"x" * (8 << 20)) for _ in range(400)]
"""
# The daemon enters the cgroup before it is one.
ENTER = """
import os, sys
with open({procs!r}, "w") as procs:
    procs.write(str(os.getpid()))
os.execv(sys.executable, [sys.executable, "-m", "loaderd", *sys.argv[1:]])
"""


@pytest.fixture
def group() -> Iterator[MemoryCgroup]:
    with memory_cgroup() as made:
        made.limit(LIMIT)
        yield made


@pytest.fixture
def narrow(group: MemoryCgroup, site: Site) -> Iterator[Site]:
    """A site whose daemon is to be started in the cgroup; ended before the cgroup is."""
    yield site
    site.close()


def serve(site: Site, group: MemoryCgroup) -> Site:
    return site.serve(program=("-c", ENTER.format(procs=str(group.procs))))


def test_a_worker_that_the_oom_killer_kills_once_costs_nothing(
    narrow: Site, group: MemoryCgroup, undisturbed: str
) -> None:
    loader = serve(narrow.write(fault=HOGS.format(when='once("hog")')), group).loader()
    assert digest(take(loader) + take(loader)) == undisturbed
    assert group.kills() >= 1


def test_a_sample_that_takes_all_memory_each_time_is_named_and_its_neighbours_live(
    narrow: Site, group: MemoryCgroup
) -> None:
    loader = serve(
        narrow.write(fault=HOGS.format(when="True"), stream='on_error = "replace"'), group
    ).loader()
    got, errors = [], []
    for batch in loader:
        errors += batch.errors
        got.append(plain(batch))
    assert [(bad.index, bad.key) for bad in errors] == [(42, "42")]
    assert "SIGKILL (out of memory)" in f"{errors[0].error}: {errors[0].message}"
    assert set(indices(got)) == set(range(100)) - {42}
    assert group.kills() >= 2
