"""A waiting trainer is told what it waits for."""

from __future__ import annotations

import json

from loaderd.core import stack_dumps
from loaderd.core.actions import Dump
from loaderd.core.events import Booting, Drain, Dumped, Look, Seen, WorkerReady
from loaderd.core.explain import story
from loaderd.core.jobs import IMPORTING, Stage
from loaderd_testing.scheduler_harness import House, bad_row, done
from loaderd_wire.slices import Shape


def line(house: House, session: int = 1) -> str:
    return story(house.core.state, house.core.state.sessions[session], house.now_s)[0]


def test_it_names_batch_rows_worker_stage_sample_and_seconds() -> None:
    house = House(workers=2)
    house.attach()
    house.work(1)
    house.look(Seen(2, house.seen(2, 5, Stage.DECODE).word, "n01440764/7.jpg", False, 0), after_s=1.0)
    house.look(Seen(2, house.seen(2, 5, Stage.DECODE).word, "n01440764/7.jpg", False, 0), after_s=3.0)
    house.now_s += 0.5
    text = line(house)
    assert text == "batch 0 (epoch 0, step 0) waits for rows 4-7: worker 2 has been decoding row 5, sample n01440764/7.jpg, for 3.5 s"


def test_it_names_a_stopped_worker() -> None:
    house = House(workers=1)
    house.attach()
    house.look(house.seen(1, 0, paused=True))
    house.now_s += 4.0
    assert line(house) == (
        "batch 0 (epoch 0, step 0) waits for rows 0-7: "
        "worker 1 is stopped by a signal (T), 4.0 s by now, reading row 0, sample ?; SIGCONT lets it go on"
    )
    _, detail = story(house.core.state, house.core.state.sessions[1], house.now_s)
    assert "no stack of it can be had while it is stopped" in detail
    (worker,) = house.core.picture()["workers"]
    assert (worker["state"], worker["seconds"]) == ("stopped", 0.0)


def test_it_names_an_import_and_how_long_that_has_taken() -> None:
    house = House(workers=1)
    house.attach()
    seen = house.seen(1, 3, Stage.TRANSFORM)
    house.look(Seen(1, seen.word, "7.jpg", False, 0), after_s=1.0)
    house.look(Seen(1, seen.word, "7.jpg", False, 0), after_s=4.0)
    house.look(Seen(1, seen.word | IMPORTING, "7.jpg", False, 0), after_s=2.0)
    house.look(Seen(1, seen.word | IMPORTING, "7.jpg", False, 0), after_s=1.0)
    house.now_s += 0.5
    assert line(house).endswith("worker 1 has been importing modules while transforming row 3, sample 7.jpg, for 3.5 s")
    house.step(Drain())
    (worker,) = house.core.picture()["workers"]
    assert (worker["stage"], worker["seconds"]) == ("import", 3.5)
    house.look(Seen(1, seen.word, "7.jpg", False, 0), after_s=1.0)
    assert house.core.picture()["workers"][0]["stage"] == "transform"


def test_it_tells_of_workers_that_are_starting_and_of_what_the_last_one_died() -> None:
    house = House(workers=1, ready=False)
    house.attach()
    assert line(house).endswith("waits for rows 0-7: workers are starting")
    house.die(1, stage=Stage.IDLE, cause="exit code 3", boot="ImportError", ready=False)
    assert line(house).endswith("workers are starting; 1 died before they were ready, the last: exit code 3")
    house.step(Booting(2, "importing users (call of stream 'train')"))
    house.now_s += 7.0
    assert "workers are starting: worker 2 has been importing users (call of stream 'train') for 7.0 s; 1 died" in line(house)
    (worker,) = house.core.picture()["workers"]
    assert (worker["state"], worker["doing"]) == ("starting", "importing users (call of stream 'train')")
    house.step(WorkerReady(2))
    assert "starting" not in line(house)
    assert house.core.picture()["workers"][0]["doing"] == ""


def test_it_tells_of_other_sessions_batches() -> None:
    house = House(workers=1)
    house.attach(1)
    house.attach(2)
    assert line(house, 2) == "batch 0 (epoch 0, step 0) waits for rows 0-7: workers are busy with other sessions' batches (2 of 2 jobs)"


