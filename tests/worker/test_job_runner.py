"""Jobs in this very process, on slots of paper: what no real worker can be brought to on demand."""

from __future__ import annotations

import os
import random
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loaderd.config.stream import StreamConfig
from loaderd.core.interleaving import Interleaving
from loaderd.core.jobs import BadRow, Excluded, Job, JobKind, Stage
from loaderd.core.mixture import MixedOrder, MixedSource
from loaderd.core.order import Order
from loaderd.data.errors import SampleFault
from loaderd.engine.channel import Channel, pair
from loaderd.engine.messages import Fork, NotForked
from loaderd.worker.fork_server import ForkServerProcess
from loaderd.worker.generator_watch import GeneratorUse
from loaderd.worker.job_runner import JobResult, JobRunner, _with_chunk, collate, pack
from loaderd.worker.order_cache import OrderCache
from loaderd.worker.sample_runner import SampleRunner
from loaderd.worker.stage_timer import Stopwatch
from loaderd_wire.errors import BadSample

ORDER = Order(40, shuffle=1)


class Stamps:
    """A line of the scoreboard that remembers."""

    def __init__(self) -> None:
        self.said: list[tuple[int, Stage]] = []

    def stamp(self, job: int, row: int, stage: int, candidate: int = 0) -> None:
        self.said.append((row, Stage(stage)))

    def importing(self, on: bool) -> None: ...

    def name(self, row: int, key: str) -> None: ...

    def idle(self) -> None: ...


