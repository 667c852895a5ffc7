"""Sessions of a group that are too far apart to share: who is hurried, and that nobody starves."""

from __future__ import annotations

from loaderd.core.actions import SendJob
from loaderd_testing.scheduler_harness import SchedulerHarness
from loaderd_wire.slices import EpochShape

GROUP = 99
LONG = EpochShape(samples=8 * 500, batch_size=8, rank=0, world_size=1, drop_last=True)


def apart(steps: int) -> SchedulerHarness:
    """Two members, of which the second is so many steps behind."""
    harness = SchedulerHarness(workers=2, samples=LONG.samples)
    for session in (1, 2):
        harness.attach(session, group=GROUP, shape=LONG, share_window=4)
    for _ in range(steps):
        harness.take(1)
    return harness


def made(harness: SchedulerHarness) -> int:
    """How many batches were begun."""
    return sum(action.job.first == 0 for action in harness.of(SendJob))


def wait_for_workers(harness: SchedulerHarness, turns: int, *sessions: int) -> dict[int, int]:
    """These trainers take each batch as soon as it is made; how many each of them got."""
    got = dict.fromkeys(sessions, 0)
    for _ in range(turns):
        harness.work()
        for session in sessions:
            client = harness.clients[session]
            harness.hear(session)
            while (batch := client.take()) is not None:
                client.release(batch.segment, batch.slot, batch.generation)
                got[session] += 1
            if client.dirty:
                harness.tell(session)
    return got


def test_one_that_is_far_behind_catches_up_while_all_wait_for_workers_and_nobody_starves() -> None:
    harness = apart(60)
    got = wait_for_workers(harness, 80, 1, 2)
    assert got[2] > 1.5 * got[1]
    assert got[1] > sum(got.values()) / 4
    wait_for_workers(harness, 160, 1, 2)
    before = made(harness)
    got = wait_for_workers(harness, 40, 1, 2)
    assert min(got.values()) > 30
    assert made(harness) - before <= max(got.values()) + 8  # each is made once


def test_one_that_is_far_behind_and_waits_for_nothing_takes_nothing_from_the_others() -> None:
    harness = apart(60)
    harness.finish()  # the second one takes nothing
    before = made(harness)
    got = wait_for_workers(harness, 40, 1)
    assert made(harness) - before <= got[1] + 4
