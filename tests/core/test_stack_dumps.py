"""Of whom stacks are taken for a trainer that is about to give up, how often, and what is kept of
them.
"""

from __future__ import annotations

from loaderd.core import stack_dumps
from loaderd.core.actions import Action, DumpStack, SendMessage
from loaderd.core.events import StackDumped, StackWanted, WorkerBooting, WorkerReady
from loaderd.core.jobs import Stage
from loaderd_testing.scheduler_harness import SchedulerHarness
from loaderd_wire.messages import Pulse


def asked(actions: list[Action]) -> list[int]:
    return sorted(action.worker for action in actions if isinstance(action, DumpStack))


def detail(harness: SchedulerHarness, session: int = 1) -> str:
    told = harness.tell(session, ping=True, waiting=True, stacks=True)
    return next(
        a.message.detail
        for a in told
        if isinstance(a, SendMessage) and isinstance(a.message, Pulse)
    )


def test_nobody_is_asked_before_a_trainer_is_about_to_give_up() -> None:
    harness = SchedulerHarness()
    harness.attach()
    for _ in range(30):
        harness.look(harness.seen(1, 0), harness.seen(2, 4))
        harness.tell(ping=True, waiting=True)
    assert not harness.of(DumpStack)


def test_those_at_the_batch_are_asked_once_and_told_of_as_long_as_they_are_at_it() -> None:
    harness = SchedulerHarness()
    harness.attach(prefetch=1)
    assert asked(harness.tell(ping=True, stacks=True)) == [1, 2]
    harness.step(StackDumped(1, "File a.py, line 3\nFile b.py, line 4\n"))
    harness.step(StackDumped(2, "File c.py, line 5"))
    harness.now_s += 2.0
    assert (
        "worker 1 has just started a job\n  its stacks 2.0 s ago:\n  File a.py, line 3\n  File "
        "b.py, line 4\nworker 2"
    ) in detail(harness)
    assert len(harness.of(DumpStack)) == 2
    assert [w.stack != "" for w in harness.core.snapshot().workers] == [True, True]
    harness.work(2)
    assert "c.py" not in detail(harness)
    harness.work(1)
    assert asked(harness.tell(ping=True, stacks=True)) == []


def test_a_worker_at_its_next_job_is_asked_anew() -> None:
    harness = SchedulerHarness(workers=1)
    harness.attach(prefetch=2)
    assert asked(harness.tell(ping=True, stacks=True)) == [1]
    harness.step(StackDumped(1, "File old.py, line 1"))
    harness.work(1)
    harness.take()
    assert asked(harness.tell(ping=True, stacks=True)) == [1]
    assert "old.py" not in detail(harness)


def test_stacks_that_come_after_their_job_are_dropped() -> None:
    harness = SchedulerHarness(workers=1)
    harness.attach(prefetch=2)
    harness.tell(ping=True, stacks=True)
    harness.work(1)
    harness.step(StackDumped(1, "File late.py, line 1"))
    harness.step(StackDumped(77, "of nobody"))
    assert "late.py" not in detail(harness)


def test_a_stopped_worker_is_asked_when_it_goes_on() -> None:
    harness = SchedulerHarness(workers=1)
    harness.attach(prefetch=1)
    harness.look(harness.seen(1, 3, paused=True))
    assert asked(harness.tell(ping=True, stacks=True)) == []
    harness.look(harness.seen(1, 3))
    assert asked(harness.tell(ping=True, stacks=True)) == [1]


def test_a_worker_that_boots_is_asked_until_it_has_ears() -> None:
    harness = SchedulerHarness(workers=1, ready=False)
    harness.attach(prefetch=1)
    harness.step(WorkerBooting(1, "importing users"))
    assert asked(harness.tell(ping=True, stacks=True)) == [1]
    assert asked(harness.tell(ping=True, stacks=True)) == []
    harness.step(StackDumped(1, ""))
    assert asked(harness.tell(ping=True, stacks=True)) == [1]
    harness.step(StackDumped(1, "File users.py, line 2"))
    assert (
        "worker 1 has been importing users for 0.0 s\n  its stacks 0.0 s ago:\n  File users.py, "
        "line 2"
    ) in detail(harness)
    harness.step(WorkerReady(1))
    assert "users.py" not in detail(harness)


def test_others_workers_are_asked_where_they_keep_the_batch_waiting() -> None:
    harness = SchedulerHarness(workers=1)
    harness.attach(1, prefetch=2)
    harness.attach(2)
    assert asked(harness.tell(2, ping=True, stacks=True)) == [1]


def test_where_they_are_many_those_are_asked_that_have_not_moved_for_longest() -> None:
    harness = SchedulerHarness(workers=12)
    harness.attach(prefetch=8)
    harness.look(*(harness.seen(w, None) for w in harness.sent))
    at = [w for w in harness.sent if harness.sent[w]]
    quiet = at[-1]
    harness.look(*(harness.seen(w, None, Stage.READ if w == quiet else Stage.DECODE) for w in at))
    first = asked(harness.tell(ping=True, stacks=True))
    assert len(first) <= stack_dumps.MOST
    assert harness.core.state.sessions[1].window.items[0].build.running.keys() >= {
        harness.core.state.pool.workers[w].job for w in first
    }


def test_the_dump_before_a_kill_serves_as_well() -> None:
    harness = SchedulerHarness(workers=1, sample_timeout_s=1.0)
    harness.attach(prefetch=1)
    while not harness.of(DumpStack):
        harness.look(harness.seen(1, 2))
    harness.step(StackDumped(1, "File hang.py, line 9"))
    assert len(harness.of(DumpStack)) == 1
    assert "hang.py" in detail(harness)
    assert len(harness.of(DumpStack)) == 1


def test_a_stack_has_a_bound() -> None:
    text = stack_dumps.cut("x" * 50_000)
    assert len(text) <= stack_dumps.CHARS
    assert "characters more" in text


def test_a_user_who_asks_sees_the_stack_whatever_job_the_worker_has_by_then() -> None:
    harness = SchedulerHarness(workers=1)
    harness.attach()
    assert asked(harness.step(StackWanted(1))) == [1]
    harness.work(1)
    harness.step(StackDumped(1, "File a.py, line 3"))
    assert harness.core.snapshot().workers[0].stack == "File a.py, line 3"
    assert asked(harness.step(StackWanted(1))) == [1]
    assert harness.core.snapshot().workers[0].stack == ""
    assert harness.step(StackWanted(77)) == []
