"""A trainer in the storm, a process of its own: it proves every batch, and has whims.

Run as a program with one JSON argument.

What it knows lies in one page of a file, written at once after each batch: its state, the place of
the next batch, its counts. So a trainer that is killed at any moment is resumed exactly, and its
counts go on.
"""

from __future__ import annotations

import json
import os
import random
import signal
import struct
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from faults.storm.dataset import EPOCHS, PASSED, STREAMS, mark, mark_error, table
from loaderd_client import Loader, RefusedError, SampleError, StallError

PAGE = 8192
SPAN = struct.Struct("<dd")  # asked, got: monotonic seconds
REFUSED = 75  # exit code: no room for this trainer now
WHIMS = {"stall": 3, "hold": 12, "scribble": 12, "break": 2, "seek": 3, "rewind": 3, "reopen": 2}


@dataclass
class Book:
    """What a trainer has seen.

    epoch, step: of the next batch. state: what state_dict() said before it.
    """

    epoch: int = 0
    step: int = 0
    state: dict[str, Any] | None = None
    delivered: int = 0
    errors: int = 0
    hollow: int = 0
    passed: int = 0
    lost: int = 0
    repeated: int = 0
    torn: int = 0
    stalled: int = 0
    passes: int = 0
    resumed: int = 0
    whims: dict[str, int] = field(default_factory=dict)


