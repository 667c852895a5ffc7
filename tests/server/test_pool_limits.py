"""How many workers a daemon begins with and may have, on made-up machines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from loaderd.config import load
from loaderd.server.pool_limits import PoolLimits, pool_limits
from loaderd.system import file_limits, resource_limits
from loaderd_wire.errors import ConfigError

CGROUP = "30 23 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
GIB = 1 << 30


class Machine:
    """Eight processors, 64 GiB, and a cgroup of `limit_gib`."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.config = folder / "config.toml"
        self.write("proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 67108864 kB\n")
        self.write("sys/devices/system/cpu/online", "0-7\n")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def limits(self, workers: str = "", daemon: str = "", limit_gib: int = 0) -> PoolLimits:
        if limit_gib:
            self.write("proc/self/cgroup", "0::/\n")
            self.write("proc/self/mountinfo", CGROUP)
            self.write("sys/fs/cgroup/memory.max", f"{limit_gib * GIB}\n")
            self.write("sys/fs/cgroup/memory.current", "0\n")
        self.config.write_text(
            f'[daemon]\nsocket = "d.sock"\n{daemon}\n[workers]\n{workers}\n'
            '[streams.train]\nlmdb = "x.lmdb"\nbatch_size = 8\n'
        )
        return pool_limits(load.load(str(self.config), {}, os.getuid()), str(self.root))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    def eight(*_: Any) -> set[int]:
        return set(range(8))

    monkeypatch.setattr(os, "sched_getaffinity", eight)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(file_limits, "raise_limit", lambda: 1 << 20)
    monkeypatch.setattr(resource_limits, "own_cpu_count", lambda: 8)
    return Machine(tmp_path)


def test_auto_begins_with_the_processors_and_ends_with_eight_readers_for_each(
    machine: Machine,
) -> None:
    assert machine.limits() == PoolLimits(8, 64, 8, 8, memory=32 * GIB)


def test_a_number_of_workers_stays_what_it_is(machine: Machine) -> None:
    assert machine.limits("num_workers = 3") == PoolLimits(3, 3, 8, 8, memory=32 * GIB)
    more = machine.limits("num_workers = 9")
    assert (more.start, more.most) == (9, 9)
    assert "num_workers = 9, and affinity and CPU quota give 8 CPUs" in more.warnings[0]


def test_auto_leaves_half_of_the_descriptors_to_sessions(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_limits, "raise_limit", lambda: 400)
    monkeypatch.setattr(file_limits, "in_use", lambda: 32)
    assert machine.limits().most == (400 - 32 - 128) // 2 // 4
    monkeypatch.setattr(file_limits, "raise_limit", lambda: 170)
    assert machine.limits().most == 8


def test_auto_begins_with_as_many_workers_as_memory_has_room_for(machine: Machine) -> None:
    made = machine.limits('worker_memory = "2GiB"', 'memory = "2GiB"', limit_gib=9)
    assert (made.start, made.most) == (3, 64)
    (warning,) = made.warnings
    assert warning == (
        "[daemon] memory = 2.0 GiB (2147483648 bytes) + 8 workers x worker_memory = "
        "2.0 GiB (2147483648 bytes) + 190.7 MiB (200000000 bytes) for the daemon are "
        "18.2 GiB (19527352832 bytes), and /sys/fs/cgroup/memory.max is 9.0 GiB (9663676416 bytes): "
        "it begins with 3 of 8 workers; lower [daemon] memory, num_workers or worker_memory, or "
        "raise the container's memory limit"
    )


@pytest.mark.parametrize(
    ("workers", "start"),
    [('num_workers = 4\nworker_memory = "2GiB"', 4), ("", 8), ('worker_memory = "2GiB"', 8)],
)
def test_what_cannot_fit_is_told_with_numbers_and_begins_all_the_same(
    machine: Machine, workers: str, start: int
) -> None:
    made = machine.limits(workers, 'memory = "9GiB"', limit_gib=8)
    assert made.start == start
    (warning,) = made.warnings
    assert "and /sys/fs/cgroup/memory.max is 8.0 GiB (8589934592 bytes): when all of it" in warning


def test_the_ceiling_of_all_segments_is_measured_once_or_given(machine: Machine) -> None:
    assert machine.limits(limit_gib=10).memory == 5 * GIB
    assert machine.limits(daemon='memory = "3GiB"', limit_gib=10).memory == 3 * GIB


def test_what_fits_is_not_told_of(machine: Machine) -> None:
    fits = machine.limits('worker_memory = "1GiB"', 'memory = "2GiB"', limit_gib=11)
    assert (fits.start, fits.warnings) == (8, ())
    assert machine.limits(limit_gib=1).warnings == ()  # memory is half of that


def test_a_mask_that_leaves_processors_out_is_named(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    monkeypatch.setattr(resource_limits, "own_cpu_count", lambda: 1)
    made = machine.limits()
    assert (made.start, made.cpus, made.all_cpus) == (1, 1, 8)
    assert made.warnings == (
        "this process may run on 1 of 8 CPUs: a library has pinned it, or the program that started it; "
        "[workers] reset_affinity = true lets workers use them all",
    )


def test_reset_affinity_is_yes_or_no(machine: Machine) -> None:
    with pytest.raises(ConfigError, match=r'workers.reset_affinity: "yes" is not true or false'):
        machine.limits('reset_affinity = "yes"')
