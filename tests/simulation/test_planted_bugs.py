"""The worlds see what they are there to see: schedulers with one bug each are caught."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest

from loaderd.core import invariants, pool, reminders, sessions
from loaderd.core.actions import Action, KillWorker
from loaderd.core.batch_window import BatchWindow
from loaderd.core.batches import BatchBuild
from loaderd.core.events import Event, ProgressReceived, WorkerDied, WorkerPoll
from loaderd.core.group_window import GroupWindow
from loaderd.core.groups import GroupMember
from loaderd.core.jobs import Done
from loaderd.core.scheduler import Scheduler
from loaderd.core.session_slots import Announced, SessionSlots
from loaderd.core.sessions import SessionState
from loaderd.core.shared_slots import MemberSlots, SharedSlots
from loaderd.core.slots import SlotEvent, SlotState
from loaderd.server.admission_control import AdmissionControl
from loaderd.server.sessions import SessionRegistry
from loaderd.system import resource_limits
from loaderd_client import session_memory
from loaderd_client.batch_reader import Made
from loaderd_client.devices.page_locks import PageLocks
from loaderd_client.session_memory import SessionMemory
from loaderd_wire.messages import Descriptor, Progress, Released
from simulation.clockwork import Broken
from simulation.daemon import Daemon
from simulation.handovers import Handover
from simulation.surroundings import Control, Peer
from simulation.world import MakeScheduler, World

WORLDS = 600  # some bugs show in one of a hundred worlds


def caught(make: MakeScheduler = Scheduler, first: int = 0, *, shared: bool = False) -> str:
    """What the first world that notices says, from `first` on; fails if none does.

    shared: only worlds whose trainers share their batches.
    """
    for seed in range(first, first + WORLDS):
        world = World(seed, make)
        try:
            if world.shared or not shared:
                world.run()
        except Broken as broken:
            return str(broken)
    pytest.fail(f"{WORLDS} worlds noticed nothing")


class Impatient(Scheduler):
    """Takes a worker for dead once it has had it killed, before its pidfd says so."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._terminated: set[int] = set()

    def step(self, event: Event, now_s: float) -> list[Action]:
        if isinstance(event, WorkerDied) and event.worker in self._terminated:
            return []
        if isinstance(event, WorkerPoll):
            event = WorkerPoll(
                tuple(seen for seen in event.seen if seen.worker not in self._terminated)
            )
        actions = super().step(event, now_s)
        for action in [action for action in actions if isinstance(action, KillWorker)]:
            assert isinstance(event, WorkerPoll)
            seen = next(seen for seen in event.seen if seen.worker == action.worker)
            self._terminated.add(action.worker)
            actions += super().step(
                WorkerDied(action.worker, False, "SIGKILL", seen, "", ""), now_s
            )
        return actions


def test_rows_given_to_another_before_the_pidfd_says_dead_are_noticed() -> None:
    assert re.search("two writers|is read while worker", caught(Impatient))


def test_a_slot_freed_by_a_release_of_another_generation_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def give_back(self: SessionSlots, told: Released) -> tuple[str, list[Announced]]:
        ring = self.tables.get(told.segment)
        for slot, back in enumerate(told.generations):
            if ring and back and (told.segment, slot) in self.announced:
                if ring.state[slot] is SlotState.ANNOUNCED:
                    ring.move(slot, SlotEvent.LEASE)
                ring.move(slot, SlotEvent.RELEASE)
                del self.announced[told.segment, slot]
        return "", []

    monkeypatch.setattr(SessionSlots, "give_back", give_back)
    assert re.search(
        r"holds \(generation|is read while|became|two batches have one slot|is in a slot that is "
        r"SlotState.FREE",
        caught(first=3),
    )


def test_a_lost_announcement_that_is_never_repeated_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asked_for(
        window: BatchWindow, slots: SessionSlots, have: int, now_s: float
    ) -> list[Descriptor]:
        return []

    monkeypatch.setattr(reminders, "asked_for", asked_for)
    assert "got no batch" in caught()


