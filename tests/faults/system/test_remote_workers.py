"""Workers on another node of a real Ray cluster: their bytes, their ends, and the end of nodes."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaderd.config.ray import RayConfig
from loaderd.config.staging import StageConfig
from loaderd.config.stream import StreamConfig
from loaderd.core.events import StackDumped
from loaderd.core.jobs import Done, JobKind, Stage, unstamp
from loaderd_testing.daemon_harness import Site, digest, take
from loaderd_testing.deadlines import until
from loaderd_testing.engine_harness import Pond, Workshop, adding, numbers
from loaderd_testing.ports import reserved_port
from loaderd_testing.ray_nodes import STORE_BYTES, Nodes, head_with_a_token, two_nodes
from loaderd_testing.sample_builders import image_samples, op, write_own

pytestmark = pytest.mark.needs("ray")

HERE, THERE = 1, 2  # numbers of workers
# a batch of 40 is more than Ray's object store has room for
LARGE = """
import numpy as np
class Rows:
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return {"x": np.full(3 << 20, index, np.uint8)}
"""
# says where it runs, and takes its time
FAULT = """
    time.sleep(0.02)
    open({folder!r} + ("/there" if "runtime_resources" in __file__ else "/here"), "w").close()
"""
# on the other node, while there is such a file, a sample takes for ever
SLOW = """
    while "runtime_resources" in __file__ and os.path.exists({file!r}):
        open({file!r}, "r+").write("met")
        time.sleep(0.01)
