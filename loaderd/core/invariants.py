"""What must hold after every event: the invariants of all tables together."""

from __future__ import annotations

from loaderd.core import explain, quickest
from loaderd.core.batches import SlotRef
from loaderd.core.groups import GroupState
from loaderd.core.jobs import JobKind
from loaderd.core.sessions import SessionState
from loaderd.core.slot_owner import SlotOwner
from loaderd.core.slots import SlotState
from loaderd.core.state import SchedulerState

WITH_BATCH = (SlotState.FILLING, SlotState.READY, SlotState.ANNOUNCED)
GIVEN = (SlotState.ANNOUNCED, SlotState.LEASED)
MADE = (SlotState.READY, SlotState.ANNOUNCED)
BEING_MADE = (SlotState.FILLING,)


def assert_invariants(state: SchedulerState) -> None:
    """Check the state.

    Raises:
        AssertionError: It contradicts itself. The text says where.
    """
    state.pool.invariants()
    _jobs(state)
    for owner in (*state.groups.values(), *state.leaving.values()):
        _slots(state, owner)
    for session in state.sessions.values():
        if session.owner is session:
            _slots(state, session)
        _told(session)
        _window(session)
        _progress(state, session)
    for group in state.groups.values():
        _group(group)
    assert len(state.queue) <= 4 * len(state.sessions) + 65, (
        f"the queue has {len(state.queue)} entries for {len(state.sessions)} sessions"
    )
    assert all(s.gone and s.slots.tables for s in state.leaving.values()), (
        "a session that has left is still remembered"
    )


def _jobs(state: SchedulerState) -> None:
    held = {job: w.worker for w in state.pool.workers.values() for job in w.jobs}
    assert held == {n: r.worker for n, r in state.jobs.items()}, "jobs and workers disagree"
    written: dict[tuple[int, int, int, int], int] = {}
    for number, running in state.jobs.items():
        job, owner = running.job, running.owner
        table = owner.slots.tables[job.segment]
        assert number in table.writers[job.slot], f"job {number} is not known to slot {job.slot}"
        assert running.wanted == (number in running.build.running), (
            f"job {number}: does its batch want it?"
        )
        if running.wanted:
            place = running.build.place
            assert place is not None, f"job {number} writes for a batch without a slot"
            assert (place.segment, place.slot) == (job.segment, job.slot), (
                f"job {number} writes where its batch is not"
            )
            assert table.state[job.slot] is SlotState.FILLING, (
                f"job {number} writes a slot that is {table.state[job.slot].value}"
            )
        else:
            assert table.state[job.slot] is SlotState.ENDING, (
                f"unwanted job {number} writes a slot that is {table.state[job.slot].value}"
            )
        for row in range(job.first, job.last) if job.kind is not JobKind.TRIAL else ():
            other = written.setdefault((owner.session, job.segment, job.slot, row), number)
            assert other == number, (
                f"jobs {other} and {number} both write row {row} of slot {job.slot}"
            )


def _slots(state: SchedulerState, owner: SlotOwner) -> None:
    for table in owner.slots.tables.values():
        table.invariants()
        for slot, jobs in enumerate(table.writers):
            assert not jobs or jobs <= state.jobs.keys(), (
                f"session {owner.session} slot {slot} has writers that are no jobs"
            )
    if not isinstance(owner, GroupState):
        out = {
            (number, slot)
            for number, table in owner.slots.tables.items()
            for slot, state in enumerate(table.state)
            if state in GIVEN
        }
        assert out == owner.slots.announced.keys(), (
            f"session {owner.session} has announced or lent {sorted(out)}, it keeps "
            f"{sorted(owner.slots.announced)}"
        )


def _group(group: GroupState) -> None:
    """Slots that members were told of, and those that have a batch, are the ones that say so."""
    name = f"group {group.session}"
    assert group.members, f"{name} has no member"
    pins: dict[tuple[int, int], int] = {}
    for member in group.members:
        for key, known in member.slots.announced.items():
            pins[key] = pins.get(key, 0) + 1
            assert group.placed.get(key) is known.build, (
                f"{name}: slot {key} was used again before session {member.session} gave it back"
            )
    assert pins == group.slots.pins, f"{name} keeps {group.slots.pins}, its members {pins}"
    for number, table in group.slots.tables.items():
        for slot, state in enumerate(table.state):
            where = f"{name} segment {number} slot {slot} is {state.value}"
            build = group.placed.get((number, slot))
            assert (state is SlotState.ANNOUNCED) == ((number, slot) in pins), (
                f"{where}: members were told of {sorted(pins)}"
            )
            assert (build is not None) == (state in WITH_BATCH), f"{where}, with batch {build}"
            assert build is None or build.place == SlotRef(number, slot, table.generation[slot]), (
                f"{where}: its batch is at {build.place}"
            )


def _told(s: SessionState) -> None:
    for (number, slot), given in s.slots.announced.items():
        generation = s.slots.tables[number].generation[slot]
        told = given.message.generation
        # in a group another client may have been told of the slot again since
        assert told == generation or (s.owner is not s and told < generation), (
            f"session {s.session} slot {slot} was told with another generation"
        )


def _window(s: SessionState) -> None:
    name, items = f"session {s.session}", s.window.items
    assert len(items) <= s.window.prefetch, (
        f"{name} has {len(items)} batches ahead, prefetch is {s.window.prefetch}"
    )
    told = True
    places: set[tuple[int, int]] = set()
    for k, item in enumerate(items, s.window.taken):
        assert item.k == k, f"{name}: its window has gaps"
        assert told or not item.announced, (
            f"{name}: a batch was announced before an earlier one: "
            f"{[item.announced for item in items]}"
        )
        told, place = item.announced, item.build.place
        if place is None:
            continue
        at = place.segment, place.slot
        assert at not in places, f"{name}: two batches have one slot: {at}"
        places.add(at)
        now = s.slots.state_of(place)
        assert now in (MADE if item.build.whole else BEING_MADE), (
            f"{name} batch {item.k} is in a slot that is {now}, whole: {item.build.whole}"
        )


def _progress(state: SchedulerState, s: SessionState) -> None:
    """A session that wants a batch has a job, work in the queue, or a reason that can be named."""
    if not s.window.items or s.ended:
        return
    build = s.window.items[0].build
    if build.whole:
        assert s.window.items[0].announced or explain.untold(s), (
            f"session {s.session}: batch {s.window.items[0].k} is whole and untold"
        )
    elif build.place is None:
        reason = explain.no_slot(s)
        assert s.owner.slots.growing or s.slots.table.free == 0, (
            f"session {s.session} leaves a slot free: {reason}"
        )
    else:
        assert build.running or build.has_work, (
            f"session {s.session}: no worker makes batch {s.window.items[0].k}"
        )
        idle, owner = state.pool.available.pick(second=False), s.owner
        # which of a group's batches is offered to a worker changes with its turns
        of_group = [item for item in owner.window.items if item.build.has_work]
        offered = [s.window.items[0]] if owner is s else of_group
        if (
            build.has_work
            and idle is not None
            and not state.draining
            and not any(quickest.is_held(state, owner, item, idle) for item in offered)
        ):
            raise AssertionError(
                f"session {s.session}: work at batch {s.window.items[0].k} and an idle worker"
            )