def test_a_back_off_of_two_minutes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "BACK_OFF_S", 120.0)
    monkeypatch.setattr(pool, "BACK_OFF_MAX_S", 120.0)
    assert "got no batch for" in caught()


def test_reminders_that_never_come_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def overdue(
        window: BatchWindow, slots: SessionSlots, released: tuple[Released, ...], now_s: float
    ) -> list[Descriptor]:
        return []

    monkeypatch.setattr(reminders, "overdue", overdue)
    # it shows in one of two hundred worlds, and in none of the first ones
    assert re.search("knows nothing of them|and trainer .* uses", caught(first=1000))


def test_a_segment_that_is_never_given_up_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def spent(self: SessionSlots, *, gone: bool) -> list[int]:
        return original(self, gone=gone) if gone else []

    original = SessionSlots.spent
    monkeypatch.setattr(SessionSlots, "spent", spent)
    assert re.search("and trainer .* uses", caught())


def test_memory_that_is_not_counted_while_it_is_reserved_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def shortage(*args: Any, **more: Any) -> str | None:
        return original(*args, **{**more, "live": 0})

    original = resource_limits.shortage
    monkeypatch.setattr(resource_limits, "shortage", shortage)
    assert "over the ceiling" in caught()


def test_memory_of_a_client_that_leaves_while_it_is_reserved_is_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(self: SessionRegistry, peer: Any) -> None:
        pending = self.sessions.get(peer.session)
        if pending and not pending.attached:
            del self.sessions[pending.session]
        else:
            original(self, peer)

    original = SessionRegistry.gone
    monkeypatch.setattr(SessionRegistry, "gone", gone)
    assert re.search("left behind|KeyError", caught())


def test_a_batch_that_the_trainer_wrote_into_and_that_is_served_again_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def advance(self: SessionState, taken: int) -> None:
        while self.window.taken < taken:
            self.window.items.popleft()
            self.window.taken += 1

    def give_back(self: SessionState, told: Released) -> str:
        return original(self, Released(told.segment, told.generations, told.generations))

    original = SessionState.give_back
    monkeypatch.setattr(SessionState, "advance", advance)
    monkeypatch.setattr(SessionState, "give_back", give_back)
    assert "got no batch" in caught()


def test_rows_of_a_job_that_died_and_count_as_done_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(BatchBuild, "redo", lambda self, pieces: self._next_stage())
    assert caught()


def test_a_batch_with_a_lost_row_that_is_not_closed_up_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absorb(self: BatchBuild, job: int, done: Done) -> None:
        self.compacted = True
        original(self, job, done)

    original = BatchBuild.absorb
    monkeypatch.setattr(BatchBuild, "absorb", absorb)
    assert "it wants" in caught()


def test_a_plan_that_starts_at_the_wrong_place_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def seek(self: SessionState, p: Progress) -> None:
        original(self, p)
        window = self.window
        if p.plan == 3 and window.items and not window.items[0].build.running:
            window.taken += 1
            window.items.popleft()

    original = SessionState.seek
    monkeypatch.setattr(SessionState, "seek", seek)
    assert caught()


def test_a_lease_that_ends_when_its_copy_to_a_device_is_asked_for_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lend(self: SessionMemory, batch: Descriptor, made: Made | None) -> None:
        original(self, batch, None if made is not None and made.arrival else made)

    original = SessionMemory.lend
    monkeypatch.setattr(SessionMemory, "lend", lend)
    assert "gets torn bytes" in caught()


def test_a_slot_that_goes_back_under_a_copy_of_the_trainer_itself_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PageLocks, "dropped", lambda self, lease: False)
    assert "gets torn bytes" in caught()


def test_memory_that_is_unlocked_under_a_copy_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def unlock(self: PageLocks, live: Collection[int]) -> None:
        for number in [number for number in self._memory if number not in live]:
            self._device.unlock(self._memory.pop(number))

    monkeypatch.setattr(PageLocks, "unlock", unlock)
    assert "under a copy" in caught()


