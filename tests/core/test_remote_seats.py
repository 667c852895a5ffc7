"""Workers on other hosts: when their seats are tried, and that the pool does without them."""

from __future__ import annotations

from loaderd.core.actions import CannotBoot, LogLine, StartWorker
from loaderd.core.events import (
    WorkerBooting,
    WorkerDied,
    WorkerObservation,
    WorkerPoll,
    WorkerReady,
)
from loaderd.core.pool import WorkerPool
from loaderd.core.scheduler import Scheduler, StreamRules


def scheduler(local: int = 1, remote: int = 3) -> Scheduler:
    made = Scheduler(
        (StreamRules("train", "raise", False, 10),),
        workers=local,
        remote_workers=remote,
        sample_timeout_s=30.0,
        index_of=lambda job, row, candidate: row,
    )
    made.begin(0.0)
    return made


def dead(worker: int, boot: str = "") -> WorkerDied:
    return WorkerDied(worker, False, "lost", WorkerObservation(worker, 0, "", False, 0), "", boot)


def starts(actions: list[object]) -> list[StartWorker]:
    return [each for each in actions if isinstance(each, StartWorker)]


def test_one_seat_is_tried_until_it_has_reached_the_other_hosts() -> None:
    pool = WorkerPool(2, 3)
    assert pool.begin() == [StartWorker(1, 0.0), StartWorker(2, 0.0), StartWorker(3, 0.0, True)]
    assert pool.start_remote() == []
    pool.booting(3, "waiting for a place", 1.0, reached=True)
    assert pool.start_remote() == [StartWorker(4, 0.0, True), StartWorker(5, 0.0, True)]
    pool.invariants()


def test_no_seat_is_tried_before_the_pool_begins() -> None:
    pool = WorkerPool(1, 1)
    assert pool.start_remote() == []


def test_other_hosts_that_cannot_be_reached_are_tried_less_and_less_often() -> None:
    core = scheduler(remote=30)
    delays = []
    for worker in range(2, 12):
        (start,) = starts([*core.step(dead(worker, "Ray is not reachable"), 1.0)])
        assert start.remote
        delays.append(start.delay_s)
        core.invariants()
    assert delays == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, 60.0]
    assert starts([*core.step(WorkerBooting(12, "waiting", True), 2.0)])[0].delay_s == 0.0


def test_seats_that_are_not_filled_end_neither_the_daemon_nor_a_stream() -> None:
    core = scheduler()
    for worker in range(2, 40):
        made = core.step(dead(worker, "Ray is not reachable\nat all"), 1.0)
        assert not any(isinstance(each, CannotBoot) for each in made)
    assert core.state.streams["train"].deaths == 0
    assert sum(core.state.restarts.values()) == 0


def test_a_trouble_of_other_hosts_is_told_once() -> None:
    core = scheduler(local=2, remote=32)
    told = [
        each.text
        for worker in range(3, 8)
        for each in core.step(dead(worker, "Ray at a:1 is not reachable: refused\nmore"), 1.0)
        if isinstance(each, LogLine)
    ]
    assert told == [
        "32 remote workers, 0 at work: Ray at a:1 is not reachable: refused; it goes on with 2 "
        "local ones"
    ]
    remote = core.snapshot().remote
    assert remote is not None
    assert remote.text == "32 remote workers, 0 at work: Ray at a:1 is not reachable: refused"
    assert (remote.wanted, remote.up, remote.starting) == (32, 0, 1)


def told(actions: list[object]) -> list[tuple[str, str]]:
    return [(each.level, each.text) for each in actions if isinstance(each, LogLine)]


def test_of_a_cluster_that_comes_back_the_log_is_told_how_many_are_at_work_in_the_end() -> None:
    core = scheduler(remote=3)
    down = "Ray at a:1 is not reachable"
    said = told([*core.step(dead(2, down), 1.0)])
    for worker in (3, 4, 5):
        said += told([*core.step(WorkerBooting(worker, "waiting", True), 2.0)])
        said += told([*core.step(WorkerReady(worker), 2.0 + worker)])
        remote = core.snapshot().remote
        assert remote is not None
        assert remote.text.endswith("at work" if worker == 5 else down)
    assert said == [
        ("warning", f"3 remote workers, 0 at work: {down}; it goes on with 1 local one")
    ]
    assert told([*core.step(WorkerPoll(()), 16.9)]) == []
    at_work = [("info", "3 remote workers, 3 at work, beside 1 local one")]
    assert told([*core.step(WorkerPoll(()), 17.0)]) == at_work
    assert told([*core.step(WorkerPoll(()), 60.0)]) == []


