"""Workers that do not move: looked at, dumped and killed."""

from __future__ import annotations

import pytest

from loaderd.core.actions import Dump, Kill, Retire, Send, Start, StreamBroken
from loaderd.core.events import Seen, WorkerDied, WorkerReady
from loaderd.core.jobs import IMPORTING, Kind, Stage
from loaderd_testing.scheduler_harness import House, hang, one_session


def killed(house: House, worker: int, row: int, stage: Stage = Stage.DECODE, *, key: str = "k") -> None:
    house.die(worker, row, stage, own=False, cause="SIGKILL", key=key, stack="File transform.py, line 3")


def test_a_sample_that_hangs_is_dumped_and_killed_after_its_time_and_named_as_a_timeout() -> None:
    house = one_session(on_error="skip")
    assert 10.0 < hang(house, 1, 2) < 12.0
    dump = next(i for i, a in enumerate(house.log) if isinstance(a, Dump))
    assert dump < next(i for i, a in enumerate(house.log) if isinstance(a, Kill))
    killed(house, 1, 2)
    batch = house.take()
    assert batch.filled == 7
    (bad,) = batch.bad
    assert (bad.index, bad.key, bad.stage, bad.error) == (20, "k", "decode", "Timeout")
    assert "10 s" in bad.message
    assert bad.traceback == "File transform.py, line 3"


def test_a_stream_in_which_every_sample_hangs_ends_before_it_has_tried_all_substitutes() -> None:
    house = one_session(on_error="replace")
    for worker in range(1, 20):
        if house.of(StreamBroken):
            break
        number = house.core.state.pool.workers[worker].jobs[0]
        row = house.core.state.jobs[number].job.first
        hang(house, worker, row)
        killed(house, worker, row)
        house.step(WorkerReady(worker + 1))
    assert worker == 11
    assert "10 workers died" in house.of(StreamBroken)[0].text


def test_a_hang_that_names_no_row_is_tried_row_by_row() -> None:
    house = one_session()
    hang(house, 1, 0, Stage.FETCH_MANY)
    killed(house, 1, 0, Stage.FETCH_MANY)
    house.finish()
    assert [(a.job.first, a.job.last) for a in house.log if isinstance(a, Send)][1:9] == [(r, r + 1) for r in range(8)]
    assert not house.take().failed


def test_a_single_row_that_hangs_is_guilty_wherever_it_hangs() -> None:
    house = one_session()
    hang(house, 1, 0, Stage.FETCH_MANY)
    killed(house, 1, 0, Stage.FETCH_MANY)
    hang(house, 2, 0, Stage.FETCH_MANY)
    killed(house, 2, 0, Stage.FETCH_MANY)
    house.finish()
    assert [(b.index, b.stage) for b in house.take().bad] == [(0, "read")]


def test_a_collate_that_hangs_fails_its_batch() -> None:
    house = one_session(collated=True)
    hang(house, 1, 0, Stage.COLLATE)
    killed(house, 1, 0, Stage.COLLATE)
    house.finish()
    assert [(b.stage, b.error) for b in house.take().bad] == [("collate", "Timeout")]


def test_a_row_that_hangs_a_collated_batch_is_left_out() -> None:
    house = one_session(collated=True, on_error="skip")
    hang(house, 1, 4)
    killed(house, 1, 4)
    assert [(j.kind, j.lost) for j in house.jobs()] == [(Kind.BATCH, (4,))]
    assert house.take().filled == 7


def test_a_dataset_that_is_being_built_may_take_as_long_in_a_job_as_it_may_where_it_is_first_opened() -> None:
    house = one_session()
    assert 100.0 < hang(house, 1, 0, Stage.OPEN) < 102.0
    assert "row 0 in open: it took longer than 10 * sample_timeout_s = 100 s" in house.of(Kill)[-1].why


def test_a_worker_that_moves_is_left_alone_however_slow() -> None:
    house = one_session()
    for row in range(8):
        for _ in range(36):
            assert house.look(house.seen(1, row)) == []


def test_a_stopped_worker_runs_out_of_no_time() -> None:
    house = one_session()
    for _ in range(100):
        assert house.look(house.seen(1, 2, Stage.DECODE, paused=True), after_s=1.0) == []
    house.tell(ping=True)
    assert "worker 1 is stopped" in str(house.inbox[1])
    assert hang(house, 1, 2, Stage.DECODE) > 9.0


def test_what_was_over_its_time_when_last_seen_is_looked_at_once_more_before_it_is_dumped() -> None:
    house = one_session(sample_timeout_s=1.0)
    house.look(house.seen(1, 2))
    assert house.look(house.seen(1, 2), after_s=5.0) == []  # that was one look, and perhaps an old one
    assert house.look(house.seen(1, 2)) == [Dump(1)]


def importing(house: House, worker: int, row: int, stage: Stage = Stage.DECODE) -> Seen:
    seen = house.seen(worker, row, stage, key="k")
    return Seen(worker, seen.word | IMPORTING, "k", False, 0)


def test_an_import_in_a_sample_has_its_own_time_and_leaves_the_samples_alone() -> None:
    house = one_session(sample_timeout_s=10.0)
    for _ in range(110):
        assert house.look(importing(house, 1, 2), after_s=1.0) == []
    assert 9.0 < hang(house, 1, 2) < 12.0
    assert "sample_timeout_s = 10 s" in house.of(Kill)[-1].why


