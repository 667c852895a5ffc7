"""Who is guilty of a death: counts by batch, row and sample, without a scheduler."""

from __future__ import annotations

from loaderd.core.fault_ledger import BATCH_DEATHS, Attribution, FaultLedger, JobDeath
from loaderd.core.jobs import MAX_SUBSTITUTES, JobKind, Stage
from loaderd_wire.errors import BadSample

SAMPLE = BadSample(7, "seven", 7, "read", "WorkerDied", "", "")
HUNG = JobDeath(0, Stage.FETCH_MANY, own=False, hung=True, cause="")


def death(row: int, stage: Stage = Stage.READ, *, own: bool = True, candidate: int = 0) -> JobDeath:
    return JobDeath(row, stage, own, False, "SIGSEGV", candidate)


def test_two_hangs_of_a_collated_batch_that_name_no_row_are_the_batchs_own() -> None:
    ledger = FaultLedger("skip")
    assert ledger.attribute(JobKind.BATCH, 0, 8, HUNG) == Attribution()
    assert ledger.attribute(JobKind.BATCH, 0, 8, HUNG) == Attribution(collate=True)


def test_kills_from_outside_never_count_against_a_collated_batch() -> None:
    ledger = FaultLedger("skip")
    for stage in (Stage.READ, Stage.COLLATE) * 20:
        assert ledger.attribute(JobKind.BATCH, 0, 8, death(3, stage, own=False)) == Attribution()


def test_a_conviction_makes_the_deaths_of_its_batch_forgotten() -> None:
    ledger = FaultLedger("skip")
    for _ in range(BATCH_DEATHS - 1):
        assert ledger.attribute(JobKind.BATCH, 0, 8, death(3)) == Attribution()
    ledger.mark_bad(3, 0, SAMPLE)
    assert ledger.attribute(JobKind.BATCH, 0, 8, death(4)) == Attribution()


def test_a_stamp_that_names_no_candidate_that_is_left_is_held_against_the_next_one() -> None:
    ledger = FaultLedger("replace")
    ledger.mark_bad(5, 0, SAMPLE)
    verdict = [ledger.attribute(JobKind.FILL, 5, 6, death(5, candidate=0)) for _ in range(2)][-1]
    assert verdict == Attribution(5, 1)


def test_a_row_is_lost_with_its_last_candidate_and_not_before() -> None:
    ledger = FaultLedger("replace")
    for candidate in range(MAX_SUBSTITUTES):
        ledger.mark_bad(5, candidate, SAMPLE)
    assert ledger.lost == set()
    ledger.mark_bad(5, MAX_SUBSTITUTES, SAMPLE)
    assert ledger.lost == {5}
    skipped = FaultLedger("skip")
    skipped.mark_bad(5, 0, SAMPLE)
    assert skipped.lost == {5}


def test_what_is_said_of_a_row_is_said_of_its_own_sample_alone() -> None:
    ledger = FaultLedger("replace")
    ledger.mark_bad(5, 2, SAMPLE)
    assert (ledger.bad_rows, ledger.has_bad) == ({}, True)
