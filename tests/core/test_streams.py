from __future__ import annotations

import itertools

import pytest

from loaderd.core.jobs import Done, Job, JobKind
from loaderd.core.streams import MOST_ANSWERS, StreamRules, StreamState


def stream(row_s: float | None, *, collated: bool = False) -> StreamState:
    made = StreamState(StreamRules("train", "raise", collated, 1000))
    made.row_s = row_s
    return made


@pytest.mark.parametrize(
    ("row_s", "urgent", "parts"),
    [
        (None, False, 4),  # nothing is known: the first batch is for everybody
        (None, True, 4),
        (10e-6, True, 1),  # 0.6 ms of work: a second worker would cost more than it spares
        (50e-6, True, 2),  # 3 ms, and a trainer that waits
        (50e-6, False, 1),
        (1e-3, False, 2),  # four batches in the making are eight pieces for four workers
        (1e-3, True, 4),
        (1.0, False, 4),  # 64 s of work: nobody shall wait for a whole one of them
    ],
)
def test_a_batch_is_cut_by_its_work_and_by_who_waits_for_it(
    row_s: float | None, urgent: bool, parts: int
) -> None:
    assert stream(row_s).parts(64, 4, 4, urgent) == parts


@pytest.mark.parametrize(("window", "parts"), [(1, 4), (2, 4), (3, 3), (4, 2), (8, 1)])
def test_the_more_batches_are_in_the_making_the_fewer_pieces_one_is_cut_into(
    window: int, parts: int
) -> None:
    assert stream(3e-3).parts(64, 4, window, False) == parts


@pytest.mark.parametrize("urgent", [False, True])
@pytest.mark.parametrize("workers", [300, 1_000, 3_000])
@pytest.mark.parametrize("row_s", [1.2e-3, 12e-3])
def test_all_workers_together_answer_no_more_often_than_the_daemon_can_hear(
    row_s: float, workers: int, urgent: bool
) -> None:
    made = stream(row_s)
    job_s = 256 * row_s / made.parts(256, workers, 8, urgent, busy=workers)
    assert workers / job_s <= MOST_ANSWERS or job_s == 256 * row_s
    assert made.parts(256, workers, 8, urgent, busy=2) >= 256 * row_s / job_s


def test_a_collated_batch_is_never_cut() -> None:
    assert stream(None, collated=True).parts(64, 4, 4, True) == 1


def test_the_seconds_of_a_job_are_counted_by_stage_and_set_the_pace() -> None:
    train = stream(None)
    job = Job(1, JobKind.FILL, "train", 1, 0, 0, 0, 0, 64, 0, 10)
    train.answered(job, Done(1, (), (), 0, 0, 1.0, 2.0, 3.0, 4.0))
    assert train.stage_s == [1.0, 2.0, 3.0, 4.0]
    assert train.row_s == pytest.approx(1.0)


def answer(made: StreamState, kind: JobKind) -> None:
    made.answered(
        Job(1, kind, "train", 1, 0, 0, 0, 0, 8, 0, 8), Done(1, (), (), 0, 0, 0.1, 0.1, 0.1, 0.1)
    )


def test_only_rows_that_are_made_anew_tell_of_the_pace() -> None:
    made = stream(None)
    for kind in (JobKind.COMPACT, JobKind.TRIAL, JobKind.BATCH):
        answer(made, kind)
        assert made.row_s is None
    answer(made, JobKind.FILL)
    assert made.row_s == pytest.approx(0.05)


def test_moving_rows_up_is_no_row_finished_between_two_deaths() -> None:
    made = stream(None)
    made.lost(True, "SIGSEGV", "")
    answer(made, JobKind.COMPACT)
    assert (made.deaths, made.died) == (1, 1)
    answer(made, JobKind.TRIAL)
    assert (made.deaths, made.died) == (0, 0)


def test_the_most_sessions_at_a_time_count_until_a_row_is_finished() -> None:
    made = stream(None)
    for session in (1, 2, 3):
        made.joined(session)
    made.sessions -= {1, 2}
    made.joined(4)
    assert made.most_sessions == 3
    answer(made, JobKind.COMPACT)
    assert made.most_sessions == 3
    answer(made, JobKind.FILL)
    assert made.most_sessions == 2


def test_the_pace_goes_from_the_old_one_towards_that_of_the_latest_rows() -> None:
    made = stream(0.2)
    paces = [0.2]
    for _ in range(100):
        answer(made, JobKind.FILL)  # 0.05 s a row
        assert made.row_s is not None
        paces.append(made.row_s)
    assert all(0.05 < later < earlier for earlier, later in itertools.pairwise(paces[:20]))
    assert paces[-1] == pytest.approx(0.05, rel=1e-3)
