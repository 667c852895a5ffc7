"""Sessions that share their batches: each slice is made once for all that want it soon.

A group makes batches in slots of its own. Its members are sessions whose plans agree. Each is told
of a batch when its turn comes, copies it out of the slot, and gives the slot back.

What is made next, and which batch goes where no slot is free, follow from the distance of a batch:
after how many steps the first member needs it. A batch takes the slot of another one only if its
own distance is smaller. So a member that is far from the others has its batches made anew, nobody
waits for anybody, and members whose cursors meet share again.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from loaderd.core.batch_window import PlannedBatch
from loaderd.core.batches import BatchBuild, SlotRef
from loaderd.core.events import Attach
from loaderd.core.group_window import GroupWindow
from loaderd.core.histogram import Histogram
from loaderd.core.jobs import Done, Job
from loaderd.core.sessions import SessionState
from loaderd.core.shared_slots import MemberSlots, SharedSlots, more_slots
from loaderd.core.slot_owner import SlotOwner
from loaderd.core.slots import ANNOUNCED, FILLING, READY
from loaderd_wire.messages import Descriptor, Progress, Released, Segment
from loaderd_wire.slices import Cursor, Slice, steps_left

GROW_AGAIN_S = 5.0  # between two requests for more slots, after there was no memory


class GroupState(SlotOwner):
    """Makes the batches of its members.

    Attributes:
        window: The batches that members want next; `PlannedBatch.k` is the distance.
        slots: Its slots.
        members: Its sessions.
        ended: Why nothing more is made for it; "" while something is.
        gone: No member is left.
        unplaced: A batch of the window may have no slot.
        unsaid: A batch may be ready to be announced.
        share_window: A batch is kept for members whose distance to it is smaller.
        placed: Its batches that have a slot, by (segment, slot).
        told: Batches that members were told of.
        hits: Those of them that had been made for another member.
    """

    def __init__(
        self, event: Attach, new_build: Callable[[Slice], BatchBuild], times: Histogram
    ) -> None:
        """Begin without members.

        Args:
            event: The first client, and the group's segment.
            new_build: Makes the batch of a slice.
            times: Counts how long each batch takes.
        """
        super().__init__(event.group, event.stream, times)
        self.window: GroupWindow = GroupWindow(event.prefetch)  # pyright: ignore[reportIncompatibleVariableOverride] - set once
        self.slots: SharedSlots = SharedSlots(event.segment)  # pyright: ignore[reportIncompatibleVariableOverride] - set once
        self.members: list[GroupMember] = []
        self.share_window = max(event.share_window, event.prefetch)
        self.told = self.hits = 0
        self._plan = (event.stream, event.shape, event.seed)
        self._shape = event.shape
        self._new_build = new_build
        self._batches: dict[Slice, BatchBuild] = {}
        self.placed: dict[tuple[int, int], BatchBuild] = {}
        self._grow_s = -inf  # more slots are not asked for before

    # members

    def fits(self, event: Attach) -> bool:
        """Whether a client's plans agree with those of the members, and its segment is theirs."""
        plan = (event.stream, event.shape, event.seed)
        return plan == self._plan and event.segment == self.slots.table.segment

    def join(self, member: GroupMember) -> None:
        """A client has come."""
        self.members.append(member)
        self.window.prefetch = max(self.window.prefetch, member.window.prefetch)

    def part(self, member: GroupMember) -> None:
        """A client has gone; with the last one the group ends."""
        self.members.remove(member)
        self.unplaced = self.unsaid = True
        if not self.members:
            self.gone = True
            self.ended = "gone"
            self.window.items.clear()
            for build in tuple(self.placed.values()):
                self.restart(build)

    def batch_of(self, cut: Slice) -> BatchBuild:
        """The batch of a slice: the one that there is, or a new one.

        A client that has a larger segment gives back unread what it is told of in a former one.
        """
        build = self._batches.get(cut)
        if build is None or self._is_old(build):
            build = self._batches[cut] = self._new_build(cut)
        return build

    def tell(self, build: BatchBuild) -> None:
        """A member is told of a batch."""
        self.told += 1
        self.hits += build.told > 0
        build.told += 1

    def lag_of(self, member: GroupMember) -> int | None:
        """Batches by which a member is behind the furthest; None without a plan, or once ended."""
        going_on = [each for each in self.members if each.window.items and not each.ended]
        return max(each.step for each in going_on) - member.step if member in going_on else None

    def step_of(self, cursor: Cursor) -> int:
        """Number of a step, counted through all epochs."""
        left = steps_left(self._shape, cursor.position)
        return (cursor.epoch + 1) * steps_left(self._shape, 0) - left

    # what the scheduler does

    def fill(self, now_s: float) -> None:
        """Claim slots for the batches that members want, those with the smallest distance first."""
        slots = self.slots
        wanted = self._look()
        for item in wanted.values():
            build = item.build
            if build.place is not None or not slots.fits(build):
                continue
            place = slots.claim() or self._make_room(item.k)
            if place is None:
                break
            build.begin(place)
            build.begun_s = now_s
            self.placed[place.segment, place.slot] = build
            if not build.todo:
                self.finish(build, now_s)
        self.unplaced = any(item.build.place is None for item in wanted.values())

    def announce(self, now_s: float) -> list[Descriptor]:
        """The descriptors for all members."""
        self.unsaid = False
        return [
            message
            for member in self.members
            if not member.ended
            for message in member.announce(now_s)
        ]

    def hold(self, now_s: float) -> None:
        """Note of each member whether anything can be begun for it."""
        for member in self.members:
            member.hold(now_s)

    def answered(self, job: Job, done: Done) -> None:
        """Take the measures of a job. Each member bears an equal part of them."""
        self.window.answered()
        at_work = [member for member in self.members if not member.ended]
        for member in at_work:
            member.usage.answered(job, done, part=1 / len(at_work))

    def starved(self, now_s: float) -> bool:
        """Whether clients may keep all slots, or a member needs one that only clients can free."""
        if now_s < self._grow_s or self.gone:
            return False
        return self.slots.crowded or (
            self.unplaced
            and self.slots.all_announced
            and any(item.k == 0 and item.build.place is None for item in self.window.items)
        )

    def slots_needed(self) -> int:
        """How many slots a larger segment must have: room for one more that is far from others."""
        return more_slots(len(self.members), super().slots_needed(), self.window.prefetch)

    def not_grown(self, now_s: float) -> list[GroupMember]:
        """There is no memory for a larger segment. More slots are asked for again, after a while.

        Args:
            now_s: Time of the event.

        Returns:
            Members that can't go on, because a batch of theirs does not fit into its slot.
        """
        self.slots.growing = False
        self._grow_s = now_s + GROW_AGAIN_S
        if self.slots.outgrown:  # a segment for larger batches has not been asked for yet
            return []
        fits = self.slots.fits
        return [
            member
            for member in self.members
            if not all(item.build.place or fits(item.build) for item in member.window.items)
        ]

    def grown(self, segment: Segment) -> None:
        """A larger segment has been reserved; slots are claimed in it from now on."""
        super().grown(segment)
        for build in tuple(self.placed.values()):
            place = build.place
            if place and self._is_old(build) and self.slots.state_of(place) is not ANNOUNCED:
                self.restart(build)
        for member in self.members:
            member.settle()
        self.unplaced = self.unsaid = True

    def wait(self, build: BatchBuild) -> None:
        """A batch has no slot any longer."""
        if build.place is not None:
            self.placed.pop((build.place.segment, build.place.slot), None)
        build.told = 0  # what is made of it next has been made for nobody
        super().wait(build)

    # parts of the above

    def _finished(self, build: BatchBuild) -> None:
        for member in self.members:
            member.made += member.wants(build)

    def _look(self) -> dict[int, PlannedBatch]:
        """See which batches members want, and forget those that nobody does.

        Returns:
            By id of the batch, by distance. They are the window.
        """
        served = sorted(self.members, key=lambda member: member.served)
        windows = [member.planned() for member in served]
        found = self.window.look(windows, self.step_of, self.share_window)
        for build in tuple(self.placed.values()):
            if self._is_useless(build):
                self.restart(build)
        self._batches = {
            cut: build
            for cut, build in self._batches.items()
            if build.place is not None or id(build) in found
        }
        return found

    def _is_old(self, build: BatchBuild) -> bool:
        """Whether a batch lies in a former segment, whose memory is to go."""
        return build.place is not None and build.place.segment != self.slots.current

    def _is_useless(self, build: BatchBuild) -> bool:
        """Whether the slot of a batch is to be free at once."""
        assert build.place is not None
        state = self.slots.state_of(build.place)
        if state is FILLING:
            return self.window.distance(build) == inf
        return state is READY and self._is_old(build)

    def _make_room(self, distance: int) -> SlotRef | None:
        """Claim the slot of the batch with the greatest distance, if that is above this one."""
        far, farthest = float(distance), None
        for build in self.placed.values():
            place = build.place
            if place is None or self._is_old(build) or build.running:
                continue
            if self.slots.state_of(place) in (FILLING, READY):
                its = self.window.distance(build)
                if its > far:
                    far, farthest = its, build
        if farthest is None:
            return None
        self.restart(farthest)
        return self.slots.claim()


