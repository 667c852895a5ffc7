"""Every way in which a worker or the template can end, or would like to, and what is left behind:
nothing.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from loaderd.config.stream import TransformConfig
from loaderd.core.events import StackDumped, WorkerBooting
from loaderd.core.jobs import Job, Stage, candidate_of, unstamp
from loaderd.core.order import Order
from loaderd_testing.deadlines import until
from loaderd_testing.engine_harness import Workshop, numbers

Build = Callable[..., Workshop]


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def targets(pid: int) -> list[str]:
    """What a process's descriptors are."""
    found: list[str] = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:
            continue
    return found


def commands(word: str) -> list[int]:
    """Pids of living processes whose last argument is this word."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and alive(int(entry.name)):
            try:
                if (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[-2:] == [
                    word,
                    "",
                ]:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def busy(shop: Workshop, what: str, **options: object) -> tuple[Job, int]:
    """Worker 1 has a job whose third row (sample 20) does `what`; worker 2 is idle.

    Returns the job and worker 1's pid.
    """
    facts = shop.facts("train")
    shop.start(1, 2)
    shop.pond(facts, 8)
    job = shop.job("train", 8, start=18)
    pid = shop.pid(1)
    shop.pool.send(1, job)
    return job, pid


def stamped(shop: Workshop, worker: int, index: int) -> bool:
    return any(seen.worker == worker and seen.key == str(index) for seen in shop.look().seen)


@pytest.mark.parametrize(
    ("what", "cause", "stack"),
    [
        ("segfaults", "SIGSEGV", "segfaults"),
        ("aborts", "SIGABRT", "aborts"),
        ("leaves", "exit code 3", ""),
    ],
)
def test_a_sample_that_kills_its_worker_is_on_the_scoreboard(
    build: Build, what: str, cause: str, stack: str
) -> None:
    shop = build(numbers(bad={"20": what}))
    job, _ = busy(shop, what)
    death = shop.death(1)
    assert (death.own, death.cause, death.boot) == (True, cause, "")
    assert unstamp(death.seen.word) == (job.job, 2, Stage.READ)
    assert death.seen.key == "20"
    assert stack in death.stack
    assert shop.run(2, shop.job("train", 2)).bad == ()


@pytest.mark.parametrize("stage", [Stage.READ, Stage.TRANSFORM])
def test_a_substitute_that_kills_its_worker_is_told_apart_from_the_rows_own_sample(
    build: Build, stage: Stage
) -> None:
    substitute = Order(100).substitute(7, 3, 20, 1)
    assert substitute > 30, "one of the first samples would be met when the stream is opened"
    bad = {"20": "raises"} | ({str(substitute): "segfaults"} if stage is Stage.READ else {})
    transforms = (
        (TransformConfig(None, "wares:dies_at", {"y": substitute}),)
        if stage is Stage.TRANSFORM
        else ()
    )
    shop = build(numbers(bad=bad, on_error="replace", transforms=transforms))
    facts = shop.facts("train")
    shop.start(1)
    shop.pond(facts, 8)
    shop.pool.send(1, shop.job("train", 8, start=18, epoch=3))
    death = shop.death(1)
    assert unstamp(death.seen.word)[1:] == (2, stage)
    assert (candidate_of(death.seen.word), death.seen.key) == (1, str(substitute))


@pytest.mark.parametrize("what", ["sleeps", "holds_the_gil"])
def test_a_sample_that_hangs_in_native_code_is_dumped_and_killed(build: Build, what: str) -> None:
    shop = build(numbers(bad={"20": what}))
    job, _ = busy(shop, what)
    shop.until(lambda: stamped(shop, 1, 20), "the hanging row")
    seen = next(seen for seen in shop.look().seen if seen.worker == 1)
    assert unstamp(seen.word) == (job.job, 2, Stage.READ)
    assert not seen.paused
    shop.pool.dump(1)
    shop.pool.kill(1, "it hangs")
    death = shop.death(1)
    assert (death.own, death.cause, death.seen.key) == (False, "killed: it hangs", "20")
    assert f"in {what}" in death.stack


def stacks(shop: Workshop, worker: int) -> str:
    """What a living worker writes when it is asked."""
    before = len(shop.events)
    shop.pool.dump(worker)
    return shop.until(
        lambda: [
            e for e in shop.events[before:] if isinstance(e, StackDumped) and e.worker == worker
        ],
        "its stacks",
    )[0].stack


def test_a_living_worker_is_asked_for_its_stacks_and_lives_on(build: Build, tmp_path: Path) -> None:
    shop = build(numbers(bad={"20": "waits_then_segfaults"}))
    _, pid = busy(shop, "waits_then_segfaults")
    shop.until(lambda: stamped(shop, 1, 20), "the hanging row")
    for _ in range(2):
        assert "in waits_then_segfaults" in stacks(shop, 1)
        assert alive(pid)
    (tmp_path / "go").touch()
    death = shop.death(1)
    assert death.cause == "SIGSEGV"
    assert death.stack.count("Fatal Python error") == 1
    # and not what it had been asked for before
    assert death.stack.startswith("Fatal Python error: Segmentation fault")
    shop.pool.dump(1)  # it is gone, and nobody answers
    assert len([e for e in shop.events if isinstance(e, StackDumped)]) == 2


def test_a_worker_that_holds_the_gil_is_asked_as_well(build: Build) -> None:
    shop = build(numbers(bad={"20": "holds_the_gil"}))
    busy(shop, "holds_the_gil")
    shop.until(lambda: stamped(shop, 1, 20), "the hanging row")
    assert "in holds_the_gil" in stacks(shop, 1)


def test_a_worker_without_a_handler_for_it_is_not_ended_by_being_asked(
    build: Build, tmp_path: Path
) -> None:
    shop = build(numbers(bad={"20": "takes_the_handler_away"}))
    job, pid = busy(shop, "takes_the_handler_away")
    shop.until(lambda: stamped(shop, 1, 20), "the row")
    shop.until(lambda: stacks(shop, 1) == "", "the end of the handler")
    (tmp_path / "go").touch()
    shop.answer(1, job)
    assert alive(pid)


def test_a_worker_killed_from_outside_is_not_to_blame(build: Build) -> None:
    shop = build(numbers(bad={"20": "sleeps"}))
    _, pid = busy(shop, "sleeps")
    shop.until(lambda: stamped(shop, 1, 20), "the hanging row")
    os.kill(pid, signal.SIGKILL)
    death = shop.death(1)
    assert (death.own, death.cause, death.seen.key) == (False, "SIGKILL", "20")
    assert not alive(pid)


def test_a_kill_by_the_kernels_oom_killer_is_the_workers_own(build: Build) -> None:
    kills = [0]
    shop = build(numbers(bad={"20": "sleeps"}), oom_kills=lambda: kills[0])
    _, pid = busy(shop, "sleeps")
    shop.until(lambda: stamped(shop, 1, 20), "the hanging row")
    kills[0] += 1
    os.kill(pid, signal.SIGKILL)
    death = shop.death(1)
    assert (death.own, death.cause) == (True, "SIGKILL (out of memory)")
    os.kill(shop.pid(2), signal.SIGKILL)
    assert not shop.death(2).own


def test_a_stopped_worker_is_seen_as_paused(build: Build) -> None:
    shop = build(numbers(bad={"20": "sleeps"}))
    _, pid = busy(shop, "sleeps")
    shop.until(lambda: stamped(shop, 1, 20), "the hanging row")
    os.kill(pid, signal.SIGSTOP)
    shop.until(lambda: shop.look().seen[0].paused, "the stop")
    os.kill(pid, signal.SIGCONT)
    shop.until(lambda: not shop.look().seen[0].paused, "its going on")


def template_stops(shop: Workshop) -> int:
    """Its pid.

    Worker 1 has been killed, and what came of it is known, although nobody can tell how it ended;
    worker 2 is wanted.
    """
    shop.start(1)
    template = shop.pool.status().fork_server.pid
    os.kill(template, signal.SIGSTOP)
    shop.until(lambda: shop.pool.status().fork_server.stopped, "the stop")
    os.kill(shop.pid(1), signal.SIGKILL)
    assert not shop.death(1).own
    shop.pool.start(2, 0.0)
    told = (
        f"waiting: the fork server (pid {template}) is stopped by a signal (T); continue it "
        "with SIGCONT,"
    )
    shop.until(lambda: WorkerBooting(2, told) in shop.events, "word of it")
    assert shop.pool.doing() == [told.removeprefix("waiting: ").removesuffix(",")]
    return template


def test_a_stopped_template_is_named_to_who_waits_for_a_worker_and_makes_it_when_it_goes_on(
    build: Build,
) -> None:
    shop = build(numbers())
    os.kill(template_stops(shop), signal.SIGCONT)
    shop.until(lambda: shop.ready(2), "the worker")
    assert not shop.pool.status().fork_server.stopped
    assert shop.pool.doing() == []


def test_time_in_which_the_template_is_stopped_is_no_time_that_a_worker_takes_to_start(
    build: Build,
) -> None:
    shop = build(numbers(), boot_s=8.0)
    shop.facts("train")
    template = template_stops(shop)
    begun_s = shop.loop.now_s()
    shop.until(lambda: shop.loop.now_s() > begun_s + 12.0, "more than boot_s")
    os.kill(template, signal.SIGCONT)
    shop.until(lambda: shop.ready(2) or shop.died(2), "the worker")
    assert shop.ready(2)


def test_what_user_code_started_is_killed_with_its_worker(build: Build, tmp_path: Path) -> None:
    shop = build(numbers(bad={"20": "leaves_processes"}))
    job, pid = busy(shop, "leaves_processes")
    shop.answer(1, job)
    started = shop.until(
        lambda: len(now := commands(str(tmp_path / "wares.py"))) == 3 and now, "what it starts"
    )
    os.kill(pid, signal.SIGKILL)
    shop.death(1)
    shop.until(lambda: not any(map(alive, started)), "the end of what it started")
    assert shop.run(2, shop.job("train", 2)).bad == ()


def test_what_a_worker_started_is_killed_with_it_while_the_template_is_stopped(
    build: Build, tmp_path: Path
) -> None:
    shop = build(numbers(bad={"20": "leaves_processes"}))
    job, pid = busy(shop, "leaves_processes")
    shop.answer(1, job)
    started = shop.until(
        lambda: len(now := commands(str(tmp_path / "wares.py"))) == 3 and now, "what it starts"
    )
    template = shop.pool.status().fork_server.pid
    os.kill(template, signal.SIGSTOP)
    shop.until(lambda: shop.pool.status().fork_server.stopped, "the stop")
    os.kill(pid, signal.SIGKILL)
    shop.until(lambda: sum(map(alive, started)) == 1, "the end of what was in its group")
    os.kill(template, signal.SIGCONT)
    shop.until(
        lambda: not any(map(alive, started)), "the end of the one that had a group of its own"
    )


def test_sessions_below_sessions_are_killed_with_their_worker(build: Build, tmp_path: Path) -> None:
    shop = build(numbers(bad={"20": "leaves_sessions"}))
    job, pid = busy(shop, "leaves_sessions")
    shop.answer(1, job)
    (last,) = shop.until(lambda: commands(str(tmp_path / "wares.py")), "what it starts")
    os.kill(pid, signal.SIGKILL)
    shop.until(lambda: not alive(last), "its end")


def test_a_child_that_user_code_forks_can_be_terminated(build: Build) -> None:
    shop = build(numbers(bad={"20": "terminates_a_child"}))
    job, _ = busy(shop, "terminates_a_child")
    assert shop.answer(1, job).bad == ()


def test_an_orphan_of_a_living_worker_outlives_the_death_of_another(
    build: Build, tmp_path: Path
) -> None:
    shop = build(numbers(bad={"20": "leaves_an_orphan"}))
    job, pid = busy(shop, "leaves_an_orphan")
    shop.answer(1, job)
    (orphan,) = shop.until(lambda: commands(str(tmp_path / "wares.py")), "what it starts")
    assert int(Path(f"/proc/{orphan}/stat").read_text().rpartition(")")[2].split()[1]) == pid
    os.kill(shop.pid(2), signal.SIGKILL)
    shop.death(2)
    assert alive(orphan)
    os.kill(pid, signal.SIGKILL)
    shop.until(lambda: not alive(orphan), "its end")


def test_a_worker_that_is_told_to_leave_and_does_not_is_killed(build: Build) -> None:
    shop = build(numbers(bad={"20": "sleeps"}))
    busy(shop, "sleeps")
    shop.until(lambda: stamped(shop, 1, 20), "the hanging row")
    shop.pool.retire(1)
    death = shop.death(1)
    assert (death.own, death.cause) == (False, "killed: it did not exit")


def test_a_new_worker_inherits_nothing_from_the_stamp_of_the_last_one_in_its_place(
    build: Build,
) -> None:
    shop = build(numbers(bad={"20": "segfaults"}))
    busy(shop, "segfaults")
    assert shop.death(1).seen.key == "20"
    shop.start(3)
    workers = shop.pool.status().workers
    assert workers[3].place == 0
    os.kill(workers[3].pid, signal.SIGKILL)
    death = shop.death(3)
    assert (death.seen.word, death.seen.key) == (0, "")


def test_a_new_template_waits_for_the_death_of_the_old_ones_workers_and_says_if_that_does_not_come(
    build: Build,
) -> None:
    shop = build(numbers())
    shop.start(1, 2)
    child = shop.pool._processes.children[1]
    shop.loop.unwatch(child._pidfd)  # as if it were in disk sleep: its death is not seen
    os.kill(shop.pool.status().fork_server.pid, signal.SIGKILL)
    shop.death(2)
    shop.pool.start(3, 0.0)
    shop.until(lambda: shop.ready(3), "a worker of the new template")
    assert "worker 1 cannot be killed; a new fork server is started anyway" in shop.lines


def test_a_new_template_does_not_wait_for_longer_than_the_old_ones_workers_take_to_die(
    build: Build,
) -> None:
    shop = build(numbers())
    shop.start(1, 2)
    os.kill(shop.pool.status().fork_server.pid, signal.SIGKILL)
    shop.death(1)
    shop.death(2)
    shop.start(3)
    assert not [line for line in shop.lines if "cannot be killed" in line]


def test_a_look_after_time_in_which_the_loop_did_not_run_says_so_once(build: Build) -> None:
    shop = build(numbers(bad={"20": "sleeps"}))
    busy(shop, "sleeps")
    shop.until(lambda: stamped(shop, 1, 20), "the hanging row")
    shop.look()
    shop.loop.clock.lost_s += 0.5
    assert [seen.starved for seen in shop.look().seen] == [True]
    assert [seen.starved for seen in shop.look().seen] == [False]


def test_a_worker_that_lost_its_descriptors_harms_only_itself(build: Build) -> None:
    shop = build(numbers(bad={"20": "closes_all"}))
    busy(shop, "closes_all")
    death = shop.death(1)
    assert death.own
    assert shop.run(2, shop.job("train", 2)).bad == ()


def test_a_worker_that_speaks_nonsense_is_killed_for_it(build: Build) -> None:
    shop = build(numbers(bad={"20": "talks_nonsense"}))
    busy(shop, "talks_nonsense")
    death = shop.death(1)
    assert death.own
    assert "invalid message" in death.cause
    assert shop.run(2, shop.job("train", 2)).bad == ()


def test_a_child_that_falls_back_into_the_workers_loop_harms_nobody(build: Build) -> None:
    shop = build(numbers(bad={"20": "falls_back"}))
    job, _ = busy(shop, "falls_back")
    done = shop.answer(1, job)
    assert done.bad == ()
    assert shop.ponds[0].field(0, "y", 8).tolist() == list(range(18, 26))
    assert shop.run(1, shop.job("train", 2)).bad == ()
    assert sum(getattr(event, "done", None) == done for event in shop.events) == 1


def test_a_child_of_user_code_has_no_slot_and_no_line_of_ours(build: Build, tmp_path: Path) -> None:
    shop = build(numbers(bad={"20": "forks_and_looks"}))
    job, _ = busy(shop, "forks_and_looks")
    assert shop.answer(1, job).bad == ()
    maps, fds = (tmp_path / "child.maps").read_text(), (tmp_path / "child.fds").read_text()
    assert "wares" not in fds
    assert "memfd:pond" not in maps
    assert "memfd:loaderd-scoreboard" not in maps
    assert "memfd:pond" not in fds
    assert "socket:" not in fds


def test_signals_do_not_end_a_worker_but_a_program_that_it_starts(
    build: Build, tmp_path: Path
) -> None:
    shop = build(numbers(bad={"19": "tries_signals", "20": "dies_softly"}))
    job, pid = busy(shop, "dies_softly")
    assert shop.answer(1, job).bad == ()
    assert (tmp_path / "signals").read_text() == str(-signal.SIGTERM)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(pid, number)
    assert shop.run(1, shop.job("train", 2)).bad == ()
    assert shop.pid(1) == pid


def test_a_retired_worker_leaves_when_it_is_idle(build: Build) -> None:
    shop = build(numbers())
    shop.facts("train")
    shop.start(1)
    shop.pool.retire(1)
    death = shop.death(1)
    assert (death.own, death.cause, death.boot) == (False, "exited when asked to", "")


def test_killing_a_worker_that_is_still_to_come_is_answered_too(build: Build) -> None:
    shop = build(numbers())
    shop.pool.start(1, 1000.0)
    shop.pool.kill(1, "no need")
    shop.pool.start(2, 0.0)
    shop.loop.turn(0)
    shop.pool.kill(2, "no need")
    assert not shop.death(1).own
    assert not shop.death(2).own
    shop.pool.start(3, 0.2)
    shop.pool.kill(3, "no need")
    begun_s = shop.loop.now_s()
    shop.until(
        lambda: shop.loop.now_s() > begun_s + 0.5, "the time at which it would have been started"
    )
    assert shop.pool.status().workers == {}


def test_the_death_of_the_template_takes_its_workers_and_brings_a_new_one(build: Build) -> None:
    shop = build(numbers(bad={"20": "sleeps"}))
    _, pid = busy(shop, "sleeps")
    pids = [pid, shop.pid(2)]
    template = shop.pool.status().fork_server.pid
    shop.until(lambda: stamped(shop, 1, 20), "the hanging row")
    os.kill(template, signal.SIGKILL)
    deaths = [shop.death(1), shop.death(2)]
    assert [death.own for death in deaths] == [False, False]
    assert deaths[0].seen.key == "20"
    assert not any(map(alive, pids))
    shop.start(3)
    assert shop.pool.status().fork_server.pid not in (0, template)
    assert shop.run(3, shop.job("train", 2)).bad == ()


def test_the_template_has_one_thread_and_none_but_its_own_descriptors(build: Build) -> None:
    shop = build(numbers())
    shop.facts("train")
    shop.start(1, 2)
    template = shop.pool.status().fork_server.pid
    assert shop.threads_of_template() == 1
    # What it hands on is its own for a moment only.
    shop.until(
        lambda: (
            not [target for target in targets(template) if "memfd" in target or "pidfd" in target]
        ),
        "its handing on",
    )
    for pid in (template, shop.pid(1), shop.pid(2)):
        assert len([target for target in targets(pid) if "socket" in target]) == 1


@pytest.mark.parametrize("what", ["sleeps", "leaves_processes"])
def test_close_leaves_nothing_behind_in_the_middle_of_a_job(
    build: Build, tmp_path: Path, what: str
) -> None:
    shop = build(numbers(bad={"20": what}))
    _, pid = busy(shop, what)
    shop.until(
        lambda: (
            stamped(shop, 1, 20)
            if what == "sleeps"
            else len(commands(str(tmp_path / "wares.py"))) == 3
        ),
        "the row",
    )
    pids = [pid, shop.pid(2), shop.pool.status().fork_server.pid]
    shop.pool.close()
    assert not any(map(alive, pids))
    until("the end of what it started", lambda: not commands(str(tmp_path / "wares.py")))


def test_close_does_not_wait_for_a_template_that_is_starting(build: Build) -> None:
    shop = build(numbers())
    shop.pool.start(1, 0.0)
    shop.until(lambda: shop.pool.status().fork_server.pid, "the template's start")
    pid = shop.pool.status().fork_server.pid
    shop.pool.close()
    assert not alive(pid)


def test_a_killed_daemon_takes_template_and_workers_with_it(build: Build, tmp_path: Path) -> None:
    read, write = os.pipe()
    daemon = os.fork()
    if daemon == 0:
        try:
            os.close(read)
            shop = Workshop(tmp_path, [numbers(bad={"20": "sleeps"})])
            _, pid = busy(shop, "sleeps")
            pids = [pid, shop.pid(2), shop.pool.status().fork_server.pid]
            os.write(write, " ".join(map(str, pids)).encode())
            time.sleep(1000)
        finally:
            os._exit(1)
    os.close(write)
    with os.fdopen(read) as pipe:
        os.set_blocking(pipe.fileno(), True)
        pids = [int(word) for word in re.findall(r"\d+", os.read(pipe.fileno(), 100).decode())]
    assert len(pids) == 3
    assert all(map(alive, pids))
    os.kill(daemon, signal.SIGKILL)
    os.waitpid(daemon, 0)
    until("the end of them all", lambda: not any(map(alive, pids)))


def test_a_closed_pool_takes_what_the_scheduler_still_wants(build: Build) -> None:
    shop = build(numbers())
    facts = shop.facts("train")
    shop.start(1)
    pond = shop.pond(facts, 4)
    assert shop.run(1, shop.job("train", 4)).bad == ()
    shop.pool.close()
    shop.pool.start(2, 0.0)
    shop.pool.send(1, shop.job("train", 4))
    shop.pool.kill(1, "too late")
    shop.pool.retire(1)
    gone: list[int] = []
    shop.pool.drop_segment(pond.segment.segment, lambda: gone.append(1))
    assert gone == [1]
    assert shop.look().seen == ()
