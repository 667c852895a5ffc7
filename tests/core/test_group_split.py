"""A split by groups: decided by a group's text alone, frozen by golden values."""

from __future__ import annotations

import pytest

from loaderd.core.group_split import ALL, group_bounds, group_word


def test_where_a_group_falls_never_changes() -> None:
    assert [hex(group_word(text)) for text in ("patient1", "", "ä")] == [
        "0x6f758005d75723fa",
        "0x83e12ebd2dbedb5f",
        "0xf6c7634619e5cdff",
    ]
    assert group_bounds("0%:80%") == (0, 14757395258967641292)


def test_text_that_is_not_utf8_has_a_place_too() -> None:
    assert 0 <= group_word("\udcff") < ALL


def test_sides_of_a_split_meet_and_share_no_group() -> None:
    ends = [group_bounds(text) for text in (":12.5%", "12.5%:90%", "90%:")]
    assert [ends[0][0], ends[-1][1]] == [0, ALL]
    assert [high for _, high in ends[:-1]] == [low for low, _ in ends[1:]]


def test_share_of_the_groups_on_a_side_is_near_its_percentage() -> None:
    low, high = group_bounds("0%:80%")
    inside = sum(low <= group_word(f"patient{n}") < high for n in range(10_000))
    assert abs(inside - 8000) < 200  # five standard deviations


@pytest.mark.parametrize("text", ["0:80", "0%:80", "80%", "0%:10%:20%", "a:b"])
def test_count_in_a_split_by_groups_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="both ends are percentages"):
        group_bounds(text)


@pytest.mark.parametrize("text", ["50%:50%", "60%:50%", "0%:101%"])
def test_split_by_groups_that_is_empty_or_too_long_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="empty, or ends beyond"):
        group_bounds(text)
