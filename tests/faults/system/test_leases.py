"""Tensors from a real daemon: whoever still holds a view of a batch keeps it, and nobody else waits
for that.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from loaderd_testing.daemon_harness import Site, take
from loaderd_testing.holding import WAYS, content, cycle
from loaderd_testing.python_processes import TORCH, TRAINING, run_code

# 1 MB a batch: never copied
BIG = (
    "\ndef big(sample, rng):\n    return {'x': np.full((128, 1024), sample['y'], np.uint8), "
    "'y': sample['y']}\n"
)
PREFETCH = 3


def big(site: Site, n: int = 200) -> Site:
    site.write(n=n)
    module = site.folder / "mine.py"
    module.write_text(module.read_text() + BIG)
    site.config.write_text(site.config.read_text().replace("mine:augment", "mine:big"))
    return site.serve()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("leases"))
    big(made).settled()
    yield made
    made.close()


def right(x: Any, y: Any) -> bool:
    return bool((np.asarray(x)[:, 0, 0] == np.asarray(y) % 256).all()) and bool(
        (np.asarray(x) == np.asarray(x)[:, :1, :1]).all()
    )


@pytest.mark.parametrize("way", WAYS)
def test_what_is_kept_stays_what_it_was(daemon: Site, way: str) -> None:
    loader = daemon.loader(output="torch", prefetch=PREFETCH)
    kept = []
    for step, batch in enumerate(loader):
        assert right(batch["x"], batch["y"])
        if step in (0, 7):
            kept.append((WAYS[way](batch["x"]), content(WAYS[way](batch["x"]))))
    for value, before in kept:
        assert content(value) == before


def test_an_autograd_graph_keeps_its_batch(daemon: Site) -> None:
    loader = daemon.loader(output="torch", prefetch=PREFETCH)
    weight = torch.ones((), requires_grad=True)
    reconnects, expected = [], []
    for step, batch in enumerate(loader):
        if step < 2:
            x = batch["x"].view(torch.uint8)
            reconnects.append((x.to(torch.float32) * weight).sum())
            expected.append(float(batch["x"].to(torch.float64).sum()))
    torch.stack(reconnects).sum().backward()
    assert weight.grad is not None
    assert float(weight.grad) == pytest.approx(sum(expected), rel=1e-3)


def test_slots_come_back_when_views_go(daemon: Site, caplog: pytest.LogCaptureFixture) -> None:
    loader = daemon.loader(output="torch", prefetch=PREFETCH)
    pointers = set()
    with caplog.at_level(logging.WARNING):
        for batch in loader:
            pointers.add(batch["x"].data_ptr())
    assert len(pointers) <= PREFETCH + 2
    assert caplog.text == ""


def test_a_whole_epoch_kept_is_right_and_warned_of_once(
    daemon: Site, caplog: pytest.LogCaptureFixture
) -> None:
    loader = daemon.loader(output="torch", prefetch=PREFETCH)
    with caplog.at_level(logging.WARNING):
        kept = list(loader)
    assert len(kept) == 25
    assert all(right(b["x"], b["y"]) for b in kept)
    assert len(caplog.records) == 1
    assert str(PREFETCH + 1) in caplog.text
    del kept
    gc.collect()
    assert all(right(b["x"], b["y"]) for b in loader)


def test_all_labels_of_an_epoch_pin_nothing(daemon: Site, caplog: pytest.LogCaptureFixture) -> None:
    loader = daemon.loader(output="torch", prefetch=PREFETCH)
    pointers = set()
    labels = []
    with caplog.at_level(logging.WARNING):
        for batch in loader:
            labels.append(batch["y"])
            pointers.add(batch["x"].data_ptr())
    assert sorted(torch.cat(labels).tolist()) == list(range(200))
    assert len(pointers) <= PREFETCH + 2
    assert caplog.text == ""


def test_views_dropped_in_another_thread_come_back(daemon: Site) -> None:
    loader = daemon.loader(output="torch", prefetch=PREFETCH)
    pointers = set()
    for batch in loader:
        box = [batch["x"]]
        pointers.add(batch["x"].data_ptr())
        del batch
        thread = threading.Thread(target=box.clear)
        thread.start()
        thread.join()
    assert len(pointers) <= PREFETCH + 2


def test_writing_into_a_batch_changes_no_other(daemon: Site) -> None:
    loader = daemon.loader(output="torch", prefetch=PREFETCH)
    for _ in range(2):
        for batch in loader:
            assert right(batch["x"], batch["y"])
            batch["x"].zero_()
            batch["y"].fill_(-1)


def test_collection_in_the_middle_of_a_call_is_harmless(daemon: Site) -> None:
    loader = daemon.loader(output="torch", prefetch=PREFETCH)
    old = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for batch in loader:
            assert right(batch["x"], batch["y"])
            cycle(batch["x"])
    finally:
        gc.set_threshold(*old)


@pytest.mark.parametrize("output", ["numpy", "torch"])
@pytest.mark.parametrize("end", ["", "sys.exit(0)", "raise RuntimeError('user')", "os._exit(0)"])
def test_an_interpreter_that_exits_with_leases_does_so_quietly(
    daemon: Site, end: str, output: str
) -> None:
    code = (
        "import os, sys\nfrom loaderd_client import Loader\n"
        f"loader = Loader({str(daemon.socket)!r}, stream='train', output={output!r}, "
        f"prefetch={PREFETCH})\n"
        f"kept = [b for b, _ in zip(loader, range(3))]\n{end}\n"
    )
    done = run_code(code, TORCH if output == "torch" else TRAINING)
    assert done.returncode == (1 if "raise" in end else 0)
    assert ("RuntimeError: user" in done.stderr) == ("raise" in end)
    assert "Exception ignored" not in done.stderr


def test_a_forked_child_changes_nothing_for_its_parent(daemon: Site) -> None:
    loader = daemon.loader(output="torch", prefetch=PREFETCH)
    batches = iter(loader)
    first = next(batches)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            del first
            gc.collect()
            next(batches)
        except RuntimeError as error:
            code = 0 if "process" in str(error) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert right(first["x"], first["y"])
    rest = take(batches)
    assert len(rest) == 24


@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_a_batch_that_a_forked_child_inherits_is_a_copy_of_its_own(
    daemon: Site, output: str
) -> None:
    loader = daemon.loader(output=output, prefetch=PREFETCH)
    batches = iter(loader)
    first = next(batches)
    go, written = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.read(go[0], 1)  # the parent has gone on by many batches, in this one's slot as well
            code = 0 if right(first["x"], first["y"]) else 2
            # whatever the child writes is nobody else's; torch would wait for threads that a fork
            # lacks
            np.asarray(first["x"])[:] = 77
            os.write(written[1], b"x")
            os.read(go[0], 1)
        finally:
            os._exit(code)
    assert right(first["x"], first["y"])
    del first
    some = [right(batch["x"], batch["y"]) for _, batch in zip(range(12), batches, strict=False)]
    os.write(go[1], b"x")
    os.read(written[0], 1)
    some += [right(batch["x"], batch["y"]) for batch in batches]
    os.write(go[1], b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert some == [True] * 24
    for fd in (*go, *written):
        os.close(fd)


def test_a_dead_daemons_tensors_stay(site: Site) -> None:
    loader = big(site).loader(output="torch", prefetch=PREFETCH)
    batches = iter(loader)
    held = [next(batches), next(batches)]
    site.kill()
    assert all(right(b["x"], b["y"]) for b in held)
    site.serve()
    assert all(right(b["x"], b["y"]) for b in batches)
    assert all(right(b["x"], b["y"]) for b in held)


def test_old_memory_is_counted_and_given_back(site: Site) -> None:
    loader = big(site).loader(output="torch", prefetch=PREFETCH)

    def mapped() -> int:
        with open("/proc/self/maps") as maps:
            return sum("memfd:" in line for line in maps)

    for _ in range(3):
        batches = iter(loader)
        held = next(batches)
        site.kill()
        site.serve()
        # those of the dead daemon that had arrived, and one of its successor
        for _ in range(PREFETCH + 1):
            next(batches)
        assert mapped() == 2
        del held, batches
        loader.set_epoch(0)
        next(iter(loader))
        gc.collect()
    next(iter(loader))
    assert mapped() == 1
