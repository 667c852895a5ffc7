"""Trainers that share their batches, for real: whatever one of them does, each sees the stream of
one that is alone.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest

from loaderd_client import Loader, LoaderdError, SampleError
from loaderd_testing.daemon_harness import Site, digest, plain, pulls, until
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_testing.pipes import line_of
from loaderd_testing.python_processes import TRAINING, python

BATCHES = 26  # of two epochs
CLASSES = """
class Bad(Numbers):
    def __getitem__(self, index):
        if index in (20, 61):
            raise ValueError("damaged")
        return super().__getitem__(index)

class Long(Numbers):
    def __getitem__(self, index):
        return super().__getitem__(index) | {"t": "s" * (5000 if index == 60 else 1)}
"""
MORE = """
[streams.bad]
dataset = "mine:Bad"
batch_size = 8
shuffle = true
max_errors = 3
[streams.long]
dataset = "mine:Long"
batch_size = 8
shuffle = true
"""
# takes two epochs, and reads a line before each batch but the first two
TRAINER = """
import sys
from loaderd_client import Loader, LoaderdError, SampleError
from loaderd_testing.daemon_harness import digest, plain, pulls
with Loader({socket!r}, stream="train", output="numpy", shared=True) as loader:
    got = []
    for batch in pulls(loader):
        got.append(plain(batch))
        print(len(got), flush=True)
        if len(got) == {batches}:
            break
        if len(got) >= 2 and not sys.stdin.readline():
            sys.exit("nobody waits for this")
    print(digest(got), flush=True)
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("sharing"))
    made.write(stream="share = true", more=MORE)
    module = made.folder / "mine.py"
    module.write_text(module.read_text() + CLASSES)
    made.serve().settled()
    yield made
    made.close()


def taken(loader: Loader[Any], n: int = BATCHES) -> Iterator[dict[str, Any]]:
    for _, batch in zip(range(n), pulls(loader), strict=False):
        yield plain(batch)


def only_group(site: Site) -> dict[str, Any]:
    (group,) = site.status()["groups"]
    return group


def trainer(site: Site) -> subprocess.Popen[str]:
    code = TRAINER.format(socket=str(site.socket), batches=BATCHES)
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return python("-c", code, imports=TRAINING, **pipes)


def test_two_of_different_speed_see_what_one_alone_sees_and_share_it(
    daemon: Site, undisturbed: str
) -> None:
    one, two = daemon.loader(), daemon.loader()
    quick, slow = taken(one), taken(two)
    got: tuple[list[Any], list[Any]] = ([], [])
    while len(got[1]) < BATCHES:
        got[0].extend(batch for _, batch in zip(range(3), quick, strict=False))
        got[1].extend(batch for _, batch in zip(range(2), slow, strict=False))
    assert [digest(each) for each in got] == [undisturbed] * 2
    group = only_group(daemon)
    assert len(group["sessions"]) == 2
    assert group["hits"] > BATCHES // 2
    assert {session["bytes"] for session in daemon.status()["sessions"]} == {
        daemon.status()["memory"]["segments"]
    }


def test_what_one_writes_into_its_batches_the_others_do_not_see(
    daemon: Site, undisturbed: str
) -> None:
    got: list[list[Any]] = [[], []]
    for batches in zip(*(pulls(daemon.loader()) for _ in range(2)), strict=False):
        for batch, mine in zip(batches, got, strict=True):
            mine.append(plain(batch))
            batch["x"][:] = 0
            batch["noise"].fill(7)
        if len(got[0]) == BATCHES:
            break
    assert [digest(each) for each in got] == [undisturbed] * 2


def test_one_that_comes_late_has_its_batches_made_for_it_alone(
    daemon: Site, undisturbed: str
) -> None:
    early = list(taken(daemon.loader()))
    made = only_group(daemon)["made"]
    late = list(taken(daemon.loader()))
    assert [digest(each) for each in (early, late)] == [undisturbed] * 2
    assert only_group(daemon)["made"] > made