def test_it_tells_of_the_workers_of_one_stage_that_concerns_the_whole_job() -> None:
    house = House(workers=1, collated=True)
    house.attach()
    house.step(Look((house.seen(1, 0, Stage.COLLATE),)))
    assert line(house).endswith("worker 1 has been collating for 0.0 s")


def test_it_tells_of_a_worker_that_was_killed_and_of_one_that_does_not_die() -> None:
    house = House(workers=1, sample_timeout_s=1.0)
    house.attach(prefetch=1)
    seen = house.seen(1, 0)
    for _ in range(20):
        house.look(seen)
    assert line(house).endswith("worker 1 was killed and does not end")
    for _ in range(20):
        house.look(seen)
    assert "workers are starting (1 do not die)" in line(house)


def test_it_says_nothing_when_the_batch_is_there() -> None:
    house = House()
    house.attach(tell=False)
    assert line(house) == "the daemon knows no plan of this client yet"
    house.tell()
    house.finish()
    assert line(house) == ""
    assert story(house.core.state, house.core.state.sessions[1], house.now_s) == ("", "")


def test_it_says_that_the_daemon_drains() -> None:
    house = House()
    house.attach()
    house.step(Drain())
    assert line(house) == "the daemon drains"


def test_the_detail_has_all_busy_workers_and_the_last_stack() -> None:
    house = House(workers=2)
    house.attach()
    house.die(1, row=0, stack="File user.py, line 9")
    _, detail = story(house.core.state, house.core.state.sessions[1], house.now_s)
    assert "worker 2 has just begun" in detail
    assert "the last worker that died at stream train: SIGSEGV" in detail
    assert "File user.py, line 9" in detail


def test_the_picture_is_plain_data_at_any_time() -> None:
    house = House(workers=2, on_error="skip")
    house.make = lambda job: done(job, (bad_row(job.first),))
    house.attach(1)
    house.attach(2)
    for _ in range(5):
        house.take(1)
        house.look(*(house.seen(w, stage=Stage.WRITE) for w in house.sent))
        picture = json.loads(json.dumps(house.core.picture()))
        assert {s["session"] for s in picture["sessions"]} == {1, 2}
        assert len(picture["workers"]) == 2
    assert picture["streams"]["train"]["sessions"] == [1, 2]


def test_the_deaths_before_are_told_with_what_goes_on_now() -> None:
    house = House(workers=1)
    house.attach(prefetch=1)
    house.die(1, 3, cause="SIGBUS", key="x")
    assert "before" not in line(house)
    house.die(2, 3, cause="SIGKILL", key="y", own=False)
    assert line(house).endswith("worker 3 has just begun; 2 workers died at it before, the last: SIGKILL at sample 'y'")


def test_a_batch_without_memory_waits_for_a_larger_segment() -> None:
    house = House(workers=1)
    house.attach(prefetch=1)
    house.make = lambda job: done(job, needs_body=10_000)
    house.work()
    assert line(house) == "batch 0 (epoch 0, step 0) has no slot: waiting for a larger segment"


def test_a_stopped_worker_is_named_before_a_slow_one() -> None:
    house = House(workers=2)
    house.attach(prefetch=1)
    house.look(house.seen(1, 0), house.seen(2, 4))
    house.look(house.seen(1, 0), house.seen(2, 4, paused=True), after_s=5.0)
    assert "worker 2 is stopped" in line(house)


def test_a_detail_of_many_workers_has_a_bound() -> None:
    house = House(workers=100)
    house.attach(prefetch=8, shape=Shape(2000, 100, 0, 1, True))
    house.tell(ping=True, stacks=True)
    for _ in range(20):
        for dump in house.of(Dump):
            house.step(Dumped(dump.worker, "frame\n" * 10_000))
        house.tell(ping=True, stacks=True)
    _, detail = story(house.core.state, house.core.state.sessions[1], house.now_s)
    assert "and 36 more workers" in detail
    assert detail.count("its stacks") == stack_dumps.MOST
    assert len(detail) < 150_000