def test_all_that_there_shall_be_are_told_of_at_once_and_some_when_no_more_come() -> None:
    core = scheduler(remote=2)
    core.step(WorkerBooting(2, "waiting", True), 1.0)
    assert told([*core.step(WorkerReady(2), 2.0)]) == []
    assert told([*core.step(WorkerPoll(()), 12.0)]) == [
        ("info", "2 remote workers, 1 at work, beside 1 local one")
    ]
    assert told([*core.step(WorkerReady(3), 20.0)]) == [
        ("info", "2 remote workers, 2 at work, beside 1 local one")
    ]


def test_what_most_of_those_that_are_missing_wait_for_is_told() -> None:
    core = scheduler(remote=3)
    room = "waiting for Ray at a:1 to find room"
    said = told([*core.step(WorkerBooting(2, "connecting to Ray at a:1"), 1.0)])
    for worker in (2, 3, 4):
        said += told([*core.step(WorkerBooting(worker, room, True), 2.0)])
    remote = core.snapshot().remote
    assert remote is not None
    assert remote.text == f"3 remote workers, 0 at work: 3 {room}"
    assert (said, told([*core.step(WorkerPoll(()), 11.9)])) == ([], [])
    assert told([*core.step(WorkerPoll(()), 12.0)]) == [
        ("info", f"3 remote workers, 0 at work: 3 {room}; it goes on with 1 local one")
    ]
    core.step(WorkerReady(3), 13.0)
    core.step(dead(2), 14.0)
    remote = core.snapshot().remote
    assert remote is not None
    assert remote.text == "3 remote workers, 1 at work: lost"
    core.step(WorkerReady(4), 15.0)
    core.step(WorkerReady(5), 15.0)
    remote = core.snapshot().remote
    assert remote is not None
    assert remote.text == "3 remote workers, 3 at work"


def test_workers_that_are_lost_for_one_reason_are_two_lines() -> None:
    core = scheduler(remote=9)
    core.step(WorkerBooting(2, "waiting", True), 1.0)
    for worker in range(2, 11):
        core.step(WorkerReady(worker), 1.0)
    said = [line for worker in range(2, 11) for line in told([*core.step(dead(worker), 2.0)])]
    said += told([*core.step(WorkerPoll(()), 12.0)])
    assert [text for _, text in said] == [
        "9 remote workers, 8 at work: lost; it goes on with 1 local one",
        "9 remote workers, 0 at work: lost; it goes on with 1 local one",
    ]


def test_a_worker_elsewhere_does_not_count_among_those_that_there_shall_be_here() -> None:
    core = scheduler(local=2, remote=1)
    pool = core.state.pool
    core.step(WorkerReady(3), 1.0)
    assert not pool.ever_ready
    assert (pool.size, pool.at_work) == (2, 3)
    core.step(WorkerReady(1), 1.0)
    assert pool.resize(1) != []
    assert 3 not in [w.worker for w in pool.workers.values() if w.given_back]
    core.step(dead(3), 2.0)
    assert pool.at_work == pool.size
    core.invariants()


def test_a_seat_whose_workers_die_begins_with_a_short_pause_again_after_a_job() -> None:
    pool = WorkerPool(1, 1)
    pool.begin()
    delays, worker = [], 2
    for proven in (False, False, True, False):
        pool.ready(worker)
        if proven:
            pool.give(worker, worker, 0.0)
            pool.answered(worker, worker)
            assert pool.remote.trouble == ""
        pool.died(worker, "lost")
        (start,) = pool.start_remote()
        worker = start.worker
        delays.append(start.delay_s)
    assert delays == [1.0, 2.0, 1.0, 2.0]


def test_a_worker_elsewhere_that_cannot_be_killed_gives_up_its_seat() -> None:
    pool = WorkerPool(1, 1)
    pool.begin()
    pool.ready(2)
    pool.give(2, 5, 0.0)
    pool.killed(2, 1.0)
    assert pool.stuck(2) is None
    assert [start.remote for start in pool.start_remote()] == [True]
    pool.invariants()
    assert pool.died(2, "SIGKILL")[1] is None
    pool.invariants()
