"""Bad rows among the rows taken, and when there are too many of them. Pure."""

from __future__ import annotations

from typing import NamedTuple

from loaderd_wire.errors import BadSample

JUDGED_FROM = 1000  # rows of this rank; before that a fraction says nothing
LAST = 5


# made anew for each batch: a frozen dataclass takes five times as long
class ErrorBudget(NamedTuple):
    """Bad rows among the rows taken.

    Attributes:
        rows: Rows taken by all ranks together, so that the number is the same on each.
        bad: Bad samples that this rank met.
        last: The latest of them.
    """

    rows: int = 0
    bad: int = 0
    last: tuple[BadSample, ...] = ()

    def plus(self, rows: int, bad: tuple[BadSample, ...]) -> ErrorBudget:
        """The budget after one more step.

        Args:
            rows: Rows of the step, of all ranks.
            bad: Bad samples of this rank's batch.
        """
        return ErrorBudget(
            self.rows + rows, self.bad + len(bad), (*self.last, *bad)[-LAST:] if bad else self.last
        )

    def verdict(self, max_errors: float, world_size: int, *, epoch_ends: bool) -> str:
        """Why the run must end, with the count and the last keys.

        Args:
            max_errors: As in Welcome: 0 for no limit, a count from 1 on, or a share of the rows.
            world_size: Number of ranks.
            epoch_ends: The step was the last one of its epoch.

        Returns:
            The text; "" if the run need not end.
        """
        if not max_errors or not self.bad:
            return ""
        rows = max(self.rows // world_size, self.bad)
        if max_errors >= 1:
            over, limit = self.bad > max_errors, f"{max_errors:.0f}"
        else:
            over = (rows >= JUDGED_FROM or epoch_ends) and self.bad > max_errors * rows
            limit = f"{max_errors:g} of the rows taken"
        if not over:
            return ""
        keys = ", ".join(repr(b.key) for b in self.last)
        last = (
            f"; the last: {keys} ({self.last[-1].error}: {self.last[-1].message})"
            if self.last
            else ""
        )
        return f"{self.bad} bad samples in {rows} rows, over max_errors = {limit}{last}"