class Trainer:
    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.rng = random.Random(order["seed"])
        with open(order["expected"]) as file:
            self.expected: list[list[str]] = json.load(file)[
                table(order["stream"], order["rank"], order["world"])
            ]
        self.file = os.open(order["book"], os.O_RDWR | os.O_CREAT, 0o600)
        self.spans = os.open(order["spans"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        page = os.pread(self.file, PAGE, 0).strip(b"\0 ")
        self.book = Book(**json.loads(page)) if page else Book()
        self.held: list[tuple[Any, str]] = []
        self.past: list[tuple[int, int, dict[str, Any]]] = []
        self.leaving = False
        self.room = order["prefetch"] + 1
        signal.signal(signal.SIGTERM, self._leave)
        self.loader = self._open()
        if self.book.state is not None:
            self.book.resumed += 1
            self.loader.load_state_dict(self.book.state)

    def _leave(self, *_: object) -> None:
        self.leaving = True

    def _open(self) -> Loader[Any]:
        o = self.order
        return Loader(
            o["socket"],
            stream=o["stream"],
            output="numpy",
            rank=o["rank"],
            world_size=o["world"],
            prefetch=o["prefetch"],
            shared=o["shared"],
            timeout_s=60,
            reconnect_s=60,
        )

    def run(self) -> None:
        while not self.leaving:
            batches = iter(self.loader)
            while not self.leaving and self._one(batches):
                pass
        for batch, was in self.held:
            self._proven(batch, was)
        self._save()
        self.loader.close()

    def _one(self, batches: Any) -> bool:
        """One batch; False when the pass is over."""
        book, asked = self.book, time.monotonic()
        steps = len(self.expected[book.epoch])
        try:
            batch = next(batches)
            got, epoch, step, seen = time.monotonic(), batch.epoch, batch.step, mark(batch)
        except SampleError as error:
            batch, got, epoch, step = None, time.monotonic(), book.epoch, book.step
            seen = mark_error(epoch, step, error.errors)
            book.errors += 1
        except StallError as error:
            print(f"{self.order['name']}: {error}", flush=True)
            book.stalled += 1
            return True
        except StopIteration:
            self._pass_over()
            book.lost += steps - book.step
            book.passes += 1
            self._turn_to((book.epoch + 1) % EPOCHS)
            return False
        self._prove(epoch, step, seen)
        book.delivered += 1
        book.hollow += batch is not None and batch.rows == 0
        book.state = self.loader.state_dict()
        self._save()
        os.write(self.spans, SPAN.pack(asked, got))
        self.past.append((book.epoch, book.step, book.state))
        del self.past[:-40]
        return self._whim(batch, seen)

    def _pass_over(self) -> None:
        """The next step is the next that was delivered to whom nothing disturbed."""
        book = self.book
        steps = self.expected[book.epoch]
        while book.step < len(steps) and steps[book.step] == PASSED:
            book.step += 1
            book.passed += 1

    def _prove(self, epoch: int, step: int, seen: str) -> None:
        book = self.book
        self._pass_over()
        if (epoch, step) != (book.epoch, book.step):
            place = (epoch - book.epoch) * len(self.expected[0]) + step - book.step
            self._say(f"batch {epoch}/{step} came in place of {book.epoch}/{book.step}")
            if place > 0:
                book.lost += place
            else:
                book.repeated += 1
        if self.expected[epoch % EPOCHS][step] != seen:
            self._say(f"batch {epoch}/{step} is not the undisturbed one")
            book.torn += 1
        book.epoch, book.step = epoch, step + 1

    def _proven(self, batch: Any, was: str) -> None:
        if mark(batch) != was:
            self._say(f"batch {batch.epoch}/{batch.step} changed while it was held")
            self.book.torn += 1

    def _whim(self, batch: Any, seen: str) -> bool:
        """What a trainer may do between two batches. False: the pass was abandoned."""
        what = self.rng.choices([*WHIMS, ""], [*WHIMS.values(), 500])[0]
        if what:
            self.book.whims[what] = self.book.whims.get(what, 0) + 1
        if what == "stall":
            time.sleep(self.rng.uniform(0.1, 1.5))
        elif what == "hold" and batch is not None:
            self.held += [(batch, seen)]
        elif what == "scribble" and batch is not None:
            batch["x"][:] = 255
        elif what == "break":
            self._turn_to((self.book.epoch + 1) % EPOCHS)
            return False
        elif what == "seek":
            self._turn_to(self.rng.randrange(EPOCHS), always=True)
            return False
        elif what == "rewind":
            self.book.epoch, self.book.step, self.book.state = self.rng.choice(self.past)
            self.loader.load_state_dict(self.book.state)
            self._save()
        elif what == "reopen":
            self.loader.close()
            self.loader = self._open()
            assert self.book.state is not None
            self.loader.load_state_dict(self.book.state)
            return False
        while len(self.held) > self.room or (self.held and self.rng.random() < 0.05):
            self._proven(*self.held.pop(0))
        return True

    def _turn_to(self, epoch: int, *, always: bool = False) -> None:
        """The next pass goes through this epoch, by counting on unless it is another than the next."""
        if always or epoch != self.book.epoch + 1:
            self.loader.set_epoch(epoch)
        self.book.epoch, self.book.step = epoch, 0

    def _say(self, text: str) -> None:
        o = self.order
        print(f"{o['name']} ({table(o['stream'], o['rank'], o['world'])}): {text}", flush=True)

    def _save(self) -> None:
        page = json.dumps(asdict(self.book)).encode()
        assert len(page) <= PAGE, len(page)
        os.pwrite(self.file, page.ljust(PAGE), 0)


def hog(order: dict[str, Any]) -> None:
    """Take all the room for segments there is, hold it for a while, give it back."""
    loaders: list[Loader[Any]] = []
    size = 512
    while size >= STREAMS["skip"].batch_size and len(loaders) < 40:
        loader = Loader(
            order["socket"],
            stream="skip",
            output="numpy",
            batch_size=size,
            prefetch=20,
            reconnect_s=20,
        )
        try:
            len(loader)
            loaders.append(loader)
        except RefusedError:
            loader.close()
            size //= 2
    time.sleep(order["lasts_s"])
    for loader in loaders:
        loader.close()


def main() -> int:
    order = json.loads(sys.argv[1])
    try:
        if order.get("hog"):
            hog(order)
        else:
            Trainer(order).run()
    except RefusedError as error:
        print(f"{order['name']}: {error}", flush=True)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
