from __future__ import annotations

from loaderd_client.error_budget import ErrorBudget
from loaderd_wire.errors import BadSample


def bad(n: int) -> tuple[BadSample, ...]:
    return tuple(BadSample(i, f"key{i}", i, "decode", "ValueError", "odd") for i in range(n))


def test_a_count_is_exceeded_by_one_more_and_names_the_last_keys() -> None:
    tally = ErrorBudget().plus(50, bad(10))
    assert tally.verdict(10, 1, epoch_ends=True) == ""
    tally = tally.plus(50, bad(1))
    text = tally.verdict(10, 1, epoch_ends=False)
    assert "11 bad samples in 100 rows" in text
    assert "'key0'" in text


def test_a_fraction_is_judged_from_row_1000_on() -> None:
    tally = ErrorBudget().plus(999, bad(500))
    assert tally.verdict(0.1, 1, epoch_ends=False) == ""
    tally = tally.plus(1, ())
    assert "0.1" in tally.verdict(0.1, 1, epoch_ends=False)


def test_a_fraction_is_judged_at_the_end_of_a_short_epoch() -> None:
    tally = ErrorBudget().plus(50, bad(6))
    assert tally.verdict(0.1, 1, epoch_ends=False) == ""
    assert tally.verdict(0.1, 1, epoch_ends=True) != ""
    assert tally.verdict(0.12, 1, epoch_ends=True) == ""


def test_a_fraction_is_of_this_ranks_rows() -> None:
    tally = ErrorBudget().plus(4000, bad(150))  # of four ranks: 1,000 are ours
    assert tally.verdict(0.1, 4, epoch_ends=False) != ""


def test_no_limit_never_ends_a_run() -> None:
    tally = ErrorBudget().plus(2000, bad(2000))
    assert tally.verdict(0.0, 1, epoch_ends=True) == ""


def test_counts_go_on_over_a_restart() -> None:
    tally = ErrorBudget(rows=100, bad=10).plus(4, bad(1))
    assert "11 bad samples in 104 rows" in tally.verdict(10, 1, epoch_ends=False)
