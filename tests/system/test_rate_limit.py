"""How often the same is said."""

from __future__ import annotations

from loaderd.system.rate_limit import RateLimit


def test_a_key_is_said_once_in_its_time_and_then_with_the_number_of_those_unsaid() -> None:
    limit = RateLimit(every_s=60)
    assert limit.ask("a", 0.0) == ""
    assert limit.ask("a", 1.0) is None
    assert limit.ask("a", 59.9) is None
    assert limit.ask("a", 60.0) == " (2 more such since the last line)"
    assert limit.ask("a", 61.0) is None
    assert limit.ask("a", 121.0) == " (1 more such since the last line)"
    assert limit.ask("a", 181.0) == ""


def test_each_key_has_a_time_of_its_own() -> None:
    limit = RateLimit(every_s=60)
    assert [limit.ask(key, 0.0) for key in "ab"] == ["", ""]
    assert [limit.ask(key, 1.0) for key in "ab"] == [None, None]


def test_keys_beyond_the_most_share_one() -> None:
    limit = RateLimit(every_s=60, max_keys=2)
    assert [limit.ask(key, 0.0) for key in "abcd"] == ["", "", "", None]
    assert limit.ask("a", 1.0) is None
    assert limit.ask("b", 1.0) is None


def test_keys_whose_time_is_over_make_room() -> None:
    limit = RateLimit(every_s=60, max_keys=2)
    assert [limit.ask(key, now_s) for key, now_s in (("a", 0.0), ("b", 30.0))] == ["", ""]
    assert limit.ask("c", 60.0) == ""
    assert limit.ask("c", 61.0) is None
    assert limit.ask("b", 61.0) is None
