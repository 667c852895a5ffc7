"""The worlds see what they are there to see: schedulers with one bug each are caught."""

from __future__ import annotations

import re
from typing import Any

import pytest

from loaderd.core import pool
from loaderd.core.actions import Action, Kill
from loaderd.core.batches import Draft
from loaderd.core.events import Event, Look, WorkerDied
from loaderd.core.jobs import Done
from loaderd.core.scheduler import Scheduler
from loaderd.core.sessions import Session
from loaderd.core.slots import State, Verb
from loaderd.server.sessions import Reception
from loaderd.system import resource_limits
from loaderd_wire.messages import Batch, Progress, Released
from simulation.clockwork import Broken
from simulation.world import MakeScheduler, World

WORLDS = 600  # some bugs show in one of a hundred worlds


def caught(make: MakeScheduler = Scheduler) -> str:
    """What the first world that notices says; fails if none does."""
    for seed in range(WORLDS):
        try:
            World(seed, make).run()
        except Broken as broken:
            return str(broken)
    pytest.fail(f"{WORLDS} worlds noticed nothing")


class Impatient(Scheduler):
    """Takes a worker for dead once it has had it killed, before its pidfd says so."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._buried: set[int] = set()

    def step(self, event: Event, now_s: float) -> list[Action]:
        if isinstance(event, WorkerDied) and event.worker in self._buried:
            return []
        if isinstance(event, Look):
            event = Look(tuple(seen for seen in event.seen if seen.worker not in self._buried))
        actions = super().step(event, now_s)
        for action in [action for action in actions if isinstance(action, Kill)]:
            assert isinstance(event, Look)
            seen = next(seen for seen in event.seen if seen.worker == action.worker)
            self._buried.add(action.worker)
            actions += super().step(WorkerDied(action.worker, False, "SIGKILL", seen, "", ""), now_s)
        return actions


def test_rows_given_to_another_before_the_pidfd_says_dead_are_noticed() -> None:
    assert re.search("two writers|is read while worker", caught(Impatient))


def test_a_slot_freed_by_a_release_of_another_generation_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def give_back(self: Session, told: Released) -> str:
        ring = self.rings.get(told.segment)
        for slot, back in enumerate(told.generations if ring else ()):
            if back and (told.segment, slot) in self.given:
                if ring.state[slot] is State.ANNOUNCED:
                    ring.move(slot, Verb.LEASE)
                ring.move(slot, Verb.RELEASE)
                del self.given[told.segment, slot]
        return ""

    monkeypatch.setattr(Session, "give_back", give_back)
    assert re.search(r"holds \(generation|is read while|became|two batches have one slot|is in a slot that is State.FREE", caught())


def test_a_lost_announcement_that_is_never_repeated_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def anew(self: Session, have: int, now_s: float) -> list[Batch]:
        return []

    monkeypatch.setattr(Session, "anew", anew)
    assert "got no batch" in caught()


def test_a_back_off_of_two_minutes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "BACK_OFF_S", 120.0)
    monkeypatch.setattr(pool, "BACK_OFF_MAX_S", 120.0)
    assert "got no batch for" in caught()


def test_reminders_that_never_come_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def reminders(self: Session, mentioned: set[int], now_s: float) -> list[Batch]:
        return []

    monkeypatch.setattr(Session, "reminders", reminders)
    assert re.search("knows nothing of them|and trainer .* uses", caught())


def test_a_segment_that_is_never_given_up_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def spent(self: Session) -> list[int]:
        return original(self) if self.gone else []

    original = Session.spent
    monkeypatch.setattr(Session, "spent", spent)
    assert re.search("and trainer .* uses", caught())


def test_memory_that_is_not_counted_while_it_is_reserved_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def shortage(*args: Any, **more: Any) -> str | None:
        return original(*args, **{**more, "live": 0})

    original = resource_limits.shortage
    monkeypatch.setattr(resource_limits, "shortage", shortage)
    assert "over the ceiling" in caught()


def test_memory_of_a_client_that_leaves_while_it_is_reserved_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(self: Reception, peer: Any) -> None:
        guest = self.guests.get(peer.session)
        if guest and not guest.attached:
            del self.guests[guest.session]
        else:
            original(self, peer)

    original = Reception.gone
    monkeypatch.setattr(Reception, "gone", gone)
    assert re.search("left behind|KeyError", caught())


def test_a_batch_that_the_trainer_wrote_into_and_that_is_served_again_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def advance(self: Session, taken: int) -> None:
        while self.taken < taken:
            self.items.popleft()
            self.taken += 1

    def give_back(self: Session, told: Released) -> str:
        return original(self, Released(told.segment, told.generations, told.generations))

    original = Session.give_back
    monkeypatch.setattr(Session, "advance", advance)
    monkeypatch.setattr(Session, "give_back", give_back)
    assert "got no batch" in caught()


def test_rows_of_a_job_that_died_and_count_as_done_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Draft, "redo", lambda self, pieces: self._next_stage())
    assert caught()


def test_a_batch_with_a_lost_row_that_is_not_closed_up_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absorb(self: Draft, job: int, done: Done) -> None:
        self.compacted = True
        original(self, job, done)

    original = Draft.absorb
    monkeypatch.setattr(Draft, "absorb", absorb)
    assert "it wants" in caught()


def test_a_plan_that_starts_at_the_wrong_place_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def seek(self: Session, p: Progress) -> None:
        original(self, p)
        if p.plan == 3 and self.items and not self.items[0].draft.running:
            self.taken += 1
            self.items.popleft()

    original = Session.seek
    monkeypatch.setattr(Session, "seek", seek)
    assert caught()
