"""Daemons that die, lie, lose messages or come back as another: the stream is the undisturbed one,
or the error names the cause.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from client.test_loader import finished, trainer
from loaderd_client import (
    DaemonGoneError,
    Loader,
    LoaderdError,
    ProtocolError,
    RefusedError,
    SampleError,
    StallError,
    StreamChangedError,
    StreamFailedError,
)
from loaderd_testing.daemon_harness import patiently
from loaderd_testing.fake_daemon import FakeDaemon, checked, epoch_indices, seen, until
from loaderd_testing.pipes import line_of
from loaderd_wire import messages as m
from loaderd_wire.codec import WIRE, frame

Fake = Callable[..., FakeDaemon]
Load = Callable[..., Loader[Any]]


def pull(batches: Iterator[Any], rows: list[int]) -> None:
    for batch in batches:
        rows += checked(batch)


@pytest.mark.parametrize("messages", range(33))
def test_a_daemon_killed_between_any_two_messages_costs_a_reconnect(
    fake: Fake, load: Load, messages: int
) -> None:
    daemon, loader = fake(samples=30, messages_left=messages), load(prefetch=2)
    held = [*loader, *loader]
    assert seen(held) == epoch_indices(0, daemon.rules) + epoch_indices(1, daemon.rules)
    assert daemon.deaths == 1


def test_a_daemon_killed_over_and_over_is_only_slow(fake: Fake, load: Load) -> None:
    daemon, loader = fake(), load()
    rows: list[int] = []
    for batch in loader:
        rows += checked(batch)
        daemon.kill()
    assert rows == epoch_indices(0, daemon.rules)


def test_a_successor_hears_fingerprints_settings_and_held_bytes(fake: Fake, load: Load) -> None:
    daemon, loader = fake(), load(prefetch=1)
    batches = iter(loader)
    held = next(batches)
    daemon.kill()
    rest = seen(batches)
    assert checked(held) + rest == epoch_indices(0, daemon.rules)
    first, second = daemon.hellos
    assert (first.order, first.content, first.held_bytes, first.batch_size) == ({}, {}, 0, None)
    assert (second.order, second.content) == (daemon.rules.order, daemon.rules.content)
    # of the seed the daemon itself must say the same
    assert (second.batch_size, second.seed, second.drop_last) == (4, None, False)
    assert second.held_bytes > 3 * 4 * 64 * 512
    del held
    daemon.kill()
    seen(loader)  # whose loop variable holds the dead daemon's last batch
    assert daemon.hellos[2].held_bytes == second.held_bytes


def test_lost_announcements_cost_a_second_each_and_no_batch(fake: Fake, load: Load) -> None:
    daemon, loader = fake(samples=12, lose=2), load(prefetch=2)
    assert seen(loader) == epoch_indices(0, daemon.rules)
    assert any(p.again for p in daemon.rules.said)


def test_a_daemon_that_never_comes_back_is_named_and_may_still_come(fake: Fake, load: Load) -> None:
    daemon, loader = fake(), load(reconnect_s=0.3, prefetch=1)
    batches = iter(loader)
    rows = checked(next(batches))
    daemon.kill(comes_back=False)
    with pytest.raises(DaemonGoneError, match=r"d\.sock"):
        pull(batches, rows)
    daemon.rules.comes_back = True
    daemon.wake()
    rows += seen(patiently(batches, DaemonGoneError))
    assert rows == epoch_indices(0, daemon.rules)


def test_a_daemon_that_drained_is_named_so(fake: Fake, load: Load) -> None:
    daemon, loader = fake(makes=False), load(reconnect_s=0.3)
    batches = iter(loader)

    def drain() -> None:
        until("its first word", lambda: daemon.rules.said)
        daemon.send_control(frame(m.Bye("SIGTERM")))
        daemon.kill(comes_back=False)

    thread = threading.Thread(target=drain)
    thread.start()
    with pytest.raises(DaemonGoneError, match=r"drained.*SIGTERM"):
        next(batches)
    thread.join()


@pytest.mark.parametrize(
    ("rule", "value", "words"),
    [
        ("order", {"samples": "50", "shuffle": "no"}, "shuffle was yes, is no"),
        ("content", {"transforms": "flip"}, "transforms was none, is flip"),
        ("samples", 60, "samples was 50, is 60"),
    ],
)
def test_a_successor_with_another_stream_is_refused_by_name(
    fake: Fake, load: Load, rule: str, value: object, words: str
) -> None:
    daemon, loader = fake(), load(prefetch=1)
    batches = iter(loader)
    next(batches)
    setattr(daemon.rules, rule, value)
    daemon.kill()
    with pytest.raises(StreamChangedError, match=words):
        seen(batches)


GARBAGE = {
    "random bytes": b"\xc1\xff\x00garbage",
    "nothing": b"",
    "an unknown code": b"\x91\x7f",
    "a client's message": WIRE.encode(m.Progress(1, 1, 1, 0, 0, 0, 0, 0, False, False, False, ())),
    "a control message": WIRE.encode(m.Bye("no")),
    "a batch in a slot that is not there": WIRE.encode(
        m.Descriptor(1, 1, 3, 0, 12, 4, 0, 99, 1, 4, False, (), ())
    ),
    "a batch of an unasked plan": WIRE.encode(
        m.Descriptor(1, 9, 3, 0, 12, 4, 0, 1, 1, 4, False, (), ())
    ),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_from_a_daemon_is_a_protocol_error_and_the_next_call_starts_anew(
    fake: Fake, load: Load, what: str
) -> None:
    daemon, loader = fake(), load(prefetch=1)
    batches = iter(loader)
    rows = checked(next(batches))
    daemon.rules.makes = False
    daemon.send_raw(GARBAGE[what] or b"\x00")
    with pytest.raises(ProtocolError):
        pull(batches, rows)
    daemon.rules.makes = True
    rows += seen(batches)
    assert rows == epoch_indices(0, daemon.rules)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        frame(m.Starting("?")),
        frame(m.Segment(1, 3, 4096, 64, 0)),
        b"\x01\x00\x00\x00\xc1",
    ],
)
def test_garbage_on_the_control_socket_is_a_protocol_error(
    fake: Fake, load: Load, data: bytes
) -> None:
    daemon, loader = fake(makes=False), load()
    batches = iter(loader)
    daemon.send_control(data)
    with pytest.raises(ProtocolError):
        next(batches)
    daemon.rules.makes = True
    assert seen(batches) == epoch_indices(0, daemon.rules)


@pytest.mark.parametrize(
    "answer",
    [
        b"\xff" * 64,
        frame(m.Report("{}")),
        frame(m.Segment(0, 3, 4096, 64, 0)),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_what_is_no_daemon_is_a_protocol_error(tmp_path: Path, load: Load, answer: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "d.sock"))
        listener.listen()

        def serve() -> None:
            connected, _ = listener.accept()
            with connected:
                connected.recv(1 << 16)
                connected.sendall(answer)
                connected.recv(1 << 16)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ProtocolError):
            len(load())
        thread.join()


def test_a_welcome_whose_memory_is_missing_or_too_small_is_refused_before_it_is_mapped(
    tmp_path: Path,
) -> None:
    import fcntl
    import os

    from loaderd_client.shared_memory import SegmentView
    from loaderd_wire.slots import FieldSpec

    spec = FieldSpec("x", "|u1", (8,))
    segment = m.Segment(0, 3, 4096, 64, 0)
    fd = os.memfd_create("fake", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, 3 * 4096 - 1)
        for _ in range(2):
            with pytest.raises(ProtocolError, match="not sealed"):
                SegmentView(segment, fd, [spec], 4)
            # which is no seal against shrinking
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        with pytest.raises(ProtocolError, match="12287 bytes, 12288"):
            SegmentView(segment, fd, [spec], 4)
        with pytest.raises(ProtocolError, match="too small"):
            SegmentView(segment, fd, [spec], 1000)
        with (tmp_path / "plain").open("w+b") as file:
            file.truncate(1 << 20)
            with pytest.raises(ProtocolError, match="not a memfd"):
                SegmentView(segment, file.fileno(), [spec], 4)
    finally:
        os.close(fd)


# What a stream's end, a wait and a bad sample look like


def test_a_failure_is_raised_as_what_it_names(fake: Fake, load: Load) -> None:
    daemon, loader = fake(makes=False), load()
    daemon.send_raw(WIRE.encode(m.Failure(1, "StreamFailedError", "workers keep dying: SIGSEGV")))
    with pytest.raises(StreamFailedError, match="SIGSEGV"):
        next(iter(loader))


def test_a_long_wait_is_told_with_the_daemons_story_and_then_raised_with_its_detail(
    fake: Fake, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = fake(
        makes=False,
        story="worker 3 is in decode of 'cat.jpg' for 9 s",
        detail="File decode.py, line 7",
    )
    for times in (1, 10, 40):  # a busy machine's daemon answers later
        caplog.clear()
        batches = iter(load(timeout_s=2.2 * times, stall_warning_s=1.2 * times))
        with pytest.raises(StallError) as caught:
            next(batches)
        if "cat.jpg" in caplog.text and "decode.py" in str(caught.value):
            break
    assert re.search(
        r"step 0 of epoch 0 of stream 'train'.*cat\.jpg[\s\S]*decode\.py", str(caught.value)
    )
    (line,) = [each.getMessage() for each in caplog.records if "step 0" in each.getMessage()]
    assert "cat.jpg" in line
    daemon.rules.makes = True
    daemon.wake()
    assert seen(patiently(batches)) == epoch_indices(0, daemon.rules)


def test_a_daemon_that_does_not_answer_is_told(fake: Fake, load: Load) -> None:
    fake(makes=False, answers=False)
    with pytest.raises(StallError, match="does not answer"):
        next(iter(load(timeout_s=2)))


def test_who_holds_too_many_slots_is_told_so(fake: Fake, load: Load) -> None:
    daemon, loader = fake(), load(prefetch=1, timeout_s=2, stall_warning_s=100)
    batches = iter(loader)
    held = [next(patiently(batches)) for _ in range(2)]
    daemon.rules.makes = False
    with pytest.raises(StallError, match="you hold 2 of 3 slots"):
        list(batches)
    assert len(held) == 2


def test_a_bad_sample_takes_its_batch_and_the_next_one_follows(fake: Fake, load: Load) -> None:
    daemon, loader = fake(bad=frozenset({9, 10, 30})), load()
    batches = iter(loader)
    got: list[int] = []
    errors: list[SampleError] = []
    while True:
        try:
            got += checked(next(batches))
        except SampleError as error:
            errors.append(error)
        except StopIteration:
            break
    assert [e.index for e in errors] == [9, 30]
    assert [b.index for b in errors[0].errors] == [9, 10]
    assert (errors[0].key, errors[0].stage, errors[0].remote_traceback) == (
        "9",
        "decode",
        "Traceback of 9",
    )
    assert "it is bad" in str(errors[0])
    assert "Traceback of 9" in str(errors[0])
    assert set(range(50)) - set(got) == {7, 8, 9, 10, 27, 28, 29, 30}
    assert loader.state_dict()["errors"] == {"rows": 50, "bad": 3}
    assert not daemon.error


def test_the_step_of_a_bad_sample_counts_as_yielded(fake: Fake, load: Load) -> None:
    daemon = fake(bad=frozenset({9}))
    first = load()
    with pytest.raises(SampleError):
        next(iter(first))
    second = load()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert seen(second) == epoch_indices(0, daemon.rules)[4:]
    assert second.state_dict()["errors"]["bad"] == 1


def test_a_skipped_sample_shortens_its_batch_and_steps_stay(fake: Fake, load: Load) -> None:
    daemon, loader = fake(bad=frozenset({8, 13}), on_error="skip", keys="stored"), load()
    batches = list(loader)
    assert [b.rows for b in batches] == [3, 3, *[4] * 10, 2]
    assert seen(batches) == [i for i in epoch_indices(0, daemon.rules) if i not in (8, 13)]
    assert batches[0].sample_keys == ["key-7", "key-9", "key-10"]
    assert [e.index for e in batches[0].errors] == [8]
    assert len(loader) == len(batches) == 13


def test_too_many_bad_samples_end_the_run_at_the_step_that_has_them(fake: Fake, load: Load) -> None:
    daemon, loader = (
        fake(bad=frozenset({7, 20, 40}), on_error="skip", max_errors=2),
        load(prefetch=20),
    )
    batches = iter(loader)
    got: list[int] = []
    with pytest.raises(StreamFailedError, match=r"3 bad samples.*max_errors = 2.*'7', '20', '40'"):
        pull(batches, got)
    # counted when taken, not when made
    assert got == [i for i in epoch_indices(0, daemon.rules)[:32] if i not in (7, 20, 40)]
    with pytest.raises(StreamFailedError):
        next(batches)


def test_bad_samples_are_counted_over_a_restart(fake: Fake, load: Load) -> None:
    fake(bad=frozenset({7, 20, 40}), on_error="skip", max_errors=2)
    first = load()
    batches = iter(first)
    for _ in range(5):
        next(batches)
    assert first.state_dict()["errors"] == {"rows": 20, "bad": 2}
    second = load()
    second.load_state_dict(first.state_dict())
    with pytest.raises(StreamFailedError, match="3 bad samples"):
        list(second)


def test_a_state_loaded_after_too_many_bad_samples_ended_the_run_goes_on_from_there(
    fake: Fake, load: Load
) -> None:
    daemon, loader = fake(bad=frozenset({7, 20, 40}), on_error="skip", max_errors=2), load()
    begin = loader.state_dict()
    with pytest.raises(StreamFailedError):
        list(loader)
    with pytest.raises(StreamFailedError):
        next(iter(loader))
    loader.load_state_dict(begin)
    batches = iter(loader)
    assert seen(next(batches) for _ in range(5)) == [
        i for i in epoch_indices(0, daemon.rules)[:20] if i not in (7, 20)
    ]
    assert loader.state_dict()["errors"] == {"rows": 20, "bad": 2}


def test_every_error_of_the_daemon_is_a_loaderd_error(fake: Fake, load: Load) -> None:
    fake(reject=("NoSuchError", "something new"))
    with pytest.raises(LoaderdError, match="something new"):
        len(load())


def test_the_stacks_of_workers_are_asked_for_before_a_wait_is_given_up_and_no_earlier(
    fake: Fake, load: Load
) -> None:
    daemon = fake(makes=False)
    with pytest.raises(StallError):
        next(iter(load(timeout_s=3, stall_warning_s=100)))
    pings = [said for said in daemon.rules.said if said.ping]
    assert not pings[0].stacks
    assert pings[-1].stacks


def test_memory_that_the_process_may_not_map_is_refused_with_its_size_and_the_setting() -> None:
    import fcntl
    import os

    from loaderd_client.shared_memory import SegmentView
    from loaderd_wire.slots import FieldSpec

    segment = m.Segment(0, 3, 1 << 46, 64, 0)  # more than an address space has
    fd = os.memfd_create("fake", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, 3 << 46)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        with pytest.raises(RefusedError, match=f"{3 << 46} bytes.*ulimit -v.*prefetch"):
            SegmentView(segment, fd, [FieldSpec("x", "|u1", (8,))], 4)
    finally:
        os.close(fd)


@pytest.mark.parametrize(("before", "size"), [(0, 65), (1, 64), (64, 2), (-1, 2)])
def test_a_variable_part_that_is_not_in_the_slots_tail_is_refused(before: int, size: int) -> None:
    import fcntl
    import os

    from loaderd_client.shared_memory import SegmentView
    from loaderd_wire.slots import FieldSpec

    segment = m.Segment(0, 3, 4096, 64, 0)
    fd = os.memfd_create("fake", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, 3 * 4096)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        slots = SegmentView(segment, fd, [FieldSpec("x", "|u1", (8,))], 1)
    finally:
        os.close(fd)
    slot = slots.slot(m.Descriptor(1, 1, 0, 0, 0, 1, 0, 1, 1, 1, False, (), ()))
    begin = slots.layout.tail_offset if before < 0 else 4096 - 64
    slot[4096 - 64 : 4096] = bytes(range(64))
    assert slots.reader.tail(slot, 4096 - 64, 64) == bytes(range(64))
    with pytest.raises(ProtocolError, match="not in the tail"):
        slots.reader.tail(slot, begin + before, size)


def test_a_closed_stderr_costs_a_line_and_no_batch(fake: Fake) -> None:
    daemon = fake()
    process = trainer(f"""
        import select, sys
        sys.stderr.close()
        loader_gone = lambda: select.select([loader._delivery._current.session._connection.control], [], [], 1)[0]
        batches = iter(loader := Loader({daemon.path!r}, "train", output="numpy", prefetch=1))
        print(next(batches).step, flush=True)
        while not loader_gone():
            pass
        print(sum(batch.rows for batch in batches))
    """)
    assert line_of(process) == "0\n"
    daemon.kill()
    assert finished(process)[0] == "46\n"
