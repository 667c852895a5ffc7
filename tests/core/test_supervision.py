"""What follows when a worker answers, dies, leaks or does not die: replacement, and the end of a stream."""

from __future__ import annotations

import pytest

from loaderd.core.actions import CannotBoot, Note, Retire, Start, StreamBroken
from loaderd.core.events import Look, Seen, WorkerDied, WorkerReady
from loaderd.core.jobs import Stage, stamp
from loaderd.core.supervision import WAY_ON
from loaderd_client.protocol import ClientSession
from loaderd_testing.scheduler_harness import House, done, hang, one_session
from loaderd_wire.messages import Batch, Failure


def test_a_worker_that_does_not_die_keeps_its_slot_and_loses_its_batch_to_another() -> None:
    house = one_session(on_error="skip")
    job = house.sent[1][0]
    hang(house, 1, 2)
    seen = house.seen(1, 2, Stage.DECODE)
    ring = house.core.state.sessions[1].rings[1]
    for _ in range(30):
        house.look(seen)
    assert any(isinstance(a, Note) and "worker 1 does not die" in a.text for a in house.log)
    assert Start(2, 0.0) in house.log
    assert ring.state[job.slot].value == "ending"
    stuck = house.sent.pop(1)
    house.sent.pop(2)
    house.sent[2] = type(stuck)()
    house.step(WorkerReady(2))
    for k in range(10):
        batch = house.take()
        assert batch.k == k
        assert (batch.segment, batch.slot) != (job.segment, job.slot)
        assert batch.filled == (7 if k == 0 else 8)
    assert ring.state[job.slot].value == "ending"
    house.finish()
    assert house.core.next_look_s(house.now_s) is None
    house.step(WorkerDied(1, False, "SIGKILL", seen, "", ""))
    assert ring.state[job.slot].value == "free"


def test_a_worker_that_leaks_ends_its_job_and_is_replaced() -> None:
    house = House(workers=1, worker_memory=1000)
    house.attach(prefetch=2)
    seen = house.seen(1, 0)
    house.look(Seen(1, seen.word, "", False, 1001))
    assert not house.of(Retire)
    house.work(1)
    house.work(1)
    assert house.of(Retire) == [Retire(1)]
    assert house.die(1, stage=Stage.IDLE, own=False)[0] == Start(2, 0.0)
    assert isinstance(house.take(), Batch)


def test_looks_at_the_dead_and_the_unborn_change_nothing() -> None:
    house = House(workers=1, ready=False)
    assert house.step(Look((Seen(1, 5, "", False, 0), Seen(77, 5, "", False, 0)))) == []


def test_a_killed_worker_that_answers_and_lives_on_is_replaced_all_the_same() -> None:
    house = one_session()
    hang(house, 1, 2)
    house.work(1)
    assert house.jobs() == []
    for _ in range(40):
        assert house.core.next_look_s(house.now_s) is not None or Start(2, 0.0) in house.log
        house.look(Seen(1, 0, "", False, 0))
    assert Start(2, 0.0) in house.log


def test_the_slot_of_a_job_is_not_given_to_another_before_its_worker_is_dead() -> None:
    house = House(workers=2, sample_timeout_s=1.0)
    client = house.attach(prefetch=1)
    job = house.sent[1][0]
    client.seek(type(client.cursor)(3, 0, 0))
    house.tell()
    state = house.core.state.sessions[1].rings[1]
    assert state.state[job.slot].value == "ending"
    house.finish()
    assert state.state[job.slot].value != "ending"


def test_a_dead_worker_is_replaced_at_once_under_a_new_number() -> None:
    house = one_session(workers=2)
    assert house.die(1, row=0)[0] == Start(3, 0.0)


def test_workers_that_all_keep_dying_end_their_stream_and_no_other() -> None:
    house = House(workers=2, streams=("train", "val"))
    house.attach(1)
    house.finish()
    house.attach(2, stream="val")
    for _ in range(40):
        if house.of(StreamBroken):
            break
        worker = next(w for w in house.sent if house.sent[w])
        house.die(worker, row=0, key="k17")
    (broken,) = house.of(StreamBroken)
    assert isinstance(broken, StreamBroken)
    assert (broken.stream, broken.error) == ("val", "StreamFailed")
    assert "15 workers died" in broken.text  # five of them convicted a row, together with the one before
    assert "SIGSEGV at sample 'k17'" in broken.text
    assert Failure in {type(m) for m in house.inbox[2]}
    assert Failure not in {type(m) for m in house.inbox[1]}
    for _ in range(6):
        house.take(1)