"""


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
            "photos",
            lmdb=photos,
            shuffle=1,
            transforms=(op("random_resized_crop", size=32),),
            stage=StageConfig.of(str(folder / "stage"), None, 0, "test"),
        ),
        numbers("stacked", collate="wares:stacked", shuffle=1, batch_size=30),
        numbers("replaced", transforms=(adding(3),), bad=bad, on_error="replace"),
        numbers("words", dataset="wares:Words", shuffle=1),
        numbers("drawn", dataset="wares:Chances"),
        numbers("shortened", bad=bad, on_error="skip"),
        numbers("deadly", bad={"50": "segfaults", "70": "sleeps"}),
        numbers("large", dataset="large:Rows"),
        numbers("chosen", keys=str(folder / "keys.txt"), weights=str(folder / "weights.npy")),
    ]
    np.save(folder / "weights.npy", np.arange(1, 51))
    (folder / "keys.txt").write_text("".join(f"{n}\n" for n in range(99, 0, -2)))
    (folder / "stage").mkdir()
    (folder / "large.py").write_text(LARGE)
    made = Workshop(folder, plans, ray=nodes.config(resources={"CPU": 1}, stage=True))
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
        ("chosen", JobKind.FILL),
    ],
)
def test_the_bytes_of_a_slot_are_those_of_a_local_worker(
    shop: Workshop, stream: str, kind: JobKind
) -> None:
    ponds, done = both(shop, stream, 30, kind=kind, start=5)
    assert told(done[0]) == told(done[1])
    assert ponds[0].read(0) == ponds[1].read(0)
    assert any(ponds[1].read(0)[30 * 8 :])
    assert [bad.row for bad in done[1].bad] == ([4, 13, 22] if stream == "replaced" else [])


def test_a_node_that_is_to_copy_a_database_reads_its_copy(nodes: Nodes, shop: Workshop) -> None:
    both(shop, "photos", 4)
    (actor,) = nodes.actors()
    threads = Path(f"/proc/{actor}/task").glob("*/children")
    (worker,) = [pid for made in threads for pid in made.read_text().split()]
    mapped = {line.split()[-1] for line in Path(f"/proc/{worker}/maps").read_text().splitlines()}
    (database,) = [path for path in mapped if "photos" in path]
    assert "/stage/" in database


def test_rows_that_the_object_store_has_no_room_for_arrive(shop: Workshop) -> None:
    pond = shop.pond(shop.facts("large"), 40)
    job = shop.job("large", 40, segment=pond.segment.segment)
    assert shop.run(THERE, job).bytes > STORE_BYTES
    read = pond.field(0, "x", 40)
    assert (read[:, ::4096] == np.arange(40, dtype=np.uint8)[:, None]).all()


def test_a_part_of_a_batch_leaves_its_other_rows_alone(shop: Workshop) -> None:
    pond = shop.pond(shop.facts("photos"), 12)
    whole = shop.pond(shop.facts("photos"), 12)
    for worker, rows in ((THERE, (0, 3)), (HERE, (3, 7)), (THERE, (7, 12))):
        shop.run(
            worker,
            shop.job("photos", 12, segment=pond.segment.segment, first=rows[0], last=rows[1]),
        )
    shop.run(HERE, shop.job("photos", 12, segment=whole.segment.segment))
    assert pond.read(0) == whole.read(0)


def test_rows_that_are_left_are_moved_up_over_lost_ones(shop: Workshop) -> None:
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


def test_a_job_that_writes_nothing_is_answered(shop: Workshop) -> None:
    job = shop.job("replaced", 4, kind=JobKind.TRIAL, segment=0)
    assert shop.run(THERE, job).bad[0].row == 0


def test_the_end_of_a_worker_there_is_blamed_on_its_row(shop: Workshop) -> None:
    start(shop, 5)
    pond = shop.pond(shop.facts("deadly"), 20)
    job = shop.job("deadly", 20, start=45, segment=pond.segment.segment)
    shop.pool.send(5, job)
    death = shop.death(5)
    assert (death.own, death.cause) == (True, "SIGSEGV")
    assert unstamp(death.seen.word)[:2] == (job.job, 5)
    assert death.seen.key == "50"
    assert "in segfaults" in death.stack


def test_a_worker_there_that_hangs_in_c_is_seen_where_it_hangs(
    nodes: Nodes, shop: Workshop
) -> None:
    before = nodes.actors()
    start(shop, 6)
    (actor,) = nodes.actors() - before
    pond = shop.pond(shop.facts("deadly"), 4)
    job = shop.job("deadly", 4, start=68, segment=pond.segment.segment)
    shop.pool.send(6, job)

    def seen() -> bool:
        (one,) = shop.look().seen
        return unstamp(one.word) == (job.job, 2, Stage.READ) and one.key == "70"

    shop.until(seen, "the row at which it hangs")
    shop.pool.dump(6)
    stack = shop.until(
        lambda: [each.stack for each in shop.events if isinstance(each, StackDumped)], "its stack"
    )[0]
    assert "in sleeps" in stack
    shop.pool.kill(6, "it hangs")
    assert shop.death(6).cause == "killed: it hangs"
    until("the actor to end", lambda: actor not in nodes.actors())


def test_a_node_that_lets_a_worker_go_is_no_fault_of_a_row(nodes: Nodes, shop: Workshop) -> None:
    before = nodes.actors()
    start(shop, 7)
    (actor,) = nodes.actors() - before
    pond = shop.pond(shop.facts("photos"), 4)
    os.kill(actor, signal.SIGKILL)
    shop.pool.send(7, shop.job("photos", 4, segment=pond.segment.segment))
    death = shop.death(7)
    assert not death.own
    assert "its actor " in death.cause


def test_a_node_whose_samples_would_be_others_gets_no_work(nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "moody.py").write_text(
        "class Place:\n"
        "    def __len__(self):\n        return 9\n"
        "    def __getitem__(self, index):\n"
        "        return {'there': 'runtime_resources' in __file__}\n"
    )
    shop = Workshop(tmp_path, [numbers(dataset="moody:Place")], ray=nodes.config())
    try:
        shop.facts("train")
        shop.pool.start(1, 0.0, True)
        death = shop.death(1)
        node = socket.gethostname()
        assert death.boot.startswith(
            f"node {node}: it is refused: stream 'train': the first samples as "
        )
    finally:
        shop.close()


def test_a_node_that_selects_other_samples_gets_no_work(nodes: Nodes, tmp_path: Path) -> None:
    """The file of keys was edited since the daemon's start, behind the samples that are compared."""
    keys = tmp_path / "keys.txt"
    keys.write_text("".join(f"{n}\n" for n in range(90)))
    shop = Workshop(tmp_path, [numbers(keys=str(keys))], ray=nodes.config())
    try:
        shop.facts("train")
        keys.write_text("".join(f"{n}\n" for n in (*range(89), 95)))
        shop.pool.start(1, 0.0, True)
        assert "keys, weights or bucket_by select other samples there" in shop.death(1).boot
    finally:
        shop.close()


def test_a_folder_that_is_not_only_code_travels(nodes: Nodes, tmp_path: Path) -> None:
    """Ray alone would follow the links for ever, wait at the pipe, and stop at the name."""
    for name in ("me", "you"):
        (tmp_path / name).symlink_to(".")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / os.fsdecode(b"\xff.txt")).touch()
    shop = Workshop(tmp_path, [numbers()], ray=nodes.config())
    try:
        shop.facts("train")
        start(shop, 1)
    finally:
        shop.close()


