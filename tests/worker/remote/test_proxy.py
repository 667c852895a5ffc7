"""Workers on another node of a real Ray cluster: their bytes, and their ends."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loaderd.config.ray import RayConfig
from loaderd.config.stream import StreamConfig
from loaderd.core.jobs import Done, JobKind, unstamp
from loaderd_testing.deadlines import until
from loaderd_testing.engine_harness import Pond, Workshop, adding, numbers
from loaderd_testing.ray_nodes import Nodes, two_nodes
from loaderd_testing.sample_builders import image_samples, op, write_own

pytestmark = pytest.mark.needs("ray")

HERE, THERE = 1, 2  # numbers of workers


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with two_nodes() as made:
        yield made


@pytest.fixture
def shop(workshop: Workshop) -> Iterator[Workshop]:
    """Without the segments of tests before."""
    yield workshop
    workshop.drain()


@pytest.fixture(scope="module")
def workshop(nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    """A worker here and one on the other node, and streams of many kinds."""
    folder = tmp_path_factory.mktemp("shop")
    photos = write_own(folder / "photos", image_samples(40, "JPEG"))
    bad = {str(n): "raises" for n in range(0, 100, 9)}
    plans = [
        StreamConfig(
            "photos", lmdb=photos, shuffle=1, transforms=(op("random_resized_crop", size=32),)
        ),
        numbers("stacked", collate="wares:stacked", shuffle=1, batch_size=30),
        numbers("replaced", transforms=(adding(3),), bad=bad, on_error="replace"),
        numbers("words", dataset="wares:Words", shuffle=1),
        numbers("drawn", dataset="wares:Chances"),
        numbers("shortened", bad=bad, on_error="skip"),
        numbers("deadly", bad={"50": "segfaults", "60": "leaves"}),
    ]
    made = Workshop(folder, plans, ray=nodes.config(resources={"CPU": 1}))
    try:
        for plan in plans:
            made.facts(plan.name)
        made.pool.start(HERE, 0.0)
        start(made, THERE)
        made.until(lambda: made.ready(HERE), "the worker of this host")
        yield made
    finally:
        made.close()


def start(shop: Workshop, worker: int) -> None:
    """A worker on the other node, which must become ready."""
    shop.pool.start(worker, 0.0, True)
    shop.until(lambda: shop.ready(worker) or shop.died(worker), f"remote worker {worker}")
    assert shop.ready(worker), (shop.died(worker), shop.lines)


def both(shop: Workshop, stream: str, rows: int, **more: Any) -> tuple[list[Pond], list[Done]]:
    """The same job here and there, each with a segment of its own."""
    ponds = [shop.pond(shop.facts(stream), rows) for _ in (HERE, THERE)]
    done = [
        shop.run(worker, shop.job(stream, rows, segment=pond.segment.segment, **more))
        for worker, pond in zip((HERE, THERE), ponds, strict=True)
    ]
    return ponds, done


def told(done: Done) -> Any:
    """What an answer says, but for its number, its times, and paths of the user's code."""
    bad = tuple(replace(bad, sample=replace(bad.sample, traceback="")) for bad in done.bad)
    return replace(done, job=0, bad=bad, read_s=0, decode_s=0, transform_s=0, write_s=0)


@pytest.mark.parametrize(
    ("stream", "kind"),
    [
        ("photos", JobKind.FILL),
        ("stacked", JobKind.BATCH),
        ("replaced", JobKind.FILL),
        ("words", JobKind.FILL),
        ("drawn", JobKind.FILL),
    ],
)
def test_the_bytes_of_a_slot_differ_from_those_of_a_local_worker(
    shop: Workshop, stream: str, kind: JobKind
) -> None:
    ponds, done = both(shop, stream, 30, kind=kind, start=5)
    assert told(done[0]) == told(done[1])
    assert ponds[0].read(0) == ponds[1].read(0)
    assert any(ponds[1].read(0)[30 * 8 :])
    assert [bad.row for bad in done[1].bad] == ([4, 13, 22] if stream == "replaced" else [])


