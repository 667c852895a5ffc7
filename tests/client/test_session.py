"""A session between its welcome and its end: segments, waits, and a batch that was taken and not
handed out.
"""

from __future__ import annotations

import fcntl
import gc
import os
from collections.abc import Callable
from typing import Any

import pytest

from loaderd_client import Loader, ProtocolError, StallError, shared_memory
from loaderd_client.session import Session
from loaderd_client.wait import WaitLimits
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_testing.fake_daemon import SEALS, FakeDaemon, checked, epoch_indices, seen
from loaderd_wire.slices import Cursor

Fake = Callable[..., FakeDaemon]
Load = Callable[..., Loader[Any]]


def test_a_segment_that_comes_twice_is_a_protocol_error(fake: Fake, load: Load) -> None:
    daemon, loader = fake(makes=False), load()
    len(loader)
    (session,) = daemon.sessions.values()
    segment, memory = session.segments[0]
    again = os.memfd_create("again", os.MFD_ALLOW_SEALING)
    os.ftruncate(again, memory.size)
    fcntl.fcntl(again, fcntl.F_ADD_SEALS, SEALS)
    daemon._send_fd(session.control, segment, again)
    batches = iter(loader)
    with pytest.raises(ProtocolError, match="segment 0 came twice"):
        next(batches)
    daemon.rules.makes = True
    assert seen(batches) == epoch_indices(0, daemon.rules)


def test_who_goes_on_after_a_stall_has_all_the_time_again(fake: Fake, load: Load) -> None:
    daemon, loader = fake(makes=False), load(timeout_s=3.0)
    batches = iter(loader)
    with pytest.raises(StallError):
        next(batches)
    daemon.rules.makes = True  # of which nobody hears before the client asks again
    assert seen(batches) == epoch_indices(0, daemon.rules)


def test_a_batch_that_was_taken_and_not_handed_out_is_not_given_after_a_seek(
    fake: Fake, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, loader = fake(), load(prefetch=1)
    read = Session._read

    def cut_short(*args: object, **options: object) -> object:
        monkeypatch.setattr(Session, "_read", read)
        raise KeyboardInterrupt

    for epoch in range(1, 5):  # as many as there are slots, and one more: each comes back
        batches = iter(loader)
        monkeypatch.setattr(Session, "_read", cut_short)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        loader.set_epoch(epoch)
        assert checked(next(iter(loader))) == epoch_indices(epoch, daemon.rules)[:4]
    assert len(daemon.hellos) == 1


def test_batches_are_asked_for_again_where_one_is_waited_for_and_never_else(
    fake: Fake, load: Load
) -> None:
    daemon, loader = fake(), load()
    seen(loader)
    assert daemon.rules.said
    assert [said for said in daemon.rules.said if said.again and not said.ping] == []


def test_a_session_is_sound_after_whatever_it_has_done_to_its_end(fake: Fake, load: Load) -> None:
    """Else the next exception that passes would cost a session, the end of an epoch too."""
    fake()
    loader = load()
    next(iter(loader))
    session = loader._delivery._current.session
    assert session is not None
    limits = WaitLimits(DEADLINE_S, DEADLINE_S, DEADLINE_S)
    done: dict[str, Callable[[], object]] = {
        "hear": session._listen,
        "hear of segments": session._hear_control,
        "tell": session._tell,
        "tell if due": lambda: session.progress(waited=False),
        "wait": lambda: session.next_batch(1, limits),
        "take again": lambda: session.next_batch(1),
        "seek": lambda: session.seek(Cursor(2, 0, 0)),
    }
    for what, act in done.items():
        act()
        assert session.sound, what


def test_a_session_is_not_sound_between_release_and_progress(fake: Fake, load: Load) -> None:
    """Whoever is interrupted there does not know whether the batch is its own."""
    fake()
    loader = load()
    next(iter(loader))
    session = loader._delivery._current.session
    assert session is not None
    assert session.next_batch(1, WaitLimits(DEADLINE_S, DEADLINE_S, DEADLINE_S)) is not None
    session.release()
    assert not session.sound
    session.progress(waited=True)
    assert session.sound


def test_a_batch_is_given_again_until_it_is_released(fake: Fake, load: Load) -> None:
    daemon, loader = fake(), load()
    next(iter(loader))
    session = loader._delivery._current.session
    assert session is not None
    first, again = (
        session.next_batch(1, WaitLimits(DEADLINE_S, DEADLINE_S, DEADLINE_S)),
        session.next_batch(1),
    )
    assert first is not None
    assert again is not None
    assert checked(first.batch) == checked(again.batch) == epoch_indices(0, daemon.rules)[4:8]


def test_leases_that_have_ended_are_not_remembered(fake: Fake, load: Load) -> None:
    fake(samples=200)
    loader = load(prefetch=1)
    seen(loader)
    gc.collect()
    assert len(shared_memory._lent) <= 3


def test_leases_that_end_after_their_session_are_forgotten_with_the_next_one(
    fake: Fake, load: Load
) -> None:
    fake()
    loader = load()
    held = [next(iter(loader)), next(iter(loader))]
    loader.close()
    kept = len(shared_memory._lent)
    held.clear()
    gc.collect()
    len(load())
    assert len(shared_memory._lent) <= kept - 2