@pytest.mark.parametrize("sessions", [1, 2, 3])
def test_a_stream_bears_as_many_deaths_for_each_of_its_trainers(sessions: int) -> None:
    house = House(workers=2)
    for session in range(1, sessions + 1):
        house.attach(session)
    deaths = 0
    while not house.of(StreamBroken):
        house.die(next(w for w in house.sent if house.sent[w]), stage=Stage.IDLE)
        deaths += 1
    assert deaths == 10 * sessions


def test_a_death_is_charged_to_the_stream_of_the_job_that_it_happened_in() -> None:
    house = House(workers=1, streams=("train", "val"))
    house.attach(1, prefetch=2)
    house.finish()
    house.attach(2, stream="val", prefetch=1)
    house.take(1)
    first, second = house.sent[1]
    assert (first.stream, second.stream) == ("val", "train")
    seen = Seen(1, stamp(second.job, second.first, Stage.READ), "", False, 0)
    del house.sent[1]
    house.step(WorkerDied(1, True, "SIGSEGV", seen, "", ""))
    assert (house.core.state.streams["train"].died, house.core.state.streams["val"].died) == (1, 0)


def test_workers_killed_from_outside_do_not_end_a_stream_for_a_long_time() -> None:
    house = House(workers=2, collated=True)
    house.attach(prefetch=1)
    kills = 0
    while not house.of(StreamBroken) and kills < 200:
        house.die(next(w for w in house.sent if house.sent[w]), stage=Stage.IDLE, own=False, cause="SIGKILL")
        kills += 1
    assert kills == 80  # eight for each death of their own doing
    assert "80 workers died" in str(house.of(StreamBroken))


def test_rows_that_are_finished_in_between_keep_the_stream_alive() -> None:
    house = House(workers=1)
    house.attach(prefetch=1)
    for _ in range(30):
        house.die(next(w for w in house.sent if house.sent[w]), stage=Stage.IDLE, own=False)
        house.take()
    assert not house.of(StreamBroken)


def test_a_worker_that_cannot_boot_is_told_before_any_was_ready_and_not_later() -> None:
    house = House(workers=1, ready=False)
    house.die(1, stage=Stage.IDLE, cause="exit code 3", boot="ImportError: no torch", ready=False)
    assert house.of(CannotBoot) == [CannotBoot("ImportError: no torch")]
    house.step(WorkerReady(2))
    house.log.clear()
    house.attach()
    house.die(2, stage=Stage.IDLE, own=False, ready=False)
    for worker in range(3, 20):
        if house.of(StreamBroken):
            break
        house.die(worker, stage=Stage.IDLE, cause="exit code 3", boot="ImportError: no torch", ready=False)
    assert not house.of(CannotBoot)
    (broken,) = house.of(StreamBroken)
    assert "ImportError: no torch" in str(broken)


def test_a_death_of_nobody_is_refused() -> None:
    house = House()
    with pytest.raises(ValueError, match="WorkerDied of worker 99"):
        house.core.step(WorkerDied(99, True, "x", house.seen(1), "", ""), 200.0)


def test_the_delivered_batches_are_those_of_the_undisturbed_run() -> None:
    def run(disturbed: bool) -> list[tuple[int, ...]]:
        house = House(workers=3)
        house.attach()
        got: list[tuple[int, ...]] = []
        for n in range(30):
            busy = [w for w in house.sent if house.sent[w]]
            if disturbed and busy:
                house.die(busy[n % len(busy)], own=False, stage=[Stage.READ, Stage.IDLE, Stage.WRITE, Stage.OPEN][n % 4])
            batch: Batch = house.take()
            got.append((batch.k, batch.epoch, batch.start, batch.rows, batch.filled))
        return got

    assert run(True) == run(False)


def test_data_that_changes_ends_the_stream_and_nothing_of_the_job_is_delivered() -> None:
    house = House(streams=("train", "val"))
    house.make = lambda job: done(job, changed="train.mdb: 10 entries, now 11" if job.stream == "train" and job.start == 8 else "")
    house.attach(1)
    house.attach(2, stream="val")
    house.finish()
    (broken,) = house.of(StreamBroken)
    assert (broken.stream, broken.error, broken.text) == ("train", "StreamChanged", f"train.mdb: 10 entries, now 11; {WAY_ON}")
    told = list(house.inbox[1])
    assert all(not isinstance(m, Batch) or m.start != 8 for m in told)
    assert isinstance(told[-1], Failure)
    house.take(2)
    house.inbox[1].clear()
    house.tell(1, ping=True)
    assert Failure in {type(m) for m in house.inbox[1]}
    late = house.attach(3)
    assert isinstance(late, ClientSession)
    assert Failure in {type(m) for m in house.inbox[3]}
