"""Who is guilty of a death: counts by batch, row and sample, without a scheduler."""

from __future__ import annotations

from loaderd.core.fault_ledger import BATCH_DEATHS, Blame, Death, Verdict
from loaderd.core.jobs import MAX_SUBSTITUTES, Kind, Stage
from loaderd_wire.errors import BadSample

SAMPLE = BadSample(7, "seven", 7, "read", "WorkerDied", "", "")
HUNG = Death(0, Stage.FETCH_MANY, own=False, hung=True, cause="")


def death(row: int, stage: Stage = Stage.READ, *, own: bool = True, candidate: int = 0) -> Death:
    return Death(row, stage, own, False, "SIGSEGV", candidate)


def test_two_hangs_of_a_collated_batch_that_name_no_row_are_the_batchs_own() -> None:
    blame = Blame("skip")
    assert blame.judge(Kind.BATCH, 0, 8, HUNG) == Verdict()
    assert blame.judge(Kind.BATCH, 0, 8, HUNG) == Verdict(collate=True)


def test_kills_from_outside_never_count_against_a_collated_batch() -> None:
    blame = Blame("skip")
    for stage in (Stage.READ, Stage.COLLATE) * 20:
        assert blame.judge(Kind.BATCH, 0, 8, death(3, stage, own=False)) == Verdict()


def test_a_conviction_makes_the_deaths_of_its_batch_forgotten() -> None:
    blame = Blame("skip")
    for _ in range(BATCH_DEATHS - 1):
        assert blame.judge(Kind.BATCH, 0, 8, death(3)) == Verdict()
    blame.convict(3, 0, SAMPLE)
    assert blame.judge(Kind.BATCH, 0, 8, death(4)) == Verdict()


def test_a_stamp_that_names_no_candidate_that_is_left_is_held_against_the_next_one() -> None:
    blame = Blame("replace")
    blame.convict(5, 0, SAMPLE)
    verdict = [blame.judge(Kind.FILL, 5, 6, death(5, candidate=0)) for _ in range(2)][-1]
    assert verdict == Verdict(5, 1)


def test_a_row_is_lost_with_its_last_candidate_and_not_before() -> None:
    blame = Blame("replace")
    for candidate in range(MAX_SUBSTITUTES):
        blame.convict(5, candidate, SAMPLE)
    assert blame.lost == set()
    blame.convict(5, MAX_SUBSTITUTES, SAMPLE)
    assert blame.lost == {5}
    skipped = Blame("skip")
    skipped.convict(5, 0, SAMPLE)
    assert skipped.lost == {5}


def test_what_is_said_of_a_row_is_said_of_its_own_sample_alone() -> None:
    blame = Blame("replace")
    blame.convict(5, 2, SAMPLE)
    assert (blame.convicted, blame.guilty) == ({}, True)