def test_an_import_that_never_ends_is_killed_and_named_as_that() -> None:
    house = one_session(on_error="skip")
    begun = house.now_s
    while not house.of(Kill):
        assert house.now_s < begun + 130.0
        house.look(importing(house, 1, 2), after_s=1.0)
    assert house.now_s > begun + 120.0
    house.now_s += 1.0
    seen = importing(house, 1, 2)
    del house.sent[1]
    house.step(WorkerDied(1, False, "SIGKILL", seen, "File lazy.py, line 3", ""))
    house.step(WorkerReady(2))
    (bad,) = house.take().bad
    assert (bad.index, bad.stage, bad.error, bad.message) == (20, "decode", "Timeout", "importing modules took longer than 120 s")


def test_a_longer_sample_timeout_holds_for_imports_as_well() -> None:
    house = one_session(sample_timeout_s=300.0)
    for _ in range(290):
        assert house.look(importing(house, 1, 2), after_s=1.0) == []


def test_imports_that_fail_for_ever_do_not_keep_a_sample_from_its_end() -> None:
    house = one_session(on_error="skip")
    begun = house.now_s
    while not house.of(Kill):
        assert house.now_s < begun + 150.0
        house.look(importing(house, 1, 2))
        house.look(house.seen(1, 2, Stage.DECODE, key="k"))
    seen = house.seen(1, 2, Stage.DECODE, key="k")
    if seen.word == house.core.state.pool.workers[1].word:
        seen = importing(house, 1, 2)  # it dies in the other state than it was last seen in
    del house.sent[1]
    house.step(WorkerDied(1, False, "SIGKILL", seen, "", ""))
    house.step(WorkerReady(2))
    assert [bad.error for bad in house.take().bad] == ["Timeout"]


def test_the_next_row_has_all_its_time_for_imports_again() -> None:
    house = one_session()
    for row in range(3):
        for _ in range(100):
            assert house.look(importing(house, 1, row), after_s=1.0) == []


def test_a_worker_that_went_on_just_before_its_death_is_not_held_to_hang() -> None:
    house = one_session()
    hang(house, 1, 2)
    killed(house, 1, 3)
    house.finish()
    assert not house.take().failed


def test_a_word_that_changes_after_the_dump_saves_the_worker() -> None:
    house = one_session()
    for _ in range(100):
        if any(isinstance(a, Dump) for a in house.look(house.seen(1, 2))):
            break
    assert house.look(house.seen(1, 3), after_s=1.0) == []
    assert house.look(house.seen(1, 3), after_s=1.0) == []
    assert not house.of(Kill)


def test_an_idle_worker_is_never_late() -> None:
    house = one_session()
    house.finish()
    for _ in range(100):
        assert house.look(Seen(1, 0, "", False, 0), after_s=1.0) == []
    assert house.core.next_look_s(house.now_s) is None


@pytest.mark.parametrize(("timeout_s", "every_s"), [(30.0, 0.25), (0.8, 0.1), (0.01, 0.02)])
def test_looks_are_as_frequent_as_the_time_allowed_asks_for(timeout_s: float, every_s: float) -> None:
    house = one_session(sample_timeout_s=timeout_s)
    assert house.core.next_look_s(house.now_s) == pytest.approx(house.now_s + every_s)
    house.look(house.seen(1, 0), after_s=3.0)
    assert house.core.next_look_s(house.now_s) == pytest.approx(house.now_s + every_s)


def test_a_worker_that_was_asked_to_end_and_does_not_is_killed() -> None:
    house = House(workers=1, worker_memory=1000)
    house.attach(prefetch=1)
    house.look(Seen(1, house.seen(1, 0).word, "", False, 1001))
    house.finish()
    assert house.of(Retire) == [Retire(1)]
    assert house.core.next_look_s(house.now_s) is not None
    for _ in range(30):
        house.look(Seen(1, 0, "", False, 1001))
    (kill,) = house.of(Kill)
    assert "asked to end" in str(kill)


def test_a_worker_stopped_after_its_time_was_up_is_not_killed_while_it_is_stopped() -> None:
    house = one_session(sample_timeout_s=1.0)
    for _ in range(5):
        house.look(house.seen(1, 2))
    for _ in range(50):
        house.look(house.seen(1, 2, paused=True))
    assert not house.of(Kill)


def test_a_batch_without_a_slot_takes_none_from_a_later_one_that_is_being_written() -> None:
    house = House(workers=2, collated=True)
    house.attach(prefetch=2)
    for _ in range(2):
        house.take(keep=True)
    session = house.core.state.sessions[1]
    first, second = (item.draft for item in session.items)
    assert first.running
    assert second.running
    session.restart(first)
    house.tell()
    assert second.running


def test_a_stopped_worker_that_is_killed_and_does_not_die_is_killed_once_and_given_up() -> None:
    house = House(workers=1)
    house.attach(1, prefetch=1)
    house.detach(1)
    for _ in range(60):
        house.look(house.seen(1, 0, paused=True))
    for _ in range(60):
        house.look(house.seen(1, 0))
    assert len(house.of(Kill)) == 1
    assert Start(2, 0.0) in house.log


def test_time_in_which_the_loop_did_not_run_counts_for_nothing_and_stops_nobody() -> None:
    house = one_session()
    seen = house.seen(1, 2, Stage.DECODE)
    for _ in range(100):
        assert house.look(Seen(1, seen.word, "", False, 0, starved=True), after_s=1.0) == []
    house.tell(ping=True)
    assert "is stopped" not in str(house.inbox[1])