def test_a_pool_that_goes_on_replacing_those_that_it_gave_up_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool.WorkerPool, "_replace", pool.WorkerPool._start)
    assert "places of a pool of" in caught()


def test_a_shared_slot_that_is_used_again_before_all_have_copied_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unpin(self: SharedSlots, segment: int, slot: int) -> None:
        if self.pins.pop((segment, slot), 0):
            self.tables[segment].move(slot, SlotEvent.KEEP)

    monkeypatch.setattr(SharedSlots, "unpin", unpin)
    monkeypatch.setattr(invariants, "_group", lambda group: None)
    assert re.search("has yet to give back|KeyError", caught(shared=True))


def test_one_that_is_told_again_of_what_it_gave_back_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MemberSlots, "was_told", lambda self, place: False)
    assert "is told again" in caught(shared=True)


def test_a_group_that_keeps_the_slots_of_a_dead_one_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MemberSlots, "release_all", lambda self: self.announced.clear())
    monkeypatch.setattr(invariants, "_group", lambda group: None)
    assert re.search("cannot abandon|got no batch|left behind", caught(shared=True))


def test_a_group_that_waits_for_a_stopped_one_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def distance(self: GroupWindow, build: BatchBuild) -> float:
        return 0 if any(build.step >= step for step, _ in self._sessions) else math.inf

    monkeypatch.setattr(GroupWindow, "distance", distance)
    assert "got no batch" in caught(shared=True)


def test_a_generation_that_another_one_was_told_of_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def replace(message: Descriptor, **changes: Any) -> Descriptor:
        changes.pop("generation", None)
        return original(message, **changes)

    original = sessions.replace
    monkeypatch.setattr(sessions, "replace", replace)
    said = caught(first=2230, shared=True)
    assert re.search("came before the one in use|is told again|got no batch|knows nothing", said)


def test_a_batch_in_a_former_segment_that_is_never_made_again_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(GroupMember, "settle", lambda self: None)
    # it shows in one of hundreds of worlds whose trainers share
    assert re.search("knows nothing of them|got no batch", caught(first=2600, shared=True))


def test_a_client_that_does_not_look_whether_it_is_still_served_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unless_ended(read: Callable[[], Any], ended: Callable[[], bool]) -> Any:
        return read()

    monkeypatch.setattr(session_memory, "unless_ended", unless_ended)
    said = caught(first=500, shared=True)
    assert re.search("is not what lies there|is read while|it wants", said)


def test_slots_that_are_free_before_the_connection_of_their_reader_ends_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def drop(self: Control, peer: Peer) -> None:
        if not peer.ended:
            self._daemon.gone(peer)
            self.hang_up(peer)

    monkeypatch.setattr(Control, "drop", drop)
    assert re.search("has yet to give back|is dropped", caught(shared=True))


class Forgetful(Scheduler):
    """As a successor: begins a session where its epoch does, wherever its trainer is."""

    follows = False

    def step(self, event: Event, now_s: float) -> list[Action]:
        if self.follows and isinstance(event, ProgressReceived) and event.progress.plan == 1:
            progress = replace(event.progress, position=0, step=0)
            event = ProgressReceived(event.session, progress)
        return super().step(event, now_s)


def test_a_successor_that_begins_at_another_cursor_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def begin(self: Handover, new: Daemon) -> None:
        assert isinstance(new.core, Forgetful)
        new.core.follows = True
        original(self, new)

    original = Handover.begin
    monkeypatch.setattr(Handover, "begin", begin)
    assert re.search("it wants|batch 0 of plan 1 should be", caught(Forgetful))


def test_a_successor_that_never_has_the_memory_of_the_daemon_before_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(AdmissionControl, "own_memory", lambda self: None)
    assert "got no batch" in caught(first=900)
