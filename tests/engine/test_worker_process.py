"""Start-up: streams that can and cannot be opened, user code that cannot boot, init, environment,
spawn.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from loaderd.config.stream import StreamConfig, TransformConfig
from loaderd.core.events import StackDumped, WorkerBooting
from loaderd.data.jpeg import fused_decode
from loaderd.engine.channel import Channel, pair
from loaderd.engine.messages import OpenError, WorkerFault
from loaderd.server.admission import OpenedStream, content_facts
from loaderd.worker.main import _confess
from loaderd_testing.engine_harness import Workshop, numbers
from loaderd_testing.sample_builders import image_samples, write_own

Build = Callable[..., Workshop]


def fault(shop: Workshop, stream: str = "train") -> OpenError:
    found = shop.open(stream)
    assert isinstance(found, OpenError), found
    return found


def test_a_missing_database_is_a_fault_of_the_data_that_names_its_path(
    build: Build, tmp_path: Path
) -> None:
    found = fault(build(StreamConfig("train", lmdb=str(tmp_path / "none.lmdb"))))
    assert found.kind == "data"
    assert str(tmp_path / "none.lmdb") in found.text


def test_streams_are_opened_side_by_side(build: Build, tmp_path: Path) -> None:
    shop = build(
        numbers("one", count=7),
        StreamConfig("two", lmdb=str(tmp_path / "none.lmdb")),
        numbers("three", count=9),
    )
    found = []
    for stream in ("one", "two", "three"):
        shop.pool.open(stream, found.append)
    shop.until(lambda: len(found) == 3)
    by_name = {each.stream: each for each in found}
    assert (by_name["one"].total, by_name["three"].total) == (7, 9)
    assert isinstance(by_name["two"], OpenError)


def test_a_stream_says_which_decoder_its_resized_pictures_are_of(
    build: Build, tmp_path: Path
) -> None:
    db = write_own(tmp_path / "images", image_samples(kind="JPEG"))
    resize = (TransformConfig("resize", None, {"size": [20, 20]}),)
    plans = StreamConfig("resized", lmdb=db, transforms=resize), StreamConfig("as it is", lmdb=db)
    shop = build(*plans)
    found = [
        content_facts(OpenedStream(plan, shop.facts(plan.name)), None)["jpeg_extension"]
        for plan in plans
    ]
    assert found == [fused_decode.version(), "not used"]


def test_an_empty_split_is_told_with_its_numbers(build: Build) -> None:
    found = fault(build(numbers(count=3, split="0%:1%")))
    assert "0%:1%" in found.text
    assert "3 samples" in found.text


def test_a_dataset_that_raises_is_a_fault_of_user_code_with_its_traceback(build: Build) -> None:
    found = fault(
        build(StreamConfig("train", dataset="wares:Crashing", dataset_args={"how": "raises"}))
    )
    assert found.kind == "user code"
    assert "this one is bad" in found.text
    assert "in raises" in found.traceback


@pytest.mark.parametrize(("how", "cause"), [("segfaults", "SIGSEGV"), ("leaves", "exit code 3")])
def test_a_dataset_that_kills_its_worker_is_told_as_such(
    build: Build, how: str, cause: str
) -> None:
    found = fault(build(StreamConfig("train", dataset="wares:Crashing", dataset_args={"how": how})))
    assert cause in found.text


def test_a_dataset_that_hangs_while_it_is_built_is_given_up(build: Build) -> None:
    shop = build(
        StreamConfig("train", dataset="wares:Crashing", dataset_args={"how": "sleeps"}),
        sample_timeout_s=0.05,
    )
    found = fault(shop)
    assert "hangs in stage open" in found.text
    assert "sleeps" in found.traceback


def test_a_first_sample_that_hangs_is_named(build: Build) -> None:
    found = fault(build(numbers(bad={"0": "sleeps"}), sample_timeout_s=0.5))
    assert "sample '0' hangs in stage read" in found.text


def test_a_stream_without_a_good_first_sample_says_why(build: Build) -> None:
    found = fault(build(numbers(count=5, bad={str(i): "raises" for i in range(5)})))
    assert "first 5 samples" in found.text
    assert "this one is bad" in found.text


def test_bad_first_samples_do_not_matter_while_one_is_good(build: Build) -> None:
    facts = build(numbers(count=5, bad={str(i): "raises" for i in range(4)})).facts("train")
    assert [spec.name for spec in facts.specs] == ["x", "y"]


def test_a_worker_that_ends_while_it_imports_user_code_is_told_with_what_it_printed(
    build: Build, tmp_path: Path
) -> None:
    (tmp_path / "leaves.py").write_text("import os\nprint('no licence', flush=True)\nos._exit(3)\n")
    shop = build(numbers(transforms=(TransformConfig(None, "leaves:transform", {}),)))
    assert "the worker could not start: exit code 3; it printed: no licence" in fault(shop).text


def test_user_code_that_cannot_be_imported_is_told_with_its_traceback(
    build: Build, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text(
        "def transform(sample, rng): return sample\nimport does_not_exist_anywhere\n"
    )
    plan = numbers(transforms=(TransformConfig(None, "broken:transform", {}),))
    shop = build(plan)
    found = fault(shop)
    assert found.kind == "user code"
    assert "does_not_exist_anywhere" in found.text
    shop.pool.start(1, 0.0)
    death = shop.death(1)
    assert death.own
    assert "does_not_exist_anywhere" in death.boot
    assert "broken.py" in death.boot
    # Once is enough: nothing is started again behind the scheduler's back.
    assert shop.pool.status().workers == {}


def test_a_module_that_crashes_where_it_is_imported_is_told_too(
    build: Build, tmp_path: Path
) -> None:
    (tmp_path / "crashing.py").write_text(
        "import ctypes\ndef transform(sample, rng): return sample\nctypes.string_at(0)\n"
    )
    shop = build(numbers(transforms=(TransformConfig(None, "crashing:transform", {}),)))
    shop.pool.start(1, 0.0)
    death = shop.death(1)
    assert death.own
    assert "SIGSEGV" in death.boot
    assert "crashing.py" in death.boot


def test_a_module_that_hangs_where_it_is_imported_is_given_up(build: Build, tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(
        "import time\ndef transform(sample, rng): return sample\nwhile True: time.sleep(100)\n"
    )
    shop = build(numbers(transforms=(TransformConfig(None, "hanging:transform", {}),)), boot_s=6.0)
    shop.pool.start(1, 0.0)
    death = shop.death(1)
    assert "not ready after 6 s" in death.boot
    assert "hanging.py" in death.boot


def test_a_module_that_starts_threads_is_left_to_the_workers(build: Build, tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), "
        "daemon=True).start()\n"
        "def transform(sample, rng): return {**sample, 'threads': threading.active_count()}\n"
    )
    shop = build(numbers(transforms=(TransformConfig(None, "threaded:transform", {}),)))
    facts = shop.facts("train")
    shop.start(1)
    assert shop.threads_of_template() == 1
    pond = shop.pond(facts, 2)
    shop.run(1, shop.job("train", 2))
    assert pond.field(0, "threads", 2).tolist() == [2, 2]


def test_init_is_told_the_place_of_its_worker_from_zero(build: Build) -> None:
    shop = build(numbers(), init="wares:setup")
    shop.start(11, 12)
    assert sorted(line for line in shop.lines if "set up" in line) == [
        "worker 11: set up 0",
        "worker 12: set up 1",
    ]
    os.kill(shop.pid(11), signal.SIGKILL)
    shop.death(11)
    shop.start(13)
    shop.until(lambda: "worker 13: set up 0" in shop.lines)


def test_an_init_that_raises_is_told_with_its_traceback(build: Build) -> None:
    shop = build(numbers(), init="wares:bad_setup")
    shop.pool.start(1, 0.0)
    death = shop.death(1)
    assert "RuntimeError: no such worker here" in death.boot
    assert "in bad_setup" in death.boot


def test_a_fault_of_a_million_characters_is_told_by_its_beginning() -> None:
    ours, its = (Channel(end, blocking=False) for end in pair())
    _confess(its, RuntimeError("it goes on" + " and on" * 1_000_000))
    its.close()
    received = ours.receive()
    assert received is not None
    assert isinstance(received[0], WorkerFault)
    assert received[0].text.startswith("RuntimeError: it goes on and on")
    ours.close()


def test_workers_run_one_native_thread_and_one_hash_seed(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTHONHASHSEED", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "3")  # the user's own word counts
    shop = build(StreamConfig("train", dataset="wares:Environment"))
    facts = shop.facts("train")
    shop.start(1)
    pond = shop.pond(facts, 1)
    done = shop.run(1, shop.job("train", 1))
    assert pond.chunk(0, done)["text"]["text"] == [
        "PYTHONHASHSEED=0 OMP_NUM_THREADS=1 MKL_NUM_THREADS=3"
    ]


def test_spawned_workers_do_the_same(build: Build) -> None:
    shop = build(numbers(bad={"20": "sleeps"}), start_method="spawn", num_workers=1)
    facts = shop.facts("train")
    shop.start(1)
    pond = shop.pond(facts, 4)
    assert shop.run(1, shop.job("train", 4)).bad == ()
    assert pond.field(0, "y", 4).tolist() == [0, 1, 2, 3]
    job = shop.job("train", 4, start=20)
    shop.pool.send(1, job)
    shop.until(lambda: [seen.key for seen in shop.look().seen] == ["20"], "the hanging row")
    shop.pool.dump(1)
    shop.pool.kill(1, "it hangs")
    assert "in sleeps" in shop.death(1).stack


def test_a_database_that_is_written_to_ends_its_jobs(build: Build, tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text(
        "import numpy as np\n"
        "class Bare:\n"
        "    def __init__(self, get): self.get = get\n"
        "    def __len__(self): return 10\n"
        "    def keys(self, index): return [b'%d' % index]\n"
        "    def parse(self, index, values): return {'x': np.frombuffer(bytes(values[0]), "
        "np.uint8)}\n"
    )
    path = str(tmp_path / "data.lmdb")
    with lmdb.open(path, map_size=1 << 20) as env, env.begin(write=True) as txn:
        for i in range(10):
            txn.put(b"%d" % i, bytes([i] * 5))
    shop = build(StreamConfig("train", lmdb=path, layout="bare:Bare"))
    facts = shop.facts("train")
    shop.start(1)
    pond = shop.pond(facts, 4)
    assert shop.run(1, shop.job("train", 4)).changed == ""
    assert pond.field(0, "x", 4)[:, 0].tolist() == [0, 1, 2, 3]
    with lmdb.open(path, map_size=1 << 20) as env, env.begin(write=True) as txn:
        txn.put(b"3", bytes([99] * 5))
    done = shop.run(1, shop.job("train", 4))
    assert path in done.changed
    assert done.bad == ()
    # A worker that opens it only now must not take it for what it was either.
    shop.start(2)
    assert path in shop.run(2, shop.job("train", 4)).changed


def test_native_threads_that_the_user_asks_for_are_in_the_workers_and_not_in_the_template(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    shop = build(numbers())
    facts = shop.facts("train")
    shop.start(1)
    assert shop.threads_of_template() == 1
    shop.pond(facts, 4)
    assert shop.run(1, shop.job("train", 4)).bad == ()


def test_a_dataset_that_takes_long_to_build_is_said_to(build: Build) -> None:
    shop = build(StreamConfig("train", dataset="wares:Crashing", dataset_args={"how": "sleeps"}))
    shop.pool.open("train", lambda found: None)
    shop.until(
        lambda: any(
            re.fullmatch(r"the worker that opens stream 'train' has been opening it for \d+ s", w)
            for w in shop.pool.doing()
        )
    )


def test_first_samples_that_take_long_are_said_to(build: Build) -> None:
    shop = build(numbers(bad={"0": "sleeps"}), sample_timeout_s=4.0)
    found: list[object] = []
    shop.pool.open("train", found.append)
    said = (
        r"the worker that opens stream 'train' has been making its first samples \(read of "
        r"'0'\) for \d+ s"
    )
    shop.until(lambda: any(re.fullmatch(said, line) for line in shop.pool.doing()))
    shop.until(lambda: found)
    assert shop.pool.doing() == []


def test_an_init_that_takes_long_is_said_to_and_its_stack_can_be_had(
    build: Build, tmp_path: Path
) -> None:
    shop = build(numbers(), init="wares:slow_setup")
    shop.pool.start(1, 0.0)
    doing = shop.until(
        lambda: next(
            (e for e in shop.events if isinstance(e, WorkerBooting) and "init" in e.doing), None
        )
    )
    assert doing == WorkerBooting(1, "calling init, wares:slow_setup")
    assert any(
        re.fullmatch(r"worker 1 has been calling init, wares:slow_setup for \d+ s", line)
        for line in shop.pool.doing()
    )

    def dumped() -> str:
        shop.pool.dump(1)
        count = len([e for e in shop.events if isinstance(e, StackDumped)])
        shop.until(
            lambda: (
                len(stacks := [e.stack for e in shop.events if isinstance(e, StackDumped)]) > count
                and stacks
            )
        )
        return [e.stack for e in shop.events if isinstance(e, StackDumped)][-1]

    shop.until(lambda: "in slow_setup" in dumped(), "its stack")
    (tmp_path / "go").touch()
    shop.until(lambda: shop.ready(1))
    assert shop.pool.doing() == []


def late(name: str = "late", **args: object) -> StreamConfig:
    return StreamConfig(name, dataset="wares:Words", dataset_args=dict(args))


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_workers_that_are_there_and_those_that_come_serve_a_stream_opened_late(
    build: Build, start_method: str
) -> None:
    shop = build(numbers(), late=[late()], start_method=start_method)
    shop.facts("train")
    shop.start(1)
    facts = shop.facts("late")
    shop.pond(facts, 2)
    shop.run(1, shop.job("late", 2))
    shop.start(2)
    shop.run(2, shop.job("late", 2))
    os.kill(shop.pool.status().fork_server.pid, signal.SIGKILL)
    shop.death(2)
    shop.start(3)
    shop.run(3, shop.job("late", 2))


def test_code_of_a_stream_that_nobody_asked_for_is_not_imported(
    build: Build, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text(
        "open(__file__ + '.imported', 'w').close()\nimport does_not_exist_anywhere\n"
    )
    shop = build(
        numbers(),
        late=[numbers(name="bad", transforms=(TransformConfig(None, "broken:transform", {}),))],
    )
    facts = shop.facts("train")
    shop.start(1)
    shop.pond(facts, 2)
    shop.run(1, shop.job("train", 2))
    assert not (tmp_path / "broken.py.imported").exists()
    found = shop.open("bad")
    assert isinstance(found, OpenError)
    assert "does_not_exist_anywhere" in found.text
    os.kill(shop.pool.status().fork_server.pid, signal.SIGKILL)
    shop.death(1)
    shop.start(2)
    shop.run(2, shop.job("train", 2))


def test_code_that_has_broken_since_its_stream_was_opened_ends_no_worker_before_its_own_job(
    build: Build, tmp_path: Path
) -> None:
    (tmp_path / "breaks.py").write_text("def transform(sample, rng): return sample\n")
    shop = build(
        numbers(),
        numbers(name="other", transforms=(TransformConfig(None, "breaks:transform", {}),)),
    )
    facts, _ = shop.facts("train"), shop.facts("other")
    shop.start(1)
    (tmp_path / "breaks.py").write_text("this is no Python at all\n")
    os.kill(shop.pool.status().fork_server.pid, signal.SIGKILL)
    shop.death(1)
    shop.start(2)
    shop.pond(facts, 2)
    shop.run(2, shop.job("train", 2))
    shop.pool.send(2, shop.job("other", 2))
    death = shop.death(2)
    assert (death.own, death.boot) == (True, "")
    assert "breaks.py" in death.stack
