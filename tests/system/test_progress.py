"""Progress on a terminal, and where nobody watches."""

from __future__ import annotations

import io
import sys

import pytest

from loaderd.system import progress
from loaderd.system.progress import BAR, DRAWN_S, SAID_S, ProgressLine


class Screen(io.StringIO):
    def __init__(self, *, live: bool) -> None:
        super().__init__()
        self.live = live

    def isatty(self) -> bool:
        return self.live

    def taken(self) -> str:
        """What was written since the last call."""
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return text


class World:
    """The time."""

    def __init__(self) -> None:
        self.s = 1000.0

    def monotonic(self) -> float:
        return self.s


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(progress, "time", made)
    return made


def shown(monkeypatch: pytest.MonkeyPatch, *, live: bool) -> Screen:
    screen = Screen(live=live)
    monkeypatch.setattr(sys, "stderr", screen)
    return screen


def test_on_a_terminal_the_bar_is_drawn_again_and_goes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = shown(monkeypatch, live=True)
    with ProgressLine("images") as line:
        line(1000, 4000)
        assert screen.taken() == f"\r\033[K{'█' * 7}{'░' * (BAR - 7)} 1,000 of 4,000 images, 0/s"
        world.s += DRAWN_S / 2
        line(1001, 4000)
        assert screen.taken() == ""
        world.s += 10 - DRAWN_S / 2
        line(2000, 4000)
        assert screen.taken().endswith(" 2,000 of 4,000 images, 100/s, 20 s left")
        line.say("a note")
        assert screen.taken() == "\r\033[Ka note\n"
        line(2001, 4000)  # drawn at once below what was said
        assert "2,001" in screen.taken()
    assert screen.taken() == "\r\033[K"


def test_elsewhere_there_is_a_line_now_and_then(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = shown(monkeypatch, live=False)
    with ProgressLine("samples") as line:
        line(0, 100)
        world.s += SAID_S
        line(10, 100)
        assert screen.taken() == "loaderd: 10 of 100 samples, 1/s, 2 min left\n"
        world.s += SAID_S - 1
        line.say("a note")
        line(20, 100)
        assert screen.taken() == "a note\n"
    assert screen.taken() == ""


def test_what_an_earlier_run_had_done_counts_for_no_speed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = shown(monkeypatch, live=False)
    line = ProgressLine("samples")
    line(500, 1000)
    world.s += SAID_S
    line(600, 1000)
    assert screen.taken() == "loaderd: 600 of 1,000 samples, 10/s, 40 s left\n"


def test_nothing_at_all_is_no_division_by_zero(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = shown(monkeypatch, live=True)
    ProgressLine("samples")(0, 0)
    assert screen.taken() == f"\r\033[K{'░' * BAR} 0 of 0 samples, 0/s"


@pytest.mark.parametrize(
    ("passed_s", "more", "left"),
    [(10, 89, "89 s"), (10, 90, "2 min"), (600, 89, "89 min"), (600, 90, "1.5 h")],
)
def test_the_rest_is_told_in_the_unit_that_fits(
    world: World, monkeypatch: pytest.MonkeyPatch, passed_s: float, more: int, left: str
) -> None:
    screen = shown(monkeypatch, live=False)
    line = ProgressLine("samples")
    line(0, 0)
    world.s += passed_s
    line(10, 10 + more)
    assert screen.taken().endswith(f", {left} left\n")