def test_a_part_of_a_batch_overwrites_its_other_rows(shop: Workshop) -> None:
    pond = shop.pond(shop.facts("photos"), 12)
    whole = shop.pond(shop.facts("photos"), 12)
    for worker, rows in ((THERE, (0, 3)), (HERE, (3, 7)), (THERE, (7, 12))):
        shop.run(
            worker,
            shop.job("photos", 12, segment=pond.segment.segment, first=rows[0], last=rows[1]),
        )
    shop.run(HERE, shop.job("photos", 12, segment=whole.segment.segment))
    assert pond.read(0) == whole.read(0)


def test_rows_that_are_left_are_not_moved_up_over_lost_ones(shop: Workshop) -> None:
    ponds, done = both(shop, "shortened", 20)
    lost = tuple(bad.row for bad in done[1].bad)
    assert lost == (0, 9, 18)
    for worker, pond in zip((HERE, THERE), ponds, strict=True):
        shop.run(
            worker,
            shop.job(
                "shortened", 20, kind=JobKind.COMPACT, segment=pond.segment.segment, lost=lost
            ),
        )
    left = [n for n in range(20) if n not in lost]
    assert ponds[0].indices(0, 17) == ponds[1].indices(0, 17) == left
    assert ponds[1].field(0, "y", 17).tolist() == left


def test_a_job_that_writes_nothing_is_not_answered(shop: Workshop) -> None:
    job = shop.job("replaced", 4, kind=JobKind.TRIAL, segment=0)
    assert shop.run(THERE, job).bad[0].row == 0


@pytest.mark.parametrize(
    ("row", "cause", "status"), [(50, "SIGSEGV", signal.SIGSEGV), (60, "exit code 3", 3)]
)
def test_the_end_of_a_worker_there_is_not_blamed_on_its_row(
    shop: Workshop, row: int, cause: str, status: int
) -> None:
    worker = 100 + row
    start(shop, worker)
    pond = shop.pond(shop.facts("deadly"), 20)
    job = shop.job("deadly", 20, start=row - 5, segment=pond.segment.segment)
    shop.pool.send(worker, job)
    death = shop.death(worker)
    assert (death.own, death.cause) == (True, cause)
    assert unstamp(death.seen.word)[:2] == (job.job, 5)
    assert death.seen.key == str(row)
    assert ("segfaults" in death.stack) == (row == 50)


def test_a_node_that_lets_a_worker_go_is_the_fault_of_a_row(shop: Workshop) -> None:
    before = actors()
    start(shop, 7)
    (actor,) = actors() - before
    pond = shop.pond(shop.facts("photos"), 4)
    os.kill(actor, signal.SIGKILL)
    shop.pool.send(7, shop.job("photos", 4, segment=pond.segment.segment))
    death = shop.death(7)
    assert not death.own
    assert "its actor is gone" in death.cause


def test_a_worker_outlives_the_process_that_stands_for_it(shop: Workshop) -> None:
    before = actors()
    start(shop, 8)
    (actor,) = actors() - before
    os.kill(shop.pid(8), signal.SIGKILL)
    assert not shop.death(8).own
    until("the actor of a killed proxy to end", lambda: actor not in actors())


def test_a_cluster_that_is_not_there_is_waited_for(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    shop = Workshop(tmp_path, [numbers()], ray=RayConfig(address=address))
    try:
        shop.facts("train")
        shop.pool.start(1, 0.0, True)
        death = shop.death(1)
        assert not death.own
        assert death.boot.startswith(f"Ray at {address} is not reachable: ")
    finally:
        shop.close()


def actors() -> set[int]:
    """Pids of the actors' processes on this machine."""
    return {
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if b"ray::NodeWorker" in _read(path)
    }


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""
