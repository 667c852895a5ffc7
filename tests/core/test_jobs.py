"""The words of the status board, and the records that cross to a worker and back."""

from __future__ import annotations

import itertools
from dataclasses import FrozenInstanceError

import pytest

from loaderd.core.jobs import (
    IMPORTING,
    SINGLE,
    Excluded,
    Job,
    JobKind,
    Stage,
    candidate_of,
    importing,
    same,
    stamp,
    unstamp,
)
from loaderd_testing.scheduler_harness import done

JOB = Job(9, JobKind.FILL, "train", 1, 2, 7, 0, 64, 8, 4, 8, excluded=(Excluded(5, 0),))


@pytest.mark.parametrize(
    ("job", "row", "stage", "candidate", "word"),
    [
        (0, 0, Stage.IDLE, 0, 0),
        (1, 0, Stage.OPEN, 0, 0x4000_0001),
        (1, 7, Stage.READ, 0, 0x4000_0072),
        (3, 0xFFFFF, Stage.COMPACT, 16, 0xD0FF_FFF8),
        ((1 << 34) - 1, 5, Stage.DECODE, 1, 0xFFFF_FFFF_C100_0053),
    ],
)
def test_a_word_of_the_status_board_is_laid_out_as_ever(
    job: int, row: int, stage: Stage, candidate: int, word: int
) -> None:
    assert stamp(job, row, stage, candidate) == word
    assert unstamp(word) == (job, row, stage)
    assert candidate_of(word) == candidate


def test_the_largest_word_fits_64_bits() -> None:
    assert stamp((1 << 34) - 1, (1 << 20) - 1, 15, 31) | IMPORTING == (1 << 64) - 1


def test_a_word_with_a_stage_that_there_is_not_reads_as_idle() -> None:
    for stage in range(Stage.COMPACT + 1, 16):
        assert unstamp(stamp(5, 3, stage)) == (0, 0, Stage.IDLE)


def test_an_import_is_marked_beside_all_else_and_is_no_progress() -> None:
    word = stamp(5, 3, Stage.TRANSFORM, 2)
    assert importing(word | IMPORTING)
    assert not importing(word)
    assert unstamp(word | IMPORTING) == unstamp(word) == (5, 3, Stage.TRANSFORM)
    assert candidate_of(word | IMPORTING) == 2
    assert same(word, word | IMPORTING)


def test_another_job_row_stage_or_candidate_is_progress() -> None:
    words = [
        stamp(job, row, stage, n)
        for job, row, stage, n in itertools.product(
            (5, 6), (3, 4), (Stage.READ, Stage.DECODE), (0, 1)
        )
    ]
    assert [same(one, other) for one, other in itertools.combinations(words, 2)] == [False] * 120


def test_the_stages_of_one_row_are_those_in_which_its_sample_is_made() -> None:
    assert sorted(stage.name for stage in SINGLE) == ["DECODE", "READ", "TRANSFORM", "WRITE"]


def test_a_job_cannot_be_changed_on_its_way_to_a_worker() -> None:
    with pytest.raises(FrozenInstanceError):
        JOB.first = 0  # type: ignore[misc] - that is what is tried


def test_the_seconds_of_an_answer_are_those_of_its_stages() -> None:
    answer = type(done(JOB))(9, (), (), 0, 0, 1.0, 0.5, 0.25, 0.125)
    assert answer.seconds == 1.875
