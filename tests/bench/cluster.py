"""How many borrowed workers one daemon can use: its own scheduler, on hosts and links of paper.

    python tests/bench/cluster.py [--small] [--plot cluster.svg]

The scheduler and the clients' protocol are the shipped ones. Workers, hosts, links and the daemon's
processor are simulated, as `Cluster` says. Prints tables; `--plot` draws the first (matplotlib).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from meter import table
from simulated_cluster import Cluster, Found, Simulation

COUNTS = (10, 30, 100, 300, 1_000, 3_000, 10_000)
FAULTY = 100  # workers, of which some are slow or lost
LINKS = (10.0, 100.0)
ROWS_S = (0.0012, 0.012, 0.12)  # a small JPEG; a photo of 12 megapixels; ten of those

Figures = dict[Cluster, Found]


def found(cluster: Cluster) -> Found:
    """Of a simulation of it."""
    return Simulation(cluster.long_enough).run()


def limit(cluster: Cluster, what: Found) -> str:
    """What keeps it from more."""
    if what.gbit > 0.95 * cluster.link_gbit:
        return "link"
    if what.daemon > 0.9:
        return "daemon"
    return "workers" if what.rows_per_s > 0.8 * cluster.most_rows else ""


def by_workers(
    counts: Sequence[int] = COUNTS,
    costs_s: Sequence[float] = ROWS_S,
    links: Sequence[float] = LINKS,
) -> Figures:
    """For each cost of a row, each link and each number of workers."""
    clusters = [
        Cluster(workers=count, row_s=row_s, link_gbit=link)
        for row_s in costs_s
        for link in links
        for count in counts
    ]
    return {cluster: found(cluster) for cluster in clusters}


def by_fault(workers: int, seconds: float) -> dict[str, Found]:
    """What slow and lost hosts cost, once the scheduler knows them."""
    usual = Cluster(workers=workers, row_s=0.012, seconds=seconds)
    clusters = {
        "all are well": usual,
        "a tenth of them less": replace(usual, workers=workers * 9 // 10),
        "a tenth of the hosts takes 10 times as long": replace(usual, slow=0.1),
        "a tenth takes 50 times as long": replace(usual, slow=0.1, slowness=50.0),
        "a host is lost each second, for 10 s": replace(usual, lost_s=100 / workers),
    }
    return {name: found(cluster) for name, cluster in clusters.items()}


def plot(figures: Figures, path: str) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "cluster", "font.size": 9})
    from matplotlib import pyplot

    drawing, axes = pyplot.subplots(
        1, len(ROWS_S), figsize=(11, 3), sharey=True, layout="constrained"
    )
    for axis, row_s in zip(axes, ROWS_S, strict=True):
        lines = [(c, f) for c, f in figures.items() if c.row_s == row_s]
        for link, colour in zip(LINKS, ("#31688e", "#35b779"), strict=True):
            line = [(c, f) for c, f in lines if c.link_gbit == link]
            counts, rates = [c.workers for c, _ in line], [f.rows_per_s for _, f in line]
            axis.loglog(counts, rates, "o-", color=colour, label=f"{link:g} Gbit/s")
            axis.axhline(line[0][0].link_rows, color=colour, linestyle=":", linewidth=1)
        most = {c.workers: c.most_rows for c, _ in lines}
        axis.loglog([*most], [*most.values()], "--", color="#999999", label="all workers busy")
        axis.set_xlabel(f"workers, {row_s * 1e3:g} ms a row")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("rows/s")
    axes[0].set_ylim(50, 200_000)
    drawing.legend(
        *axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False
    )
    drawing.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="only shows that it works")
    parser.add_argument("--plot", default="")
    args = parser.parse_args()
    small = args.small
    figures = by_workers((10,), ROWS_S[:1], (5.0, 100.0)) if small else by_workers()
    lines = [
        [
            f"{c.row_s * 1e3:g} ms",
            f"{c.link_gbit:g} Gbit/s",
            f"{c.workers:,}",
            f"{f.rows_per_s:,.0f}",
            f"{f.rows_per_s / c.most_rows:.0%}",
            f"{f.gbit:.1f}",
            f"{f.daemon:.0%}",
            limit(c, f),
            f"{f.step_s * 1e6:.0f}",
        ]
        for c, f in figures.items()
    ]
    head = ["a row", "link", "workers", "rows/s", "of what they could", "Gbit/s", "daemon busy"]
    print(table([*head, "limit", "us a step, here"], lines))
    print()
    faults = [
        [name, f"{f.rows_per_s:,.0f}", f"{f.worst_s:.2f}", f"{f.lost}"]
        for name, f in by_fault(10 if small else FAULTY, 1.0 if small else 10.0).items()
    ]
    head = [f"{FAULTY} workers, 12 ms a row, 100 Gbit/s", "rows/s", "longest wait, s", "hosts lost"]
    print(table(head, faults))
    if args.plot:
        plot(figures, args.plot)


if __name__ == "__main__":
    main()
