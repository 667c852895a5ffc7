"""The sources of a mixture as one: their samples, one behind the other."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from loaderd.config.stream import StreamConfig
from loaderd.data.sample import Sample
from loaderd.data.selection.selection import ALL
from loaderd.data.sources.source import Source


class MixtureSource:
    """The samples of all sources of a mixture. Has what is asked of an open `Source`.

    Attributes:
        sources: The sources, in the order of the config.
        offsets: The index of the first sample of each.
        others: As of a Source.
    """

    many = False  # each source would be asked for its own rows alone
    dataset = None
    codec = values = ""
    parts: tuple[str, ...] = ()  # each source has its own
    firsts: tuple[int, ...] = ()
    selection = ALL  # each source has its own

    def __init__(self, plan: StreamConfig, sources: Sequence[Source]) -> None:
        """Take over sources that are open.

        Args:
            plan: The mixture.
            sources: The sources.
        """
        self.plan = plan
        self.sources = list(sources)
        totals = [part.total for part in sources]
        self.total = sum(totals)
        self.offsets = [0, *accumulate(totals)][:-1]
        self.layout = "mixture"
        self.identity = ", ".join(f"{part.plan.name}: {part.identity}" for part in sources)
        self.keys = "stored" if any(part.keys == "stored" for part in sources) else "index"
        self.classes = next((part.classes for part in sources if part.classes), ())
        self.user_code = any(part.user_code for part in sources)
        self.warnings = tuple(text for part in sources for text in part.warnings)

    def place(self, index: int) -> tuple[int, int]:
        """(number of its source, index there) of a sample."""
        if not 0 <= index < self.total:
            raise IndexError(f"sample {index} of {self.total}")
        number = bisect_right(self.offsets, index) - 1
        return number, index - self.offsets[number]

    def read(self, index: int) -> Sample:
        """A sample as its source has it stored. Raises what reading it raises."""
        number, own = self.place(index)
        return self.sources[number].read(own)

    def key(self, index: int) -> str:
        """The sample's name in its source; where that has none, its index."""
        number, own = self.place(index)
        part = self.sources[number]
        return part.key(own) if part.keys == "stored" else str(index)

    def part(self, index: int) -> str:
        """The database that a sample comes from; "" where its source has not several."""
        number, own = self.place(index)
        return self.sources[number].part(own)

    def label(self, index: int) -> str:
        """The sample's name for messages, with that of its source."""
        number, own = self.place(index)
        return f"{self.sources[number].plan.name}:{self.sources[number].key(own)}"

    def awaits(self, epoch: int) -> bool:
        """Whether `tell` is to be called before samples of this epoch are read."""
        return any(part.awaits(epoch) for part in self.sources)

    def tell(self, epoch: int) -> None:
        """Tell each dataset that awaits it the trainer's epoch. Raises whatever one raises."""
        for part in self.sources:
            if part.awaits(epoch):
                part.tell(epoch)

    @property
    def form(self) -> str:
        """As of the first source."""
        return self.sources[0].form

    @property
    def state(self) -> str:
        """What of their files must stay as it is, for `expect` in another process."""
        return json.dumps([part.state for part in self.sources])

    def expect(self, state: str) -> str:
        """As of each source; the first difference."""
        told = [
            part.expect(each) for part, each in zip(self.sources, states_of(state), strict=False)
        ]
        return next((text for text in told if text), "")

    def changed(self) -> str:
        """What has changed of any source; "" if nothing has."""
        for part in self.sources:
            text = part.changed()
            if text:
                return text
        return ""

    def notes(self) -> list[str]:
        """Those of all sources."""
        return [note for part in self.sources for note in part.notes()]

    def close(self) -> None:
        """Close all."""
        for part in self.sources:
            part.close()


def states_of(state: str) -> list[str]:
    """The states of the sources that `MixtureSource.state` is made of; none for ""."""
    return json.loads(state) if state else []