class Fragile:
    """Rows of a slot; whoever writes to them dies after `moves` of them."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows
        self.moves = 1000

    def __getitem__(self, row: int) -> Any:
        return self.rows[row]

    def __setitem__(self, row: int, value: Any) -> None:
        if not self.moves:
            raise KeyboardInterrupt
        self.moves -= 1
        self.rows[row] = value


def slot_of(indices: np.ndarray, *arrays: Fragile) -> SimpleNamespace:
    return SimpleNamespace(
        indices=lambda: indices, arrays=lambda: [(None, array) for array in arrays]
    )


@pytest.mark.parametrize("moves", range(10))
def test_gaps_are_closed_by_who_comes_after_a_death_in_the_middle(moves: int) -> None:
    original = ORDER.indices(7, 0, np.arange(8))
    first, second = Fragile(np.arange(8) * 10), Fragile(np.arange(8) * 100)
    indices = original.copy()
    stream = SimpleNamespace(spans=lambda *which: OrderCache(ORDER), changed=lambda: "")
    mapped: Any = SimpleNamespace(
        layout=SimpleNamespace(rows=8), slot=lambda slot: slot_of(indices, first, second)
    )
    open_streams: Any = SimpleNamespace(get=lambda name: stream)
    runner = JobRunner(open_streams, {1: mapped}, Stamps())
    job = Job(1, JobKind.COMPACT, "train", 1, 0, 7, 0, 0, 8, 0, 8, lost=(1, 4))
    first.moves, second.moves = (moves + 1) // 2, moves // 2
    with pytest.raises(KeyboardInterrupt):
        runner.run(job)
    first.moves = second.moves = 1000
    runner.run(job)
    kept = [0, 2, 3, 5, 6, 7]
    assert first.rows[:6].tolist() == [row * 10 for row in kept]
    assert second.rows[:6].tolist() == [row * 100 for row in kept]
    assert indices[:6].tolist() == original[kept].tolist()


def test_a_batch_with_one_sample_twice_is_compacted_again_without_a_change() -> None:
    # a source that is used up in the middle of a batch begins anew in the same batch
    order = MixedOrder([MixedSource(Order(4), 4)], Interleaving([Fraction(1)]), 8, endless=True)
    data = Fragile(np.arange(8) * 10)
    indices = order.indices(7, 0, np.arange(8))
    stream = SimpleNamespace(spans=lambda *which: OrderCache(order), changed=lambda: "")
    mapped: Any = SimpleNamespace(
        layout=SimpleNamespace(rows=8), slot=lambda slot: slot_of(indices, data)
    )
    open_streams: Any = SimpleNamespace(get=lambda name: stream)
    runner = JobRunner(open_streams, {1: mapped}, Stamps())
    job = Job(1, JobKind.COMPACT, "train", 1, 0, 7, 0, 0, 8, 0, 8, lost=(0, 1, 2, 3))
    for _ in range(2):  # its worker died before it had answered
        runner.run(job)
        assert data.rows[:4].tolist() == [40, 50, 60, 70]
        assert indices[:4].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("left", [-2, -1, 0, 7])
def test_what_an_earlier_batch_has_left_in_the_place_of_a_lost_row_says_nothing(left: int) -> None:
    original = ORDER.indices(7, 0, np.arange(8))
    data, indices = Fragile(np.arange(8) * 10), original.copy()
    indices[[1, 7]] = left  # lost: never written in this batch
    stream = SimpleNamespace(spans=lambda *which: OrderCache(ORDER), changed=lambda: "")
    mapped: Any = SimpleNamespace(
        layout=SimpleNamespace(rows=8), slot=lambda slot: slot_of(indices, data)
    )
    open_streams: Any = SimpleNamespace(get=lambda name: stream)
    runner = JobRunner(open_streams, {1: mapped}, Stamps())
    job = Job(1, JobKind.COMPACT, "train", 1, 0, 7, 0, 0, 8, 0, 8, lost=(1, 7))
    kept = [0, 2, 3, 4, 5, 6]
    for _ in range(2):  # its worker died before it had answered
        runner.run(job)
        assert data.rows[:6].tolist() == [row * 10 for row in kept]
        assert indices[:6].tolist() == original[kept].tolist()


def test_a_chunk_takes_no_byte_more_than_its_part_of_the_tail() -> None:
    parts = {"keys": ["a", "bc"]}
    size = len(pack(parts))
    job = Job(1, JobKind.FILL, "train", 1, 0, 7, 0, 0, 8, 2, 4)
    for room in range(size - 9, size + 2):
        written: list[bytes] = []
        slot: Any = SimpleNamespace(
            layout=SimpleNamespace(tail_of=lambda first, last, room=room: (64, room)),
            write=lambda at, data, to=written: to.append(data),
        )
        outcome = _with_chunk(JobResult(), parts, job, slot)
        if room < size:
            assert (outcome.needs_tail, written) == (-(-size // 2), [])
        else:
            assert (outcome.needs_tail, outcome.offset, outcome.size, written) == (
                0,
                64,
                size,
                [pack(parts)],
            )


def test_what_a_collate_draws_is_a_function_of_its_batch() -> None:
    def made(samples: list[Any], seed: int, epoch: int, position: int) -> dict[str, Any]:
        return {"drawn": random.random() + np.random.rand()}

    stream: Any = SimpleNamespace(
        sample_pipeline=SimpleNamespace(batcher=SimpleNamespace(make=made)), batch_specs=()
    )
    stages: list[Stage] = []
    places = [(7, 0, 0), (7, 0, 8), (7, 1, 0), (8, 0, 0)]
    drawn = [collate(stream, [], *place, stages.append)["drawn"] for place in (*places, *places)]
    assert drawn[:4] == drawn[4:]
    assert len(set(drawn)) == 4
    assert stages == [Stage.COLLATE] * 8


def rows_of(
    job: Job, stamps: Stamps, policy: str = "raise", *, pictures: bool = True
) -> SampleRunner:
    """Rows of a stream that is delivered as it is stored."""
    bulk = SimpleNamespace(write=lambda indices, arrays: True)
    stream: Any = SimpleNamespace(
        plan=StreamConfig("t", on_error=policy),
        sample_pipeline=SimpleNamespace(user_code=False, calls=False),
        source=SimpleNamespace(
            keys="index",
            key=str,
            label=str,
            part=lambda index: "",
            awaits=lambda epoch: False,
        ),
        spans=lambda *which: OrderCache(ORDER),
        use=GeneratorUse(),
        bulk=lambda: bulk,
        pictures=pictures,
    )
    return SampleRunner(stream, job, stamps, Stopwatch())


@pytest.mark.parametrize(
    ("first", "last", "more", "together"),
    [
        (3, 8, {}, True),
        (3, 5, {}, True),
        (3, 4, {}, False),  # its stamp must name it: so it is run when somebody has died over it
        (3, 8, {"excluded": (Excluded(3, 0),)}, False),
        (3, 8, {"lost": (3,)}, False),
    ],
)
def test_rows_are_copied_together_where_none_has_to_be_named(
    first: int, last: int, more: dict[str, Any], together: bool
) -> None:
    stamps = Stamps()
    rows = rows_of(Job(1, JobKind.FILL, "train", 1, 0, 7, 0, 0, 8, first, last, **more), stamps)
    assert rows.copied({"x": np.zeros((last - first, 4))}) is together
    assert stamps.said == ([(first, Stage.FETCH_MANY)] if together else [])


@pytest.mark.parametrize(
    ("first", "last", "more", "together"),
    [
        (3, 8, {}, True),
        (3, 5, {}, True),
        (3, 4, {}, False),
        (3, 8, {"excluded": (Excluded(3, 0),)}, False),
    ],
)
def test_rows_are_fetched_together_where_none_has_to_be_named(
    monkeypatch: pytest.MonkeyPatch, first: int, last: int, more: dict[str, Any], together: bool
) -> None:
    fetched: list[list[int]] = []
    monkeypatch.setattr(
        SampleRunner,
        "_make_many",
        lambda self, rows: fetched.append(rows) or dict.fromkeys(rows, "made"),
    )
    monkeypatch.setattr(SampleRunner, "make", lambda self, row, first=None: first)
    monkeypatch.setattr(SampleRunner, "_attempt", lambda self, row, index: None)
    rows = rows_of(Job(1, JobKind.FILL, "train", 1, 0, 7, 0, 0, 8, first, last, **more), Stamps())
    rows._stream.source.many = True
    assert [sample for _, sample in rows.each()] == ["made" if together else None] * (last - first)
    assert fetched == ([list(range(first, last))] if together else [])


def test_a_long_copy_shows_after_every_few_megabytes_that_it_goes_on() -> None:
    stamps = Stamps()
    rows = rows_of(Job(1, JobKind.FILL, "train", 1, 0, 7, 0, 0, 8, 0, 8), stamps)
    assert rows.copied({"x": np.zeros((8, 2 << 20), np.uint8)})
    assert stamps.said == [(row, Stage.FETCH_MANY) for row in (0, 2, 4, 6)]


def test_no_row_is_stamped_while_all_of_them_are_given_a_name() -> None:
    """Two rows of the same parity share the place of their names."""
    said: list[str] = []
    line: Any = SimpleNamespace(
        stamp=lambda *_: said.append("stamp"),
        name=lambda row, key: said.append("name"),
        idle=lambda: said.append("idle"),
    )
    rows_of(Job(1, JobKind.BATCH, "train", 1, 0, 7, 0, 0, 8, 0, 8), line).note_all(Stage.COLLATE)
    assert said == ["idle", "name", "stamp"]


FAULT = SampleFault("read", "E", "m" * 10_000, "t" * 20_000)


@pytest.mark.parametrize("policy", ["raise", "skip", "replace"])
def test_what_is_told_of_bad_rows_has_bounds(policy: str) -> None:
    rows = rows_of(Job(1, JobKind.FILL, "train", 1, 0, 7, 0, 0, 12, 0, 12), Stamps(), policy)
    assert not rows.given_up
    for row in range(12):
        rows.ledger(row, FAULT)
    assert rows.given_up is (policy == "raise")
    told = [bad.sample for bad in rows.bad]
    assert [sample.index for sample in told] == ORDER.indices(7, 0, np.arange(12)).tolist()
    assert [len(sample.message) for sample in told] == [500] * 12
    assert [len(sample.traceback) for sample in told] == [8000] * 8 + [0] * 4


def test_what_user_code_says_does_nothing_to_a_terminal() -> None:
    rows = rows_of(Job(1, JobKind.FILL, "train", 1, 0, 7, 0, 0, 12, 0, 12), Stamps(), "skip")
    rows.ledger(0, SampleFault("read", "E", "no\x1b[2J\rlines\nof ours", "trace\x07\n" * 2000))
    assert rows.bad[0].sample.message == r"no\x1b[2J\rlines" + "\nof ours"
    assert rows.bad[0].sample.traceback.endswith("trace\\x07\ntrace\\x07\n")
    assert len(rows.bad[0].sample.traceback) <= 8000


def test_only_the_first_bad_rows_of_a_job_bring_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loaderd.worker.sample_runner.stored_picture", lambda *_: b"picture")
    rows = rows_of(Job(1, JobKind.FILL, "train", 1, 0, 7, 0, 0, 12, 0, 12), Stamps(), "skip")
    for row in range(12):
        rows.ledger(row, FAULT)
    assert [bool(bad.picture) for bad in rows.bad] == [True] * 4 + [False] * 8


def test_where_nobody_can_look_at_pictures_none_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loaderd.worker.sample_runner.stored_picture", lambda *_: 1 // 0)
    job = Job(1, JobKind.FILL, "train", 1, 0, 7, 0, 0, 12, 0, 12)
    rows = rows_of(job, Stamps(), "skip", pictures=False)
    rows.ledger(0, FAULT)
    assert [bad.picture for bad in rows.bad] == [b""]


def test_nothing_of_a_job_is_delivered_whose_data_changed_meanwhile() -> None:
    sample = BadSample(0, "", 0, "read", "E", "", "")

    class Busy(JobRunner):
        def _do(self, job: Job, stream: Any, watch: Stopwatch) -> JobResult:
            done = JobResult()
            done.bad, done.offset, done.size = (BadRow(0, True, sample),), 64, 10
            return done

    looks = iter(["", "it is another file"])
    open_streams: Any = SimpleNamespace(
        get=lambda name: SimpleNamespace(changed=lambda: next(looks))
    )
    done = Busy(open_streams, {}, Stamps()).run(
        Job(1, JobKind.FILL, "train", 1, 0, 7, 0, 0, 8, 0, 8)
    )
    assert (done.changed, done.bad, done.size) == ("it is another file", (), 0)


def test_the_time_in_which_a_stream_is_opened_is_no_time_of_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(
        "loaderd.worker.stage_timer.time", SimpleNamespace(perf_counter=lambda: now_s[0])
    )

    class Busy(JobRunner):
        def _do(self, job: Job, stream: Any, watch: Stopwatch) -> JobResult:
            now_s[0] += 0.5
            return JobResult()

    def opened(name: str) -> Any:
        now_s[0] += 8.0
        return SimpleNamespace(changed=lambda: "")

    open_streams: Any = SimpleNamespace(get=opened)
    done = Busy(open_streams, {}, Stamps()).run(
        Job(1, JobKind.FILL, "train", 1, 0, 7, 0, 0, 8, 0, 8)
    )
    assert (done.read_s, done.seconds) == (0.5, 0.5)


def test_a_template_that_cannot_fork_says_so_and_keeps_no_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_fork() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    ours, its = pair()
    with Channel(ours, blocking=True).sock as sock, its:
        fds = [os.dup(sock.fileno()) for _ in range(4)]
        monkeypatch.setattr(os, "fork", no_fork)
        ForkServerProcess(Channel(its, blocking=True), lambda *_: 0)._fork(Fork(3, 0), fds)
        answer = Channel(sock, blocking=True).receive()
    assert answer is not None
    assert isinstance(answer[0], NotForked)
    assert answer[0].worker == 3
    assert "Resource temporarily unavailable" in answer[0].text
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
