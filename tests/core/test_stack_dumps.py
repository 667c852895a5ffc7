"""Of whom stacks are taken for a trainer that is about to give up, how often, and what is kept of them."""

from __future__ import annotations

from loaderd.core import stack_dumps
from loaderd.core.actions import Action, Dump, Tell
from loaderd.core.events import Booting, Dumped, WorkerReady
from loaderd.core.jobs import Stage
from loaderd_testing.scheduler_harness import House
from loaderd_wire.messages import Pulse


def asked(actions: list[Action]) -> list[int]:
    return sorted(action.worker for action in actions if isinstance(action, Dump))


def detail(house: House, session: int = 1) -> str:
    told = house.tell(session, ping=True, waiting=True, stacks=True)
    return next(a.message.detail for a in told if isinstance(a, Tell) and isinstance(a.message, Pulse))


def test_nobody_is_asked_before_a_trainer_is_about_to_give_up() -> None:
    house = House()
    house.attach()
    for _ in range(30):
        house.look(house.seen(1, 0), house.seen(2, 4))
        house.tell(ping=True, waiting=True)
    assert not house.of(Dump)


def test_those_at_the_batch_are_asked_once_and_told_of_as_long_as_they_are_at_it() -> None:
    house = House()
    house.attach(prefetch=1)
    assert asked(house.tell(ping=True, stacks=True)) == [1, 2]
    house.step(Dumped(1, "File a.py, line 3\nFile b.py, line 4\n"))
    house.step(Dumped(2, "File c.py, line 5"))
    house.now_s += 2.0
    assert "worker 1 has just begun\n  its stacks 2.0 s ago:\n  File a.py, line 3\n  File b.py, line 4\nworker 2" in detail(house)
    assert len(house.of(Dump)) == 2
    assert [w["stack"] != "" for w in house.core.picture()["workers"]] == [True, True]
    house.work(2)
    assert "c.py" not in detail(house)
    house.work(1)
    assert asked(house.tell(ping=True, stacks=True)) == []


def test_a_worker_at_its_next_job_is_asked_anew() -> None:
    house = House(workers=1)
    house.attach(prefetch=2)
    assert asked(house.tell(ping=True, stacks=True)) == [1]
    house.step(Dumped(1, "File old.py, line 1"))
    house.work(1)
    house.take()
    assert asked(house.tell(ping=True, stacks=True)) == [1]
    assert "old.py" not in detail(house)


def test_stacks_that_come_after_their_job_are_dropped() -> None:
    house = House(workers=1)
    house.attach(prefetch=2)
    house.tell(ping=True, stacks=True)
    house.work(1)
    house.step(Dumped(1, "File late.py, line 1"))
    house.step(Dumped(77, "of nobody"))
    assert "late.py" not in detail(house)


def test_a_stopped_worker_is_asked_when_it_goes_on() -> None:
    house = House(workers=1)
    house.attach(prefetch=1)
    house.look(house.seen(1, 3, paused=True))
    assert asked(house.tell(ping=True, stacks=True)) == []
    house.look(house.seen(1, 3))
    assert asked(house.tell(ping=True, stacks=True)) == [1]


def test_a_worker_that_boots_is_asked_until_it_has_ears() -> None:
    house = House(workers=1, ready=False)
    house.attach(prefetch=1)
    house.step(Booting(1, "importing users"))
    assert asked(house.tell(ping=True, stacks=True)) == [1]
    assert asked(house.tell(ping=True, stacks=True)) == []
    house.step(Dumped(1, ""))
    assert asked(house.tell(ping=True, stacks=True)) == [1]
    house.step(Dumped(1, "File users.py, line 2"))
    assert "worker 1 has been importing users for 0.0 s\n  its stacks 0.0 s ago:\n  File users.py, line 2" in detail(house)
    house.step(WorkerReady(1))
    assert "users.py" not in detail(house)


def test_others_workers_are_asked_where_they_keep_the_batch_waiting() -> None:
    house = House(workers=1)
    house.attach(1, prefetch=2)
    house.attach(2)
    assert asked(house.tell(2, ping=True, stacks=True)) == [1]


def test_where_they_are_many_those_are_asked_that_have_not_moved_for_longest() -> None:
    house = House(workers=12)
    house.attach(prefetch=8)
    house.look(*(house.seen(w, None) for w in house.sent))
    at = [w for w in house.sent if house.sent[w]]
    quiet = at[-1]
    house.look(*(house.seen(w, None, Stage.READ if w == quiet else Stage.DECODE) for w in at))
    first = asked(house.tell(ping=True, stacks=True))
    assert len(first) <= stack_dumps.MOST
    assert house.core.state.sessions[1].items[0].draft.running.keys() >= {house.core.state.pool.workers[w].job for w in first}


def test_the_dump_before_a_kill_serves_as_well() -> None:
    house = House(workers=1, sample_timeout_s=1.0)
    house.attach(prefetch=1)
    while not house.of(Dump):
        house.look(house.seen(1, 2))
    house.step(Dumped(1, "File hang.py, line 9"))
    assert len(house.of(Dump)) == 1
    assert "hang.py" in detail(house)
    assert len(house.of(Dump)) == 1


def test_a_stack_has_a_bound() -> None:
    text = stack_dumps.cut("x" * 50_000)
    assert len(text) <= stack_dumps.CHARS
    assert "characters more" in text