def test_a_node_that_becomes_slow_holds_up_no_batch(nodes: Nodes, tmp_path: Path) -> None:
    """It does nothing any more, and is not late by `sample_timeout_s` before the end."""
    site = Site(tmp_path)
    ray = f'[workers.ray]\naddress = "{nodes.address}"\nnum_workers = 1'
    slow = tmp_path / "slow"
    site.write(fault=f"def fault(index):{SLOW.format(file=str(slow))}", workers=1, pool=ray)
    try:
        site.serve()
        until("a remote worker", lambda: remote(site)["up"])
        loader = iter(site.loader())
        batches = take(loader, 2)
        slow.touch()
        batches += take(loader)
        assert slow.read_text() == "met"
        assert remote(site)["up"]
        slow.unlink()
        assert digest(batches) == digest(undisturbed(tmp_path, 1)[0])
    finally:
        slow.unlink(missing_ok=True)
        site.close()


def test_resources_that_ray_does_not_take_are_named_in_one_line(
    nodes: Nodes, tmp_path: Path
) -> None:
    assert refused(tmp_path, nodes.address, resources={"GPU": 1.5}) == (
        "Ray does not take [workers.ray] resources = {GPU = 1.5}: GPU resource quantities >1 must "
        "be whole numbers. The specified quantity 1.5 is invalid."
    )


def test_resources_that_no_node_has_are_named(nodes: Nodes, tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write(workers=1, pool=f'[workers.ray]\naddress = "{nodes.address}"\nresources = {{x = 1}}')
    try:
        site.serve()
        line = f"1 waiting for Ray at {nodes.address} to find room for {{x = 1}}"
        until("the line", lambda: line in remote(site)["text"])
    finally:
        site.close()


def refused(folder: Path, address: str, **more: Any) -> str:
    """Why a worker for a cluster has not started; it is no fault of the worker."""
    shop = Workshop(folder, [numbers()], ray=RayConfig(address=address, **more))
    try:
        shop.facts("train")
        shop.pool.start(1, 0.0, True)
        death = shop.death(1)
        assert not death.own
        return death.boot
    finally:
        shop.close()


def test_a_node_or_a_head_that_goes_does_not_change_the_stream(
    nodes: Nodes, tmp_path: Path
) -> None:
    """It ends the nodes: no test that uses them may come after it."""
    site = Site(tmp_path)
    ray = f'[workers.ray]\naddress = "{nodes.address}"\nnum_workers = 1'
    site.write(fault=f"def fault(index):{FAULT.format(folder=str(tmp_path))}", workers=1, pool=ray)
    try:
        site.serve()
        until("a remote worker", lambda: remote(site)["up"])
        here, there = sorted(site.status()["workers"], key=lambda worker: worker["remote"])
        assert (here["remote"], here["node"]) == (False, "")
        assert (there["remote"], there["node"]) == (True, socket.gethostname())
        assert re.search(rf"idle +pid \d+  node {socket.gethostname()}", site.shown())
        loader = site.loader()
        first = iter(loader)
        epochs = [take(first, 4)]
        (tmp_path / "there").unlink()
        nodes.ask("lose")
        epochs[0] += take(first)
        until("the loss to be noticed", lambda: not remote(site)["up"])
        assert remote(site)["text"].startswith("1 remote worker, 0 at work: ")
        assert "remote   1 remote worker, 0 at work: node" in site.shown()
        assert "raylet" not in site.text()
        assert "it goes on with 1 local one" in site.text()
        nodes.ask("add")
        until("a remote worker again", lambda: remote(site)["up"])
        epochs.append(take(loader))
        assert (tmp_path / "there").exists()
        nodes.ask("behead")
        epochs.append(take(loader))
        assert [digest(epoch) for epoch in epochs] == [digest(e) for e in undisturbed(tmp_path, 3)]
    finally:
        site.close()


def undisturbed(folder: Path, epochs: int) -> list[list[dict[str, Any]]]:
    """The same epochs of a daemon without other hosts."""
    (folder / "alone").mkdir()
    site = Site(folder / "alone")
    site.write(workers=1)
    try:
        loader = site.serve().loader()
        return [take(loader) for _ in range(epochs)]
    finally:
        site.close()


def remote(site: Site) -> dict[str, Any]:
    """What `status` says of workers on other hosts."""
    return site.status()["pool"]["remote"]


def test_a_cluster_that_is_not_there_is_named(tmp_path: Path) -> None:
    with reserved_port() as port:
        address = f"127.0.0.1:{port}"
        assert refused(tmp_path, address).startswith(f"Ray at {address} is not reachable: ")


def test_a_cluster_that_asks_for_a_token_is_told_with_where_to_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_NUM_REDIS_GET_RETRIES", "1")
    with head_with_a_token(tmp_path) as address:
        why = refused(tmp_path, address)
        assert why.startswith(f"Ray at {address} asks for a token, and this daemon has ")
        assert "RAY_AUTH_TOKEN_PATH=FILE" in why
