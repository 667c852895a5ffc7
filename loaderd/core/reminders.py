"""Descriptors that are sent a second time, because the client seems not to have got them."""

from __future__ import annotations

from loaderd.core.batch_window import BatchWindow
from loaderd.core.session_slots import SessionSlots
from loaderd.core.slots import ANNOUNCED
from loaderd_wire.messages import Descriptor, Released

REMIND_S = 1.0  # between two reminders of a slot that the client seems not to know of


def asked_for(
    window: BatchWindow, slots: SessionSlots, have: int, now_s: float
) -> list[Descriptor]:
    """Descriptors for a client that asks for them again.

    Args:
        window: The session's window.
        slots: Its slots.
        have: The client has the batches of the plan before this one.
        now_s: Time of the event.

    Returns:
        Those from `have` on, and those of former plans whose slot was not given back.
    """
    again: list[Descriptor] = []
    for known in slots.announced.values():
        place, message = known.build.place, known.message
        assert place is not None
        current = message.plan == window.plan and message.k >= window.taken
        if slots.state_of(place) is ANNOUNCED and (not current or message.k >= have):
            known.told_s = now_s
            again.append(message)
    return sorted(again, key=lambda m: (m.plan, m.k))


def overdue(
    window: BatchWindow, slots: SessionSlots, released: tuple[Released, ...], now_s: float
) -> list[Descriptor]:
    """Descriptors of slots that only the client can free and that it seems not to know of.

    A message about them was lost. They are of a former plan, or in a segment that the client
    does not mention any longer. Each of them is sent once in REMIND_S.

    Args:
        window: The session's window.
        slots: Its slots.
        released: What the client's message has said of its segments.
        now_s: Time of the event.
    """
    again: list[Descriptor] = []
    for (segment, _), known in slots.announced.items():
        if now_s - known.told_s < REMIND_S:
            continue
        place, message = known.build.place, known.message
        if place is None:
            continue
        orphan = (message.plan != window.plan or message.k < window.taken) and slots.state_of(
            place
        ) is ANNOUNCED
        if orphan or (segment != slots.current and all(r.segment != segment for r in released)):
            known.told_s = now_s
            again.append(message)
    return again
