from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from loaderd.system import resource_limits
from loaderd.system.resource_limits import Room, shortage

GIB = 1 << 30
MEMINFO = "MemTotal:       67108864 kB\nMemFree:          100 kB\nMemAvailable:   33554432 kB\n"
V2_MOUNT = "30 23 0:27 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
V1_MOUNT = "35 31 0:32 {root} /sys/fs/cgroup/{names} rw,relatime - cgroup cgroup rw,{names}\n"


class Tree:
    """A made-up machine in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: object) -> Tree:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
        return self

    def machine(self, cgroup: str, mounts: str) -> Tree:
        return (
            self.write("proc/self/cgroup", cgroup)
            .write("proc/self/mountinfo", mounts)
            .write("proc/meminfo", MEMINFO)
        )

    def v2(
        self,
        group: str,
        *,
        limit: object = "max",
        usage: int = 0,
        inactive: int = 0,
        high: object = "max",
    ) -> Tree:
        folder = f"sys/fs/cgroup/{group}".rstrip("/")
        self.write(f"{folder}/memory.max", limit).write(f"{folder}/memory.high", high).write(
            f"{folder}/memory.current", usage
        )
        return self.write(f"{folder}/memory.stat", f"anon 5\ninactive_file {inactive}")

    def v1(self, group: str, *, limit: int, usage: int, inactive: int = 0) -> Tree:
        folder = f"sys/fs/cgroup/memory/{group}".rstrip("/")
        self.write(f"{folder}/memory.limit_in_bytes", limit).write(
            f"{folder}/memory.usage_in_bytes", usage
        )
        return self.write(
            f"{folder}/memory.stat", f"inactive_file 1\ntotal_inactive_file {inactive}"
        )

    @property
    def path(self) -> str:
        return str(self.root)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def limits(tree: Tree) -> list[tuple[int, int]]:
    return [(room.limit, room.free) for room in resource_limits.rooms(tree.path)]


MACHINE = (64 * GIB, 32 * GIB)


def test_a_machine_without_cgroups_has_what_is_available(tree: Tree) -> None:
    tree.machine("", "")
    assert limits(tree) == [MACHINE]
    assert resource_limits.free_bytes(tree.path) == 32 * GIB


def test_own_group_and_each_ancestor_of_v2_count(tree: Tree) -> None:
    tree.machine("0::/pod/main", V2_MOUNT.format(root="/"))
    tree.v2("pod/main", limit=4 * GIB, usage=3 * GIB, inactive=GIB)
    tree.v2("pod", limit=8 * GIB, usage=7 * GIB, high=6 * GIB, inactive=2 * GIB)
    assert limits(tree) == [MACHINE, (4 * GIB, 2 * GIB), (6 * GIB, GIB)]
    assert resource_limits.free_bytes(tree.path) == GIB


def test_a_container_without_a_cgroup_namespace_finds_its_own_group(tree: Tree) -> None:
    tree.machine("0::/docker/abc/inner", V2_MOUNT.format(root="/docker/abc"))
    tree.v2("", limit=2 * GIB, usage=GIB)
    tree.v2("inner", limit=GIB, usage=GIB // 2)
    assert limits(tree) == [MACHINE, (GIB, GIB // 2), (2 * GIB, GIB)]


def test_a_group_that_is_not_mounted_here_is_known_by_the_mounts_root(tree: Tree) -> None:
    tree.machine("0::/../../elsewhere", V2_MOUNT.format(root="/"))
    tree.v2("", limit=2 * GIB, usage=GIB)
    assert limits(tree) == [MACHINE, (2 * GIB, GIB)]


def test_a_group_above_the_mount_is_not_looked_for_beside_it(tree: Tree) -> None:
    tree.machine("0::/../elsewhere", V2_MOUNT.format(root="/"))
    tree.v2("", limit=2 * GIB, usage=GIB)
    tree.write("sys/fs/elsewhere/memory.max", GIB).write("sys/fs/elsewhere/memory.current", GIB)
    assert limits(tree) == [MACHINE, (2 * GIB, GIB)]


def test_a_mount_root_that_is_only_a_prefix_of_the_name_is_not_cut_off(tree: Tree) -> None:
    tree.machine("0::/docker/abcdef", V2_MOUNT.format(root="/docker/abc"))
    tree.v2("", limit=2 * GIB, usage=GIB)
    assert limits(tree) == [MACHINE, (2 * GIB, GIB)]


def test_v1_counts_its_hierarchy_and_no_limit_is_no_room(tree: Tree) -> None:
    tree.machine(
        "4:memory:/a/b\n1:cpu:/\n0::/",
        V1_MOUNT.format(root="/", names="memory")
        + V2_MOUNT.format(root="/").replace("cgroup ", "cgroup/u ", 1),
    )
    tree.v1("a/b", limit=9223372036854771712, usage=5)
    tree.v1("a", limit=4 * GIB, usage=4 * GIB, inactive=GIB)
    tree.v1("", limit=9223372036854771712, usage=5)
    assert limits(tree) == [MACHINE, (4 * GIB, GIB)]


def test_a_group_over_its_limit_has_nothing_free(tree: Tree) -> None:
    tree.machine("0::/x", V2_MOUNT.format(root="/")).v2("x", limit=GIB, usage=2 * GIB)
    assert limits(tree)[1] == (GIB, 0)


def test_garbled_files_are_as_if_they_were_not_there(tree: Tree) -> None:
    tree.machine("nonsense\n0:/", "also nonsense\n - \n").v2("", limit="lots")
    assert limits(tree) == [MACHINE]
    assert resource_limits.rooms(str(tree.root / "nothing")) == []


ROOMS = [
    Room("MemAvailable", 64 * GIB, 32 * GIB, "the machine's memory"),
    Room("/c/memory.max", 8 * GIB, 2 * GIB, "the container's limit"),
]


def short(need: int, **kwargs: Any) -> str | None:
    given = {"memory": 4 * GIB, "live": 0, **kwargs}
    return shortage("stream 'train'", need, rooms=ROOMS, **given)


def test_what_fits_is_not_refused() -> None:
    assert short(2 * GIB) is None
    assert short(GIB, live=3 * GIB) is None


def test_what_exceeds_the_ceiling_never_fits_and_says_so() -> None:
    text = short(5 * GIB)
    assert text is not None
    assert "never fits" in text
    assert str(5 * GIB) in text
    assert str(4 * GIB) in text
    assert "[daemon] memory" in text


def test_a_full_ceiling_is_full_for_now() -> None:
    text = short(2 * GIB, live=3 * GIB)
    assert text is not None
    assert "not enough memory" in text
    assert f"available 1.0 GiB ({GIB} bytes)" in text


def test_what_would_take_all_of_a_limit_is_refused_for_now_alone() -> None:
    whole = short(4 * GIB, live=1)
    assert whole is not None
    assert "not enough memory" in whole
    room = short(8 * GIB, memory=8 * GIB)
    assert room is not None
    assert "not enough memory" in room


def test_memory_of_a_dead_daemon_counts() -> None:
    text = short(2 * GIB, live=GIB, held=2 * GIB)
    assert text is not None
    assert "still held" in text


def test_the_containers_limit_is_named_when_it_is_the_tightest() -> None:
    text = short(3 * GIB)
    assert text is not None
    assert "not enough memory" in text
    assert "/c/memory.max" in text
    assert f"{2 * GIB}" in text
    assert "the container's limit" in text
    never = short(9 * GIB, memory=16 * GIB)
    assert never is not None
    assert "never" in never


def test_what_is_promised_to_others_is_not_free() -> None:
    assert short(GIB, unfilled=GIB) is None
    assert short(GIB, unfilled=GIB + 1) is not None


def test_oom_kills_are_the_cgroups_and_else_the_machines(tree: Tree) -> None:
    tree.write("proc/vmstat", "nr_free_pages 1\noom_kill 7")
    tree.machine("0::/x", V2_MOUNT.format(root="/")).v2("x")
    assert resource_limits.oom_kills(tree.path) == 7
    tree.write("sys/fs/cgroup/x/memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0")
    assert resource_limits.oom_kills(tree.path) == 2


def test_oom_kills_of_v1(tree: Tree) -> None:
    tree.machine("4:memory:/a", V1_MOUNT.format(root="/", names="memory"))
    tree.write(
        "sys/fs/cgroup/memory/a/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4"
    )
    assert resource_limits.oom_kills(tree.path) == 4


def test_cpus_are_the_least_of_affinity_machine_and_every_quota(tree: Tree) -> None:
    tree.machine("0::/pod/main", V2_MOUNT.format(root="/"))
    tree.write("sys/fs/cgroup/pod/main/cpu.max", "max 100000")
    assert resource_limits.cpu_count(tree.path, affinity=6, cpus=8) == 6
    assert resource_limits.cpu_count(tree.path, affinity=16, cpus=8) == 8
    tree.write("sys/fs/cgroup/pod/cpu.max", "350000 100000")
    assert resource_limits.cpu_count(tree.path, affinity=6, cpus=8) == 3
    tree.write("sys/fs/cgroup/pod/main/cpu.max", "50000 100000")
    assert resource_limits.cpu_count(tree.path, affinity=6, cpus=8) == 1


def test_cpu_quota_of_v1(tree: Tree) -> None:
    tree.machine("1:cpu,cpuacct:/a", V1_MOUNT.format(root="/", names="cpu,cpuacct"))
    tree.write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1").write(
        "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000"
    )
    assert resource_limits.cpu_count(tree.path, affinity=4, cpus=4) == 4
    tree.write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "250000")
    assert resource_limits.cpu_count(tree.path, affinity=4, cpus=4) == 2


@pytest.mark.parametrize("quota", ["", "200000", "max", "200000 0", "-1 100000", "2 1 1"])
def test_a_cpu_quota_that_is_none_or_not_understood_limits_nothing(tree: Tree, quota: str) -> None:
    tree.machine("0::/pod", V2_MOUNT.format(root="/"))
    tree.write("sys/fs/cgroup/pod/cpu.max", quota)
    assert resource_limits.cpu_count(tree.path, affinity=6, cpus=8) == 6


def test_the_cpuset_is_that_of_the_nearest_cgroup_that_tells(tree: Tree) -> None:
    tree.machine("0::/pod/main", V2_MOUNT.format(root="/"))
    tree.write("sys/devices/system/cpu/online", "0-15")
    tree.write("sys/fs/cgroup/pod/main/cpuset.cpus.effective", "")
    assert resource_limits.cpuset(tree.path) == set(range(16))
    tree.write("sys/fs/cgroup/cpuset.cpus.effective", "0-11")
    assert resource_limits.cpuset(tree.path) == set(range(12))
    tree.write("sys/fs/cgroup/pod/cpuset.cpus.effective", "0-1,8,10-11")
    assert resource_limits.cpuset(tree.path) == {0, 1, 8, 10, 11}
    tree.write("sys/fs/cgroup/pod/main/cpuset.cpus.effective", "8")
    assert resource_limits.cpuset(tree.path) == {8}


def test_the_cpuset_of_v1(tree: Tree) -> None:
    tree.machine("3:cpuset:/a", V1_MOUNT.format(root="/", names="cpuset"))
    tree.write("sys/fs/cgroup/cpuset/cpuset.cpus", "0-3")
    tree.write("sys/fs/cgroup/cpuset/a/cpuset.cpus", "2-3")
    assert resource_limits.cpuset(tree.path) == {2, 3}
    tree.write("sys/fs/cgroup/cpuset/a/cpuset.effective_cpus", "3")
    assert resource_limits.cpuset(tree.path) == {3}


@pytest.mark.parametrize("text", ["", "x", "0-", "0,,3", "-3", "a-b"])
def test_a_cpuset_that_is_not_understood_is_that_of_this_process(tree: Tree, text: str) -> None:
    tree.write("sys/devices/system/cpu/online", text)
    assert resource_limits.cpuset(tree.path) == os.sched_getaffinity(0)


def test_a_mask_is_named_only_where_it_leaves_cpus_of_the_cpuset_out() -> None:
    assert resource_limits.pinned({1, 2}, {1, 2}) == []
    assert resource_limits.pinned({1, 2, 3}, {1, 2}) == []
    (line,) = resource_limits.pinned({1}, {1, 2, 3, 4})
    assert line.startswith("this process may run on 1 of 4 CPUs")


def test_this_machine_can_be_read() -> None:
    assert resource_limits.free_bytes() > 0
    assert resource_limits.own_cpu_count() >= 1
    assert resource_limits.oom_kills() >= 0


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (1023, "1023 bytes"),
        (1024, "1.0 KiB (1024 bytes)"),
        (3 * GIB // 2, "1.5 GiB (1610612736 bytes)"),
        (1 << 62, "4096.0 PiB (4611686018427387904 bytes)"),
    ],
)
def test_a_size_is_for_people_and_for_arithmetic(count: int, words: str) -> None:
    assert resource_limits.size(count) == words
