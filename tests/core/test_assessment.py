"""Verdicts of the real scheduler in simulated time: what it is told to need is what it needs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderd.core.assessment import Rates, measure, rates, worst
from loaderd.core.events import ProgressReceived
from loaderd.core.verdict import Verdict, idle, starting
from loaderd_testing.scheduler_harness import SchedulerHarness
from loaderd_testing.timed_load import Load, TimedLoad


def judged(load: Load) -> Verdict:
    return TimedLoad(load).run()


def wanted(made: Verdict, name: str) -> int:
    given, _, value = made.setting.partition(" = ")
    assert given == name, made.text
    return int(value)


def test_the_rates_are_those_of_the_trainer_and_tell_when_the_epoch_ends() -> None:
    world = TimedLoad(Load(row_s=0.005, own_s=0.05))
    world.run()
    state = world.harness.core.state
    session = state.sessions[1]
    found = rates(state, session, world.harness.now_s)
    assert found is not None
    assert found.batches_per_s == pytest.approx(20, rel=0.05)
    assert found.bytes_per_s == pytest.approx(20 * 8 * 100, rel=0.1)
    assert found.wait_fraction < 0.05
    left = (1 << 20) // 8 - session.window.taken
    assert found.eta_s == pytest.approx(left / found.batches_per_s)
    assert state.streams["train"].batches == session.window.taken
    assert rates(state, session, world.harness.now_s + 600) == Rates(0.0, 0.0, 0.0, None)


def test_what_workers_on_other_hosts_send_is_measured() -> None:
    world = TimedLoad(Load(row_s=0.025, own_s=0.04))
    pool = world.harness.core.state.pool
    pool.workers[2].remote = True
    pool.remote.up.add(2)
    made = world.run()
    found = measure(
        world.harness.core.state, world.harness.core.state.sessions[1], world.harness.now_s
    )
    assert found is not None
    assert found.remote == 1
    assert found.remote_bytes_per_s == pytest.approx(100 / 0.025, rel=0.1)  # 100 bytes a row
    assert found.bytes == pytest.approx(100 * found.rows)
    assert "1 borrowed CPU sends 0.0 Gbit/s" in made.text


def test_before_its_first_batch_nothing_is_known_of_a_sessions_rates() -> None:
    harness = SchedulerHarness()
    harness.attach()
    assert rates(harness.core.state, harness.core.state.sessions[1], harness.now_s) is None


@pytest.mark.parametrize(("row_s", "own_s"), [(0.025, 0.04), (0.01, 0.03), (0.1, 0.09)])
def test_a_trainer_that_gets_the_workers_it_is_said_to_need_waits_no_more(
    row_s: float, own_s: float
) -> None:
    load = Load(row_s=row_s, own_s=own_s)
    made = judged(load)
    assert made.kind == "read-bound"
    assert made.need_workers == pytest.approx(8 * row_s / own_s, rel=0.1)
    given = judged(replace(load, workers=wanted(made, "num_workers")))
    assert given.kind == "trainer-bound", given.text
    assert given.batches_per_s == pytest.approx(made.demand_per_s, rel=0.06)
    fewer = judged(replace(load, workers=wanted(made, "num_workers") - 1))
    assert fewer.kind == "read-bound", fewer.text


def test_what_is_said_in_turn_ends_where_nothing_of_the_loader_helps() -> None:
    """Batches of 24 ms are one job each, so that six workers need more than four of them ahead."""
    load = Load(row_s=0.003, own_s=0.004)
    made = judged(load)
    for _ in range(2):
        name, _, value = made.setting.partition(" = ")
        load = replace(load, **{"workers" if name == "num_workers" else name: int(value)})
        made = judged(load)
    assert (made.kind, load.workers, load.prefetch) == ("trainer-bound", 6, 8)


def test_a_trainer_that_takes_batches_in_bursts_gets_the_slots_it_is_said_to_need() -> None:
    load = Load(workers=4, row_s=0.01, own_s=0.05, prefetch=1, burst=4)
    made = judged(load)
    assert made.kind == "memory-bound", made.text
    while made.kind == "memory-bound":
        load = replace(load, prefetch=wanted(made, "prefetch"))
        made = judged(load)
    assert (made.kind, load.prefetch) == ("trainer-bound", 4), made.text


def test_batches_that_are_made_as_a_whole_want_as_many_ahead_as_there_are_workers() -> None:
    load = Load(workers=8, row_s=0.025, own_s=0.028, prefetch=2, collated=True)
    made = judged(load)
    assert made.kind == "read-bound"
    assert "only 2 of the workers can help" in made.text
    assert judged(replace(load, prefetch=8)).kind == "trainer-bound"


def test_a_client_is_told_the_verdict_at_most_once_a_second() -> None:
    world = TimedLoad(Load(seconds=20.0))
    made = world.run()
    assert 10 <= len(world.said) <= 20
    assert world.said[-1].partition(":")[0] == made.kind
    old = TimedLoad(Load(tells=False))
    assert "older version" in old.run().text
    assert old.said == []


def test_the_trainer_that_waits_most_is_the_one_that_is_told_of() -> None:
    slow, fine = Verdict("read-bound", "", 0.4), Verdict("trainer-bound", "", 0.01)
    assert worst([fine, slow, idle(9.0), starting(), None]) is slow
    assert worst([idle(9.0), starting()]) == starting()
    assert worst([idle(9.0)]) == idle(9.0)
    assert worst([]) is None


def test_batches_that_were_never_announced_do_not_count_as_taken() -> None:
    harness = SchedulerHarness()
    client = harness.attach()
    for _ in range(8):
        harness.take()
    false = replace(client.progress(waited_s=float("nan")), taken=1 << 40)
    harness.step(ProgressReceived(1, false), after_s=2.0)
    harness.step(ProgressReceived(1, client.progress(waited_s=float("inf"))), after_s=2.0)
    session = harness.core.state.sessions[1]
    measured = measure(harness.core.state, session, harness.now_s)
    assert measured is not None
    assert (measured.batches, measured.wait_fraction) == (
        7,
        0.5,
    )  # the window begins with the first
