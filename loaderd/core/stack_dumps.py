"""The stacks of workers that a trainer waits for: whose are taken, and how much of them is kept."""

from __future__ import annotations

from collections.abc import Iterable

from loaderd.core.actions import DumpStack
from loaderd.core.pool_worker import PoolWorker, WorkerState

ANY_JOB = -1  # in place of a job, where a user wants to see what it does
MOST = 8  # workers whose stacks are taken at a time
CHARS = 12_000  # of one worker's stacks that are kept
# others are being killed, and were asked before
ASKED_OF = (WorkerState.STARTING, WorkerState.UP, WorkerState.RETIRING)


def ask(workers: Iterable[PoolWorker], *, again: bool = False) -> list[DumpStack]:
    """Have workers write their stacks.

    Once for each job, because the signal can cut short a sleep of C code. A stopped worker cannot
    answer, and is asked when it goes on.

    Args:
        workers: Which ones. Of more than MOST those that have not moved for the longest time.
        again: A user has asked: they are taken anew, and shown whatever job it has by then.
    """
    actions: list[DumpStack] = []
    for w in sorted(workers, key=lambda w: -w.quiet_s)[:MOST]:
        if w.life in ASKED_OF and not w.paused and (again or w.asked != w.job):
            w.asked, w.stack = ANY_JOB if again else w.job, ""
            actions.append(DumpStack(w.worker))
    return actions


def take(w: PoolWorker | None, text: str, now_s: float) -> None:
    """Keep the stacks that a worker has written.

    Args:
        w: The worker; None if it is dead by now.
        text: The stacks. "": its signal handler is not installed yet, so it may be asked again.
        now_s: Time of the event.
    """
    if w is None or w.asked not in (w.job, ANY_JOB):
        return
    if text:
        w.stack, w.stack_s = cut(text), now_s
    else:
        w.asked = None


def of(w: PoolWorker) -> str:
    """The stacks of a worker, if they are of its job, or a user has asked for them; else ""."""
    return w.stack if w.asked in (w.job, ANY_JOB) else ""


def cut(text: str) -> str:
    """At most CHARS characters. The calls that matter stand first and are kept."""
    text = text.rstrip("\n")
    return (
        text
        if len(text) <= CHARS
        else f"{text[: CHARS - 40]}\n  ... ({len(text) - CHARS + 40} characters more)"
    )