class GroupMember(SessionState):
    """A session whose batches its group makes.

    Attributes:
        group: The group.
        slots: What its client was told of the group's slots.
        ended: Why nothing more is made for it; "" while something is.
        gone: The client has left.
        served: When it was last told of a batch: a count of the group's tellings.
    """

    def __init__(
        self, event: Attach, on_error: str, collated: bool, times: Histogram, group: GroupState
    ) -> None:
        """Begin without a plan.

        Args:
            event: The client.
            on_error: The stream's rule for bad samples.
            collated: A batch is made as a whole.
            times: Counts how long each batch takes.
            group: The group.

        Raises:
            ValueError: Its plans are not those of the group, or it can't be served.
        """
        if not group.fits(event):
            raise ValueError(f"session {event.session} can't join group {event.group}: {event}")
        super().__init__(event, on_error, collated, times)
        self.group = group
        self.slots: MemberSlots = MemberSlots(group.slots)
        self.window.new_build = group.batch_of
        self.served = 0
        group.join(self)

    @property
    def owner(self) -> SlotOwner:
        """Its group."""
        return self.group

    @property
    def step(self) -> int:
        """Its next step, counted through all epochs. It must have a plan."""
        return self.group.step_of(self.window.items[0].cursor)

    @property
    def held(self) -> bool:
        """No batch can be begun for it before it takes one, or a slot is given back."""
        builds = [item.build for item in self.window.items]
        return bool(builds) and all(each.place is None or each.whole for each in builds)

    def planned(self) -> list[PlannedBatch]:
        """The batches that it wants next, in order; none once it has ended."""
        if self.gone or self.ended or not self.window.plan:
            return []
        self.window.fill()
        return list(self.window.items)

    def wants(self, build: BatchBuild) -> bool:
        """Whether a batch is one of those that it wants next."""
        return any(item.build is build for item in self.window.items)

    # what the client says

    def give_back(self, told: Released) -> str:
        """Take in which slots of a segment the client has given back."""
        fault, changed = self.slots.give_back(told)
        if changed:
            self.group.unplaced = self.group.unsaid = True
        return fault

    def seek(self, p: Progress) -> None:
        """Begin a new plan. What the group has of it, made or in the making, is used."""
        self.window.seek(p, {})
        self.group.unplaced = self.group.unsaid = True

    def advance(self, taken: int) -> str:
        """The trainer has got the batches before `taken`: move the window on."""
        fault, got = self.window.advance(taken)
        if got:
            self.group.unplaced = self.group.unsaid = True
        return fault

    def settle(self) -> None:
        """What lies in a former segment, and the client does not have, is made again.

        Nothing else is: a client does not write into slots of a group.
        """
        if len(self.slots.tables) == 1:
            return
        for item in self.window.items:
            place = item.build.place
            if (
                place
                and place.segment != self.slots.current
                and not self.slots.is_known(item.build)
            ):
                item.build = self.group.batch_of(item.build.slice)
                self.group.unplaced = True

    # what the scheduler does

    def end(self, why: str) -> None:
        """Make nothing more for it. What was announced stays valid."""
        self.ended = self.ended or why
        self.group.unplaced = True

    def leave(self) -> None:
        """The client is gone."""
        self.gone = True
        self.end("gone")
        self.window.items.clear()
        self.slots.release_all()
        self.group.part(self)

    def _place_to_tell(self, item: PlannedBatch) -> SlotRef | None:
        """Where a batch lies that is READY, if the client is to be told of it now.

        Its generation is one that the client has not given back.
        """
        build = item.build
        next_one = item.k == self.window.taken
        if build.place is None or not self.slots.may_tell(self.window.prefetch, needed=next_one):
            return None
        if self.slots.was_told(build.place):
            self.group.slots.renew(build)
        self.group.tell(build)
        self.served = self.group.told
        return build.place
