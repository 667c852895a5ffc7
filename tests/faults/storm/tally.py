"""What a storm has done and what came through: counts, waits after faults, leaks, as one markdown
table.
"""

from __future__ import annotations

import bisect
import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faults.storm.dataset import NOTE
from faults.storm.processes import alive
from faults.storm.trainer import PAGE, SPAN

if TYPE_CHECKING:
    from faults.storm.storm import Seat

WINDOW_S = 60.0
LINGER_S = 3.0  # how long the fault before may still be felt
MEASURED = {
    "kill a worker": "worker killed",
    "kill the daemon": "daemon killed",
    "hang": "sample hangs",
}
# what a sample does, as the module's notes call it
SAMPLES = {
    "raise": "a sample raises",
    "none": "a sample is None",
    "shape": "a sample has another shape",
    "dtype": "a sample has another dtype",
    "hang": "a sample hangs",
    "crash": "a sample crashes its worker",
    "exit": "a sample ends its worker",
    "system": "a sample raises SystemExit",
    "leak": "samples leak",
}


class Tally:
    def __init__(self, folder: Path, workers: int) -> None:
        self.folder = folder
        self.workers = workers
        self.faults: Counter[str] = Counter()
        self.struck_at: list[tuple[float, str, list[str]]] = []
        self.orders: dict[str, dict[str, Any]] = {}
        self.away: dict[str, list[tuple[float, float]]] = {}
        self.spans: dict[str, list[tuple[float, float]]] = {}
        self.troubles: list[str] = []
        self.leaks: list[str] = []
        self.books: Counter[str] = Counter()
        self.whims: Counter[str] = Counter()
        # first, fresh, no other fault
        self.waits: dict[str, list[tuple[float, float, bool]]] = {
            text: [] for text in MEASURED.values()
        }
        self.rss: tuple[int, int] = (0, 0)
        self.daemons = 0
        # exit codes of daemons that ended before they were ready
        self.unready: Counter[int] = Counter()
        self.refused = 0
        self.seconds = 0.0

    # -- while it blows

    def struck(self, kind: str, at_s: float, seats: list[Seat]) -> None:
        self.faults[kind] += 1
        self.struck_at.append((at_s, kind, [seat.order["name"] for seat in seats]))

    def broken(self, text: str) -> None:
        """Something that should not have been."""
        self.troubles.append(text)

    def trainer_came(self, order: dict[str, Any], away: list[tuple[float, float]]) -> None:
        """away: spans in which it will have been struck itself; whoever strikes it adds to them."""
        self.orders[order["name"]] = order
        self.away[order["name"]] = away

    def book(self, order: dict[str, Any]) -> dict[str, Any]:
        try:
            page = Path(order["book"]).read_bytes()[:PAGE].strip(b"\0 ")
        except FileNotFoundError:
            return {}
        return json.loads(page) if page else {}

    def delivered(self, order: dict[str, Any]) -> int:
        return self.book(order).get("delivered", 0)

    # -- after it

    def compare(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        self.rss = before.pop("rss"), after.pop("rss")
        for name in before:
            if before[name] != after[name]:
                self.leaks.append(f"{name}: {before[name]} before, {after[name]} after")
        if self.rss[1] > self.rss[0] * 1.05:
            self.leaks.append(
                f"memory of the daemon: {self.rss[0]} bytes before, {self.rss[1]} after"
            )

    def finish(self, seconds: float, seen: set[int]) -> None:
        self.seconds = seconds
        left = [pid for pid in seen if alive(pid)]
        if left:
            self.leaks.append(f"processes that live on: {left}")
        for order in self.orders.values():
            book = self.book(order)
            self.whims.update(book.pop("whims", {}))
            self.books.update(
                {k: v for k, v in book.items() if type(v) is int and k not in ("epoch", "step")}
            )
        self.faults.update(self._notes())
        self.faults.update(
            {
                f"a trainer {what}s": n
                for what, n in {"break": self.whims["break"], "seek": self.whims["seek"]}.items()
                if n
            }
        )
        for at_s, kind, names in self.struck_at:
            if kind in MEASURED:
                self._measure(at_s, kind, names)

    def _notes(self) -> Counter[str]:
        """Faults of samples, as the workers noted them."""
        notes: Counter[str] = Counter()
        with contextlib.suppress(FileNotFoundError):
            data = (self.folder / "rough" / "notes").read_bytes()
            orders = list(self.orders.values())
            for at_s, kind, stream in NOTE.iter_unpack(data[: len(data) // NOTE.size * NOTE.size]):
                name = kind.rstrip(b"\0").decode()
                if name in SAMPLES:
                    notes[SAMPLES[name]] += 1
                if name == "hang":
                    mine = [
                        o["name"] for o in orders if o["stream"] == stream.rstrip(b"\0").decode()
                    ]
                    self.struck_at.append((at_s, "hang", mine))
        return notes

    def _measure(self, at_s: float, kind: str, names: list[str]) -> None:
        """Seconds that the trainer that waited longest was inside next(), from the fault on: until
        its next batch, and until one that was not begun before the fault, since no more than
        prefetch + 2 of them can have been. A trainer that was itself struck meanwhile says nothing.
        """
        found: list[tuple[float, float, float]] = []
        for name in names:
            spans, room = self._spans(name), self.orders[name]["prefetch"] + 3
            i = bisect.bisect_right(spans, at_s, key=lambda span: span[1])
            mine = spans[i : i + room]
            if len(mine) < room or mine[-1][1] > at_s + WINDOW_S or i == 0:
                continue
            if any(
                begin - 0.1 <= mine[-1][1] and at_s <= end for begin, end in self.away.get(name, [])
            ):
                continue
            waits = [got - max(asked, at_s) for asked, got in mine]
            found.append((sum(waits), waits[0], mine[-1][1]))
        if found:
            total, first, until_s = max(found)
            alone = not any(
                other != at_s and at_s - LINGER_S < other < until_s
                for other, _, _ in self.struck_at
            )
            self.waits[MEASURED[kind]].append((first, total, alone))

    def _spans(self, name: str) -> list[tuple[float, float]]:
        if name not in self.spans:
            try:
                data = Path(self.orders[name]["spans"]).read_bytes()
            except FileNotFoundError:
                data = b""
            self.spans[name] = list(SPAN.iter_unpack(data[: len(data) // SPAN.size * SPAN.size]))
        return self.spans[name]

    # -- what it comes to

    def wrong(self) -> list[str]:
        """Everything that no storm may bring about; empty is what one hopes for."""
        found = [
            f"{self.books[name]} batches {name}"
            for name in ("lost", "repeated", "torn")
            if self.books[name]
        ]
        return found + self.leaks + self.troubles

    def markdown(self) -> str:
        books = self.books
        rows: list[tuple[str, Any]] = [
            ("minutes", f"{self.seconds / 60:.1f}"),
            ("kinds of fault", len(self.faults)),
            ("faults injected", sum(self.faults.values())),
            (
                "daemons, trainers, trainers resumed from their state",
                f"{self.daemons}, {len(self.orders)}, {books['resumed']}",
            ),
            ("daemons struck before they were ready, by exit code", dict(self.unready) or "none"),
            ("batches delivered and proven", books["delivered"]),
            ("of these a SampleError, as they should be", books["errors"]),
            (
                "of these without a row, and such passed over",
                f"{books['hollow']}, {books['passed']}",
            ),
            ("whole passes", books["passes"]),
            (
                "batches lost, repeated, torn",
                f"{books['lost']}, {books['repeated']}, {books['torn']}",
            ),
            ("trainers refused for want of room, then served", self.refused),
            ("trainers that raised StallError, then went on", books["stalled"]),
        ]
        rows += self._waits_rows()
        rows.append(
            (
                "daemon's memory before, after",
                f"{self.rss[0] / 2**20:.1f} MiB, {self.rss[1] / 2**20:.1f} MiB",
            )
        )
        rows.append(("leaks (fds, memfds, processes, files, memory)", len(self.leaks)))
        lines = [
            "| | |",
            "|---|---|",
            *[f"| {name} | {value} |" for name, value in rows],
            "",
            "| fault | times |",
            "|---|---|",
        ]
        lines += [f"| {kind} | {n} |" for kind, n in sorted(self.faults.items())]
        return "\n".join([*lines, "", *[f"WRONG: {text}" for text in self.wrong()]])

    def _waits_rows(self) -> Iterator[tuple[str, str]]:
        """How long trainers waited after each kind of fault."""
        for text, waits in self.waits.items():
            alone = [fresh for _, fresh, alone in waits if alone]
            yield (
                f"{text}: seconds to the next batch, p50 / worst ({len(waits)} faults)",
                _spread([first for first, _, _ in waits]),
            )
            yield (
                f"{text}: seconds waited until a batch not begun before, p50 / worst",
                _spread([fresh for _, fresh, _ in waits]),
            )
            yield (
                f"{text}: the same where no other fault fell into it ({len(alone)} faults)",
                _spread(alone),
            )


def _spread(values: list[float]) -> str:
    if not values:
        return "-"
    ordered = sorted(values)
    return f"{ordered[(len(ordered) - 1) // 2]:.3f} / {ordered[-1]:.3f}"
