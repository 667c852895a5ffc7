"""The arithmetic of a verdict, and what it says for each kind of load."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderd.core import verdict as v
from loaderd.core.verdict import AutoSize, Measures, Verdict, verdict

# 100 steps in 10 s, of which the trainer waits 6: it computes 40 ms a step; 0.2 worker-seconds a batch
WAITING = Measures(
    elapsed_s=10.0,
    waited_s=6.0,
    batches=100,
    held_s=0.0,
    stage_s=(4.0, 12.0, 3.0, 1.0),
    rows=800,
    batch_rows=8,
    prefetch=4,
    jobs=2,
    busy=1.95,
    workers=2,
)


def of(**changed: Any) -> Verdict:
    return verdict(replace(WAITING, **changed))


def test_the_example_of_the_guide_is_computed_as_it_says() -> None:
    made = of()
    assert (made.kind, made.stage, made.stage_share) == ("decode-bound", "decode", 0.6)
    assert made.wait_fraction == pytest.approx(0.6)
    assert made.batches_per_s == pytest.approx(10)
    assert made.demand_per_s == pytest.approx(25)
    assert made.worker_s_per_batch == pytest.approx(0.2)
    assert made.need_workers == pytest.approx(5.0)
    assert made.setting == "num_workers = 5"
    assert made.text == (
        "decode-bound: the trainer waits 60% of the time; decode is 60% of the workers' time; "
        "this trainer needs 5.0 workers; it has 2; set num_workers = 5"
    )


def test_each_stage_has_its_verdict() -> None:
    for n, kind in enumerate(["read-bound", "decode-bound", "transform-bound", "handoff-bound"]):
        seconds = [1.0] * 4
        seconds[n] = 5.0
        assert of(stage_s=tuple(seconds)).kind == kind


def test_a_trainer_that_does_not_wait_needs_no_faster_loader() -> None:
    made = of(waited_s=0.3)
    assert (made.kind, made.setting) == ("trainer-bound", "")
    assert "a faster loader would not help" in made.text


def test_idle_workers_without_a_slot_are_a_want_of_memory() -> None:
    made = of(busy=0.5, held_s=5.0)
    assert (made.kind, made.setting) == ("memory-bound", "prefetch = 8")


def test_idle_workers_with_free_slots_are_a_slow_handoff() -> None:
    assert of(busy=0.5).setting == "prefetch = 8"
    made = of(busy=0.5, batches=10_000, rows=80_000)
    assert (made.kind, made.setting) == ("handoff-bound", "batch_size = 16")


def test_workers_that_cannot_all_help_want_more_batches_ahead() -> None:
    made = of(workers=8, jobs=4, busy=3.9)
    assert (made.kind, made.setting) == ("decode-bound", "prefetch = 8")
    assert "only 4 of the workers can help" in made.text


def test_what_other_trainers_need_is_counted() -> None:
    made = of(others_need=3.5)
    assert made.setting == "num_workers = 9"
    assert "this trainer needs 5.0 workers, the others 3.5; they share 2" in made.text


def test_more_workers_than_processors_help_only_where_they_read() -> None:
    assert of(cpus=2).setting == "loaderd pack --resize"
    assert of(cpus=4).setting == "num_workers = 4"
    assert of(cpus=2, stage_s=(18.0, 1.0, 1.0, 0.0)).setting == "num_workers = 5"
    assert of(cpus=2, stage_s=(1.0, 1.0, 18.0, 0.0)).setting == "transforms"
    assert of(cpus=2, stage_s=(1.0, 1.0, 0.0, 18.0)).setting == "fields"


# the host lacks 3 of 5 CPUs: 120 of 200 rows a second, of 150 KB each
SHORT = {"cpus": 2, "bytes": 800 * 150_000}


def test_a_host_that_has_too_few_processors_is_told_what_borrowed_ones_would_cost() -> None:
    wire = "3 borrowed CPUs ([workers.ray]) would be enough, at 0.1 Gbit/s on the wire"
    made = of(**SHORT)
    assert made.text.endswith(f"store smaller images: loaderd pack --resize; {wire}")
    assert made.setting == "loaderd pack --resize"
    assert of(**SHORT, auto=AutoSize()).text.endswith(wire)
    assert "set num_workers = 4; 1 borrowed CPU " in of(**SHORT | {"cpus": 4}).text


def test_photos_that_would_fill_the_wire_are_to_be_sent_as_crops() -> None:
    made = of(**SHORT | {"bytes": 800 * 36_000_000})
    assert made.text.endswith(
        "3 borrowed CPUs ([workers.ray]) would put 35 Gbit/s on the wire (36,000 KB a row): send "
        "crops, not photos"
    )


@pytest.mark.parametrize(
    "enough",
    [
        {"cpus": 8},  # of its own
        {"all_cpus": 16},  # that it is pinned away from
        {"stage_s": (18.0, 1.0, 1.0, 0.0)},  # the disk is what is waited for
        {"stage_s": (1.0, 1.0, 0.0, 18.0)},  # more rows to write would come over the wire
        {"waited_s": 0.0},
        {"workers": 8, "jobs": 4, "busy": 3.9},
        {"bytes": 0},  # unknown
    ],
)
def test_who_would_not_gain_from_borrowed_processors_is_not_told_of_them(
    enough: dict[str, Any],
) -> None:
    assert "borrowed" not in of(**SHORT | enough).text


def test_what_workers_on_other_hosts_send_is_told() -> None:
    made = of(remote=12, remote_bytes_per_s=387_500_000.0)
    assert "it has 2; 12 borrowed CPUs send 3.1 Gbit/s; set num_workers = 5" in made.text
    assert "1 borrowed CPU sends 0.0 Gbit/s" in of(remote=1, remote_bytes_per_s=1.0).text


def test_a_pool_that_finds_its_own_number_is_not_told_one() -> None:
    made = of(auto=AutoSize())
    assert made.setting == ""
    assert made.text.endswith('it has 2; num_workers = "auto" finds the number')
    why = AutoSize("memory has no room for another worker", "memory")
    assert (of(auto=why).setting, of(auto=why).text[-37:]) == ("memory", why.text)
    assert of(auto=AutoSize(), workers=8, jobs=4, busy=3.9).setting == "prefetch = 8"
    assert of(auto=AutoSize(), cpus=2).setting == "loaderd pack --resize"


def test_a_pool_that_has_grown_meanwhile_is_judged_by_what_it_had() -> None:
    made = of(auto=AutoSize(), workers=6, jobs=6, had=2.5)
    assert (made.kind, made.setting) == ("decode-bound", "")
    assert made.text.endswith(
        "it has 6; the pool had 2.5 workers on average, and has grown meanwhile"
    )


def test_workers_that_wait_for_reads_leave_processors_to_others() -> None:
    assert v.most_workers(4, (8.0, 0.0, 0.0, 0.0)) == 32
    assert v.most_workers(4, (0.0, 1.0, 2.0, 3.0)) == 4
    assert v.most_workers(4, (8.0, 4.0, 2.0, 2.0)) == 7
    assert v.most_workers(4, (0.0, 0.0, 0.0, 0.0)) == 4
    assert v.most_workers(0, (8.0, 0.0, 0.0, 0.0)) == v.MOST_WORKERS


def test_a_daemon_that_is_pinned_to_some_processors_is_told_how_to_use_all() -> None:
    made = of(cpus=1, all_cpus=16)
    assert made.setting == "reset_affinity = true"
    assert "the daemon is pinned to 1 of 16 processors" in made.text


def test_nothing_is_said_where_nothing_was_measured() -> None:
    assert of(batches=0, rows=0).kind == "starting"
    assert v.starting().text.startswith("starting: ")
    assert v.idle(63.2).text == "idle: the trainer has not asked for a batch for 63 s"


seconds = st.floats(0.0, 1e4)
measures = st.builds(
    Measures,
    elapsed_s=seconds,
    waited_s=seconds,
    batches=st.integers(0, 10**6),
    held_s=seconds,
    stage_s=st.tuples(seconds, seconds, seconds, seconds),
    rows=st.integers(0, 10**8),
    batch_rows=st.integers(1, 10**5),
    prefetch=st.integers(1, 64),
    jobs=st.integers(1, 64),
    busy=st.floats(0.0, 64.0),
    workers=st.integers(1, 64),
    others_need=st.floats(0.0, 1e3),
    cpus=st.integers(0, 64),
)


@given(measures)
def test_whatever_was_measured_has_a_verdict(m: Measures) -> None:
    made = verdict(m)
    assert made.kind in v.KINDS
    assert made.text.startswith(f"{made.kind}: ")
    assert 0.0 <= made.wait_fraction <= 1.0
    assert 0.0 <= made.stage_share <= 1.0
    assert "\n" not in made.text
    assert len(made.text) < 400
    assert all(math.isfinite(x) for x in (made.batches_per_s, made.need_workers or 0.0))


@given(
    own_s=st.floats(1e-3, 10.0),
    batch_s=st.floats(1e-3, 10.0),
    workers=st.integers(1, 32),
    steps=st.integers(8, 1000),
)
def test_the_need_is_the_same_whatever_number_of_workers_it_is_measured_with(
    own_s: float, batch_s: float, workers: int, steps: int
) -> None:
    """A trainer that computes for own_s, and workers that take batch_s for a batch: the slower side
    decides the length of a step, and the need is batch_s / own_s."""
    step_s = max(own_s, batch_s / workers)
    made = verdict(
        Measures(
            elapsed_s=step_s * steps,
            waited_s=(step_s - own_s) * steps,
            batches=steps,
            held_s=0.0,
            stage_s=(0.0, batch_s * steps, 0.0, 0.0),
            rows=steps * 8,
            batch_rows=8,
            prefetch=4,
            jobs=workers,
            busy=batch_s / step_s,
            workers=workers,
        )
    )
    assert made.need_workers == pytest.approx(batch_s / own_s, rel=1e-6)
    needed = made.need_workers or 0.0
    if needed > workers * 1.1:
        assert made.kind == "decode-bound"
        assert made.setting == f"num_workers = {min(v.MOST_WORKERS, math.ceil(needed))}"
    elif needed < workers * 0.99:
        assert made.kind == "trainer-bound"


@given(measures, st.floats(1.1, 10.0))
def test_longer_waits_with_the_same_step_need_more_workers(m: Measures, more: float) -> None:
    longer = replace(m, elapsed_s=m.elapsed_s * 2, waited_s=m.waited_s * more)
    for each in (m, longer):
        if each.waited_s > each.elapsed_s:
            return
    base = replace(longer, waited_s=m.waited_s)
    assert (longer.need or 0.0) >= (base.need or 0.0)
