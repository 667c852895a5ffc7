"""What this process may use: memory and CPUs, by the word of kernel, cgroup, affinity and quota.

Reads files, keeps nothing.

`root` is where proc and the mount points are found: "/" in life, a made-up tree in tests. cgroup v1
and v2 are read alike: own group and each ancestor up to the mount point, since any of them may hold
the tightest limit.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass

NO_LIMIT = 1 << 60  # v1 writes "none" as the largest multiple of a page

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True, slots=True)
class Room:
    """free bytes of `limit`, where; `setting`: what to change for more."""

    where: str
    limit: int
    free: int
    setting: str


@dataclass(frozen=True, slots=True)
class _Group:
    """A cgroup folder on this machine, of hierarchy version 1 or 2."""

    folder: str
    version: int


def rooms(root: str = "/") -> list[Room]:
    """Every limit of memory that holds for this process.

    MemAvailable comes first, then its own cgroup and the ancestors.
    """
    found: list[Room] = []
    info = _table(_read(root, "proc/meminfo"))
    if "MemAvailable:" in info:
        found.append(
            Room(
                "MemAvailable",
                info.get("MemTotal:", 0) << 10,
                info["MemAvailable:"] << 10,
                "the machine's memory",
            )
        )
    for group in _groups(root, "memory"):
        room = _room(group, root)
        if room is not None:
            found.append(room)
    return found


def free_bytes(root: str = "/") -> int:
    """What cgroup or machine has free, in bytes; the smallest of all rooms."""
    return min((room.free for room in rooms(root)), default=0)


def segment_memory(given: int | None, root: str = "/") -> int:
    """The ceiling of all segments of a daemon together, in bytes.

    Args:
        given: By the config; None: half of what is free now.
        root: Folder in which proc and the cgroups are found.
    """
    return free_bytes(root) // 2 if given is None else given


def shortage(
    what: str,
    need: int,
    *,
    memory: int,
    live: int,
    held: int = 0,
    unfilled: int = 0,
    rooms: list[Room],
    how: str = "lower prefetch or batch_size",
) -> str | None:
    """Why some memory can't be had, with the numbers, and whether ever.

    Args:
        what: What it is for.
        need: Bytes.
        memory: The ceiling of all segments together.
        live: Bytes of it that are taken.
        held: A dead daemon's memory that the client still pins.
        unfilled: Bytes promised to others that the system doesn't know of yet.
        rooms: The limits of the system.
        how: What makes it need less.

    Returns:
        None if it can be had.
    """
    free = memory - live - held
    if need > free:
        if need > memory:
            return (
                f"{what} never fits: needed {size(need)}, [daemon] memory is {size(memory)} in "
                f"total; raise it, or {how}"
            )
        taken = f"{size(live)} are taken" + (
            f", {size(held)} still held by this client's tensors" if held else ""
        )
        return (
            f"not enough memory for {what} now: needed {size(need)}, available "
            f"{size(max(0, free))} of [daemon] memory = {size(memory)} "
            f"({taken}); raise it, end another session, or {how}"
        )
    for room in rooms:
        if need > room.limit:
            return (
                f"{what} never fits: needed {size(need)}, {room.where} is {size(room.limit)} "
                f"in total; raise {room.setting}, or {how}"
            )
        if need > room.free - unfilled:
            return (
                f"not enough memory for {what} now: needed {size(need)}, available "
                f"{size(max(0, room.free - unfilled))} "
                f"of {room.where} = {size(room.limit)}; raise {room.setting}, end other users of "
                f"it, or {how}"
            )
    return None


def oom_kills(root: str = "/") -> int:
    """Processes of our cgroup that the OOM killer has ended so far.

    Those of the machine, where the cgroup doesn't tell. It only rises.
    """
    for group in _groups(root, "memory"):
        name = "memory.events" if group.version == 2 else "memory.oom_control"
        events = _table(_read(root, posixpath.join(group.folder, name)))
        if "oom_kill" in events:
            return events["oom_kill"]
    return _table(_read(root, "proc/vmstat")).get("oom_kill", 0)


def cpu_count(root: str = "/", *, affinity: int, cpus: int) -> int:
    """Whole CPUs that this process can keep busy, at least 1.

    That is the least of affinity, machine and each cgroup's quota.
    """
    least = min(affinity, cpus)
    for group in _groups(root, "cpu"):
        if group.version == 2:
            words = _read(root, posixpath.join(group.folder, "cpu.max")).split()
        else:
            words = [
                _read(root, posixpath.join(group.folder, f"cpu.cfs_{name}_us")).strip()
                for name in ("quota", "period")
            ]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
            least = min(least, int(words[0]) // int(words[1]))
    return max(1, least)


def own_cpu_count() -> int:
    """`cpu_count` of this process, on this machine."""
    return cpu_count(affinity=len(os.sched_getaffinity(0)), cpus=os.cpu_count() or 1)


def cpuset(root: str = "/") -> set[int]:
    """The CPUs that the cgroups leave this process, whatever mask it has."""
    for group in _groups(root, "cpuset"):
        names = (
            ("cpuset.cpus.effective",)
            if group.version == 2
            else ("cpuset.effective_cpus", "cpuset.cpus")
        )
        for name in names:
            found = _cpus(_read(root, posixpath.join(group.folder, name)))
            if found:
                return found
    return _cpus(_read(root, "sys/devices/system/cpu/online")) or os.sched_getaffinity(0)


def pinned(mask: set[int], every: set[int]) -> list[str]:
    """A line about an affinity mask that leaves CPUs of the cpuset out."""
    if every <= mask:
        return []
    return [
        f"this process may run on {len(mask)} of {len(every)} CPUs: a library has pinned it, or "
        "the program that started it; [workers] reset_affinity = true lets workers use them all"
    ]


def reset_affinity(root: str = "/") -> None:
    """Let this process, and those that it starts, run on all CPUs of the cpuset."""
    # what the cpuset does not have after all, the kernel refuses
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, cpuset(root))


def too_many(workers: int | str, cpus: int) -> list[str]:
    """A line about more workers than CPUs, where they were asked for by number, not by "auto"."""
    if isinstance(workers, str) or workers <= cpus:
        return []
    quota = f"{cpus} CPU{'' if cpus == 1 else 's'}"
    return [
        f"num_workers = {workers}, and affinity and CPU quota give {quota}: more workers help "
        "only if samples wait, for disks or a network"
    ]


def size(count: int) -> str:
    """1.5 GiB (1610612736 bytes): for people and for arithmetic."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{count} bytes" if unit == 0 else f"{value:.1f} {UNITS[unit]} ({count} bytes)"


