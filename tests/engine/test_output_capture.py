"""What user code prints, how much memory it takes, and segments on their way out."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from loaderd_testing.engine_harness import Workshop, numbers

Build = Callable[..., Workshop]


def open_with(build: Build, how: str) -> Workshop:
    """A pool whose worker 1 is ready for jobs in which sample 20 misbehaves like this."""
    shop = build(numbers(bad={"20": how}))
    facts = shop.facts("train")
    shop.start(1)
    shop.pond(facts, 8)
    return shop


def lines_of(shop: Workshop, is_one: Callable[[str], bool]) -> tuple[int, int]:
    """(lines of the worker's that were logged, lines of which only the count was), when all of its
    output has been read.
    """
    shop.pool.retire(1)
    shop.death(1)
    dropped = [
        int(line.rpartition(": ")[2].split()[0])
        for line in shop.lines
        if "more lines dropped" in line
    ]
    return sum(map(is_one, shop.lines)), sum(dropped)


def test_what_user_code_prints_is_logged_with_worker_and_key(build: Build) -> None:
    shop = open_with(build, "prints")
    shop.run(1, shop.job("train", 8, start=18))
    shop.until(lambda: sum(line.startswith("worker 1") for line in shop.lines) >= 2, "the lines")
    shop.pool.retire(1)
    shop.death(1)
    said = [line for line in shop.lines if line.startswith("worker 1")]
    assert [line.partition(": ")[2] for line in said] == [
        "a line of the user",
        "to stderr",
        "half a line",
    ]


def test_the_key_of_a_worker_that_hangs_stands_before_what_it_printed(build: Build) -> None:
    shop = open_with(build, "prints_and_sleeps")
    shop.pool.send(1, shop.job("train", 8, start=18))
    shop.until(lambda: "worker 1 [20]: before the end" in shop.lines, "the line")


def test_a_flood_of_lines_is_cut_and_counted(build: Build) -> None:
    shop = open_with(build, "prints_much")
    shop.run(1, shop.job("train", 8, start=18))
    said, dropped = lines_of(shop, lambda line: "worker 1" in line and ": line " in line)
    assert said + dropped == 20000
    assert said < 2000


def test_a_sample_that_prints_200_megabytes_does_not_wait_for_its_log(build: Build) -> None:
    shop = open_with(build, "prints_200_megabytes")
    assert shop.run(1, shop.job("train", 8, start=18)).bad == ()
    said, dropped = lines_of(shop, lambda line: line.endswith(": a line of nineteen"))
    assert said + dropped == 2000 * 5263
    assert said < 5000


def test_a_line_without_end_is_cut_and_keeps_no_memory(build: Build) -> None:
    shop = open_with(build, "prints_a_line_without_end")
    assert shop.run(1, shop.job("train", 8, start=18)).bad == ()
    shop.pool.retire(1)
    shop.death(1)
    (said,) = [
        line.partition(": ")[2]
        for line in shop.lines
        if line.startswith("worker 1") and "0123456789" in line
    ]
    assert said == "0123456789" * 200 + " ..."


def test_a_worker_that_floods_its_log_and_dies_leaves_nothing_in_the_loop(build: Build) -> None:
    shop = build(numbers(bad={"20": "floods_and_dies"}))
    facts = shop.facts("train")
    shop.pond(facts, 8)
    for worker in (1, 2):  # the second one's pipe has the number that the first one's had
        shop.start(worker)
        shop.pool.send(worker, shop.job("train", 8, start=18))
        assert shop.death(worker).cause == "exit code 1"
    shop.start(3)
    assert shop.run(3, shop.job("train", 8)).bad == ()
    assert any("more lines dropped" in line for line in shop.lines)


def test_memory_of_a_worker_is_its_own_and_not_that_of_its_slots(build: Build) -> None:
    shop = build(numbers(bad={"20": "hoards", "21": "sleeps", "31": "sleeps"}))
    facts = shop.facts("train")
    shop.start(1, 2)
    pond = shop.pond(facts, 1 << 18, slots=8)
    assert pond.segment.slots * pond.segment.slot_bytes > 60 << 20
    shop.pool.send(1, shop.job("train", 2, start=20))
    shop.pool.send(2, shop.job("train", 2, start=30))
    most: dict[int, int] = {}

    def looked() -> bool:
        for seen in shop.look().seen:
            most[seen.worker] = max(
                most.get(seen.worker, 0), seen.anon_bytes if seen.key in ("21", "31") else 0
            )
        return len(most) == 2 and all(most.values())

    shop.until(looked, "a look at both")
    assert most[1] - most[2] > 90 << 20
    assert most[2] < 300 << 20
    # not looked at again within a second
    assert all(seen.anon_bytes == 0 for seen in shop.look().seen)


def test_a_dropped_segment_is_done_when_the_last_worker_has_unmapped_it(build: Build) -> None:
    shop = build(numbers(bad={"20": "sleeps"}))
    facts = shop.facts("train")
    shop.start(1, 2)
    pond = shop.pond(facts, 4)
    assert shop.run(1, shop.job("train", 4)).bad == ()
    shop.pool.send(2, shop.job("train", 4, start=20))
    shop.until(lambda: [seen.key for seen in shop.look().seen] == ["20"], "the hanging row")
    assert mapped(shop.pid(1))
    assert mapped(shop.pid(2))
    gone: list[int] = []
    shop.pool.drop_segment(pond.segment.segment, lambda: gone.append(1))
    shop.until(lambda: not mapped(shop.pid(1)), "the idle worker")
    assert not gone
    os.kill(shop.pid(2), signal.SIGKILL)
    shop.death(2)
    assert gone == [1]


def test_a_segment_that_nobody_has_mapped_is_done_at_once(build: Build) -> None:
    shop = build(numbers())
    pond = shop.pond(shop.facts("train"), 4)
    gone: list[int] = []
    shop.pool.drop_segment(pond.segment.segment, lambda: gone.append(1))
    assert gone == [1]


def mapped(pid: int) -> bool:
    with open(f"/proc/{pid}/maps") as maps:
        return "memfd:pond" in maps.read()
