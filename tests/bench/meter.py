"""What a benchmark reads off a process, and how figures are put in a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median


def cpu_s(pid: int) -> float:
    """Seconds of CPU of a process's first thread and its others, to the nanosecond."""
    return (
        sum(
            int((task / "schedstat").read_text().split()[0])
            for task in Path(f"/proc/{pid}/task").iterdir()
        )
        / 1e9
    )


def family(pids: Iterable[int]) -> set[int]:
    """These processes and all that they, and those, have started."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text().rpartition(")")[2].split()[1]
                )
            except OSError:
                continue
    found = set(pids)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def pss_mb(pids: Iterable[int]) -> float:
    """Proportional set size of these processes together: a page that n of them map counts once."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total / 1024


def spread(values: Sequence[float]) -> str:
    return f"{min(values):.4g} to {max(values):.4g}"


def row(
    name: str, values: Sequence[float], unit: str, reference: Sequence[float] | None = None
) -> list[str]:
    """One line of a table: median, spread, and the ratio to the reference measured in the same run."""
    ratio = f"{median(values) / median(reference):.2f}x" if reference else ""
    return [name, f"{median(values):.4g} {unit}", spread(values), ratio]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *map(list, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def versions() -> str:
    import importlib.metadata
    import platform

    names = ("loaderd", "torch", "numpy", "pyzmq", "lmdb")
    found = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    return f"Python {platform.python_version()}, {found}, Linux {platform.release().split('-')[0]}"
