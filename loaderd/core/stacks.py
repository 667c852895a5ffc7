"""Workers' stacks for a trainer that is about to give up: of whom they are taken, and what is kept of them."""

from __future__ import annotations

from collections.abc import Iterable

from loaderd.core.actions import Dump
from loaderd.core.pool import Life, Worker

MOST = 8  # workers at a time
CHARS = 12_000  # of one worker's
ASKED_OF = (Life.STARTING, Life.UP, Life.RETIRING)  # the others are being killed, and were asked before


def ask(workers: Iterable[Worker]) -> list[Dump]:
    """Have these write their stacks; those that have not moved for the longest time where they are too many.

    Once for each job, for the signal can cut short a sleep of C code. A stopped worker cannot answer and is asked when it goes on.
    """
    actions: list[Dump] = []
    for w in sorted(workers, key=lambda w: -w.quiet_s)[:MOST]:
        if w.life in ASKED_OF and not w.paused and w.asked != w.job:
            w.asked, w.stack = w.job, ""
            actions.append(Dump(w.worker))
    return actions


def take(w: Worker | None, text: str, now_s: float) -> None:
    """A worker's stacks have come; "" if it has no ears yet: it may be asked again. Those of a job that is done say nothing any longer."""
    if w is None or w.asked != w.job:
        return
    if text:
        w.stack, w.stack_s = cut(text), now_s
    else:
        w.asked = None


def of(w: Worker) -> str:
    """What is known of the job that it has now, or ""."""
    return w.stack if w.asked == w.job else ""


def cut(text: str) -> str:
    """At most CHARS of it: the ends of both threads and calls that matter stand first."""
    text = text.rstrip("\n")
    return text if len(text) <= CHARS else f"{text[: CHARS - 40]}\n  ... ({len(text) - CHARS + 40} characters more)"
