"""The page of `loaderd top`, in the terminal's size, without a terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from cli.test_status import STATUS
from loaderd.cli.top.follower import DaemonPicture
from loaderd.cli.top.page import View, page, shares, until
from loaderd.server.status_report import DaemonStatus
from loaderd.system.logs import LoggedEvent
from server.test_status_report import STATUS as OTHER

SHOWN = replace(
    STATUS,
    sessions=OTHER.sessions + STATUS.sessions,
    events=(LoggedEvent(0.25, "warning", "worker_ended", "worker 1 has ended: \033[2JSIGSEGV"),),
    restarts={"crash": 2},
)


def drawn(status: DaemonStatus, view: View, width: int = 80, height: int = 24, **more: str) -> list[str]:  # fmt: skip
    console = Console(width=width, height=height, file=io.StringIO())
    console.print(page(DaemonPicture(status, 0.0, **more), view, width, height, 12.0))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (40, 10)])
def test_the_page_has_the_size_of_the_terminal(width: int, height: int) -> None:
    lines = drawn(SHOWN, View(), width, height)
    assert len(lines) == height
    assert max(map(len, lines)) <= width


def test_it_shows_who_waits_for_whom_and_what_everybody_does() -> None:
    text = "\n".join(drawn(SHOWN, View()))
    for said in (
        "loaderd 1  ready  pid 7  /s",
        "read-bound: the trainer waits 60% of the time; set num_workers = 5",
        "256 MiB of 1.0 GiB  5.0 batches/s  1.0 MB/s  9 bad  2 restarts",
        "train          1/2     3       4/125    24 s □",
        "5.0    1.0   50%",
        "▣▣■◧▨□",
        "StreamFailedError: too many",
        "1       12 busy     train      decode    cat?.png",
        "worker 1 has ended: ?[2JSIGSEGV",
        "q quit",
    ):
        assert said in text, said


def test_workers_of_other_hosts_have_a_line_and_a_node() -> None:
    text = "\n".join(drawn(OTHER, View()))
    assert "\n32 remote workers, 1 at work: node far-8: it is refused\n" in text
    assert "WORKERS      pid node         state    stream" in text
    assert "\n      3       14 far-7        idle " in text
    assert "\n      4        - ?            starting " in text
    assert " node " not in "\n".join(drawn(SHOWN, View()))


def test_groups_have_a_table_and_their_sessions_say_how_far_behind_they_are() -> None:
    text = "\n".join(drawn(SHOWN, View(), 100, 30))
    assert "9/?       - shared, 3 steps behind " in text
    assert "train               2        30     1,055   24% ▨□□□" in text
    assert "GROUPS" not in "\n".join(drawn(replace(SHOWN, groups=()), View()))


def test_keys_sort_choose_and_show_a_stack() -> None:
    view = View()
    for key in ("down", "down", "up"):
        view = view.after(key, SHOWN)
    assert view.worker == 2
    assert view.after("sort", SHOWN).sort == "seconds"
    first, *others = SHOWN.workers
    asked = replace(SHOWN, workers=(replace(first, work=replace(first.work, stack="File a.py\n  x")), *others))  # fmt: skip
    text = "\n".join(drawn(asked, View().after("stack", asked)))
    assert "worker 1: train decode 'cat?.png'" not in text
    assert "worker 1: train decode 'cat\\n.png' for 3.2 s\nFile a.py\n  x" in text
    assert "was asked for" in "\n".join(drawn(SHOWN, view.after("stack", SHOWN)))
    assert not view.after("stack", SHOWN).after("back", SHOWN).stack


def test_the_chosen_worker_is_in_sight() -> None:
    assert any("    29 " in line for line in drawn(SHOWN, View(worker=29)))


def test_a_daemon_that_is_gone_is_told_with_the_age_of_what_is_shown() -> None:
    assert "12 s old: no daemon is running at /s" in drawn(SHOWN, View(), trouble="no daemon is running at /s")  # fmt: skip


def test_what_one_table_does_not_need_is_the_others() -> None:
    assert shares(12, (1, 9, 2, 9)) == [1, 5, 2, 4]
    assert shares(100, (1, 2)) == [1, 2]
    assert shares(-3, (1, 2)) == [0, 0]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (45.2, "45 s"),
        (59.7, "1:00 m"),
        (119.7, "2:00 m"),
        (723, "12:03 m"),
        (3599.6, "1:00 h"),
        (11220, "3:07 h"),
        (432000, "5 d"),
    ],
)
def test_a_time_is_said_as_people_say_it(seconds: float | None, text: str) -> None:
    assert until(seconds) == text