def test_a_batch_that_outgrows_its_slot_moves_all_to_a_larger_segment(daemon: Site) -> None:
    alone = list(taken(daemon.loader(stream="long", shared=False)))
    one, two = (daemon.loader(stream="long", shared=True) for _ in range(2))
    first, second = taken(one), taken(two)
    got: list[list[Any]] = [[next(first)], [next(second)]]
    segments = only_group(daemon)["segments"]
    got[0] += first
    got[1] += second
    assert [digest(each) for each in got] == [digest(alone)] * 2
    late = list(taken(daemon.loader(stream="long", shared=True)))
    assert digest(late) == digest(alone)
    assert only_group(daemon)["segments"] > segments


def test_each_has_the_errors_of_bad_samples_and_counts_them_as_if_alone(daemon: Site) -> None:
    def all_of(loader: Loader[Any]) -> Iterator[object]:
        """Batches, and what is raised instead, until the loader has had too many errors."""
        batches = iter(loader)
        while True:
            try:
                yield plain(next(batches))
            except StopIteration:
                batches = iter(loader)
            except LoaderdError as error:
                yield f"{type(error).__name__}: {error}"
                if not isinstance(error, SampleError):
                    return

    loaders = [daemon.loader(stream="bad", shared=shared) for shared in (True, True, False)]
    seen = [all_of(loader) for loader in loaders]
    got = [list(each) for each in zip(*zip_longest(*seen), strict=True)]
    assert repr(got[0]) == repr(got[1]) == repr(got[2])
    errors = [each for each in got[0] if isinstance(each, str)]
    assert len(errors) == 4
    assert "4 bad samples in 180 rows, over max_errors = 3" in errors[-1]


def test_who_does_not_want_to_share_has_a_session_of_its_own(
    daemon: Site, undisturbed: str
) -> None:
    shares, alone = daemon.loader(), daemon.loader(shared=False)
    pairs = list(zip(taken(shares), taken(alone), strict=True))
    assert [digest(each) for each in zip(*pairs, strict=True)] == [undisturbed] * 2
    assert len(only_group(daemon)["sessions"]) == 1


def test_one_that_is_stopped_and_one_that_is_killed_hold_up_nobody(
    daemon: Site, undisturbed: str
) -> None:
    with trainer(daemon) as stopped, trainer(daemon) as killed:
        for each in (stopped, killed):
            while line_of(each) != "2\n":
                pass
        stopped.send_signal(signal.SIGSTOP)
        loader = daemon.loader()
        batches = taken(loader)
        got = [next(batches)]
        killed.kill()
        got += batches
        assert digest(got) == undisturbed
        until("the end of the killed one", lambda: len(only_group(daemon)["sessions"]) == 2)
        loader.set_epoch(0)
        stopped.send_signal(signal.SIGCONT)
        out, _ = stopped.communicate("\n" * BATCHES, timeout=DEADLINE_S)
        assert out.splitlines()[-1] == undisturbed
        assert digest(taken(loader)) == undisturbed
        killed.wait(DEADLINE_S)


def test_after_a_daemon_was_killed_and_after_an_upgrade_they_are_one_group_again(
    site: Site, undisturbed: str
) -> None:
    site.write(stream="share = true").serve()
    loaders = [site.loader() for _ in range(3)]
    streams = [taken(loader) for loader in loaders]
    got: list[list[Any]] = [[], [], []]
    for successor in (("--takeover",), ()):
        for mine, stream in zip(got, streams, strict=True):
            mine += [next(stream) for _ in range(4)]
        site.kill(site.workers()[0])
        before = site.process
        if not successor:
            site.kill()
        site.serve(*successor)
        assert before.wait(DEADLINE_S) == (0 if successor else -signal.SIGKILL)
        for mine, stream in zip(got, streams, strict=True):
            mine += [next(stream) for _ in range(4)]
        group = only_group(site)
        assert len(group["sessions"]) == 3
        assert len(group["segments"]) == 1
    for mine, stream in zip(got, streams, strict=True):
        mine += stream
    assert [digest(each) for each in got] == [undisturbed] * 3


def test_who_shares_with_nobody_is_told_what_differs(
    daemon: Site, caplog: pytest.LogCaptureFixture
) -> None:
    one = daemon.loader()
    next(iter(one))
    other = daemon.loader(seed=8)
    batch = next(iter(other))
    assert isinstance(batch["x"], np.ndarray)
    assert "this trainer has seed = 8, another one has seed = 7" in caplog.text
    assert len(daemon.status()["groups"]) == 2