def _room(group: _Group, root: str) -> Room | None:
    """The room of one cgroup; None if it has no limit or doesn't tell."""
    limit_names, usage_name, cache = (
        (("memory.max", "memory.high"), "memory.current", "inactive_file")
        if group.version == 2
        # A v1 group that doesn't account hierarchically has no total_.
        else (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")
    )
    limits: list[tuple[int, str]] = []
    for name in limit_names:
        text = _read(root, posixpath.join(group.folder, name)).strip()
        if text.isdigit() and int(text) < NO_LIMIT:
            limits.append((int(text), name))
    usage = _read(root, posixpath.join(group.folder, usage_name)).strip()
    if not limits or not usage.isdigit():
        return None
    limit, name = min(limits)
    reclaimable = _table(_read(root, posixpath.join(group.folder, "memory.stat"))).get(cache, 0)
    where = "/" + posixpath.join(group.folder, name)
    return Room(
        where, limit, max(0, limit - int(usage) + reclaimable), "the container's memory limit"
    )


def _groups(root: str, controller: str) -> Iterator[_Group]:
    """Own cgroup for this controller, then its ancestors up to the mount point.

    v1's hierarchy comes first where both are mounted.
    """
    own = dict(_memberships(_read(root, "proc/self/cgroup")))
    for kind, names, inside, mount in _mounts(_read(root, "proc/self/mountinfo")):
        version = 2 if kind == "cgroup2" else 1
        if version == 1 and controller not in names:
            continue
        path = own.get("" if version == 2 else controller)
        if path is None:
            continue
        # In a container without a cgroup namespace the path is the host's, and `inside` is the part
        # of it that the mount begins at.
        below = (
            path[len(inside) :]
            if inside != "/" and (path + "/").startswith(inside.rstrip("/") + "/")
            else path
        )
        if below.startswith("/.."):
            below = "/"
        folder = posixpath.normpath(mount.lstrip("/") + "/" + below.strip("/"))
        top = posixpath.normpath(mount.lstrip("/"))
        if not os.path.isdir(os.path.join(root, folder)):
            # a cgroup that isn't mounted here: the mount's own root is what we can see
            folder = top
        while True:
            yield _Group(folder, version)
            if folder == top:
                break
            folder = posixpath.dirname(folder)


def _memberships(text: str) -> Iterator[tuple[str, str]]:
    """(controller, path) of /proc/self/cgroup; the v2 hierarchy has the controller ""."""
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            for name in parts[1].split(","):
                yield name, parts[2]


def _mounts(text: str) -> list[tuple[str, set[str], str, str]]:
    """Each cgroup mount; v1 before v2.

    Returns:
        (filesystem type, its controllers, root within the hierarchy, mount point) of each.
    """
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        left, right = before.split(), after.split()
        if len(left) >= 5 and len(right) >= 3 and right[0] in ("cgroup", "cgroup2"):
            found.append(
                (right[0], set(right[2].split(",")), _unescape(left[3]), _unescape(left[4]))
            )
    return sorted(found, key=lambda mount: mount[0])


def _cpus(text: str) -> set[int]:
    """CPUs of a list such as "0-3,8"; none of what is no such list."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            return set()
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _table(text: str) -> dict[str, int]:
    """Lines of "name number ..." as a mapping."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[1].isdigit():
            found[words[0]] = int(words[1])
    return found


def _read(root: str, path: str) -> str:
    """The file's text, "" where there is none or it can't be read."""
    try:
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
