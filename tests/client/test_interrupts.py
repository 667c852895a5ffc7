"""Signals whose handlers raise, in the middle of whatever a Loader does: their exceptions come out
as they are, and nothing is lost or begun anew.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from client.test_loader import finished, trainer
from loaderd_client import Loader, LoaderdError, signals
from loaderd_client.control_socket import ControlSocket
from loaderd_client.log import LOG, warn
from loaderd_client.signals import Carried, Held, Unswallowed
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_testing.fake_daemon import FakeDaemon, epoch_indices, until

Fake = Callable[..., FakeDaemon]
Load = Callable[..., Loader[Any]]

# Takes an epoch although a handler raises every {every} s, inside of next(), and tells the
# exceptions that came out of next(). What Python loses between a return and an assignment is
# nobody's to save.
PULLS = """
    import collections, signal
    raised, came = 0, collections.Counter()
    def interrupt(number, frame):
        global raised
        while frame is not None and frame.f_code.co_name != "__next__":
            frame = frame.f_back
        if frame is not None:
            raised += 1
            raise {error}
    signal.signal(signal.SIGALRM, interrupt)
    loader = Loader({path!r}, "train", output="numpy", reconnect_s=30)
    batches, got = iter(loader), []
    signal.setitimer(signal.ITIMER_REAL, {every}, {every})
    while True:
        try:
            got += next(batches).indices.tolist()
        except StopIteration:
            break
        except BaseException as error:
            came[type(error).__name__] += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(got)
    print(dict(came))
    print(raised)
"""


def test_a_handler_that_raises_faster_than_batches_come_stops_no_epoch(fake: Fake) -> None:
    daemon = fake(samples=16, pace_s=0.3)
    out, err = finished(trainer(PULLS.format(path=daemon.path, every=0.13, error="TimeoutError")))
    got, came, raised = map(eval, out.splitlines() or [err])
    assert got == epoch_indices(0, daemon.rules)
    assert came["TimeoutError"] >= 4
    # nearly all interrupts come where a session can be kept
    assert len(daemon.hellos) < 1 + raised // 4


def test_a_call_that_was_interrupted_while_it_took_its_lock_does_not_stop_the_next_ones(
    fake: Fake, load: Load
) -> None:
    daemon = fake(samples=16)
    loader = load()
    batches = iter(loader)
    got = next(batches).indices.tolist()
    # What Python 3.14 leaves behind where a handler raises between the lock and its block.
    loader._delivery._lock.acquire()
    got += [index for batch in batches for index in batch.indices.tolist()]
    assert got == epoch_indices(0, daemon.rules)
    loader._delivery._lock.acquire()
    loader.close()
    assert not daemon.sessions or until("its end", lambda: not daemon.sessions)


@pytest.mark.parametrize(
    "error",
    ["TimeoutError", "ValueError", "BlockingIOError(11, 'mine')", "TypeError", "KeyboardInterrupt"],
)
def test_what_a_handler_raises_comes_out_of_next_as_itself(fake: Fake, error: str) -> None:
    daemon = fake(samples=400, keys="stored", pace_s=0.0)
    process = trainer(PULLS.format(path=daemon.path, every=0.002, error=error))
    until("the first batch", lambda: daemon.rules.said)
    for _ in range(5):
        if process.poll() is None and daemon.sessions:
            daemon.kill()
            until("the next session", lambda: daemon.sessions or process.poll() is not None)
    out, err = finished(process)
    assert out, err
    got, came, _ = map(eval, out.splitlines())
    assert got == epoch_indices(0, daemon.rules)
    assert set(came) == {error.split("(")[0]}


def test_no_class_is_made_while_a_batch_is_waited_for(fake: Fake) -> None:
    """What a handler raises while a class is made comes out as a RuntimeError."""
    code = """
        import sys
        made = []
        def calls(frame, what, arg):
            if what == "call" and frame.f_code.co_name == "make_dataclass":
                made.append(str(frame.f_locals["cls_name"]))
        with Loader({path!r}, "train", output="numpy") as loader:
            assert len(loader)
            sys.setprofile(calls)
            next(iter(loader))
            sys.setprofile(None)
        print(made)
    """
    out, err = finished(trainer(code.format(path=fake().path)))
    assert out == "[]\n", err


@contextlib.contextmanager
def alarm(handler: Callable[..., object], waits: Callable[[], object]) -> Iterator[None]:
    """This thread gets a signal, for which it has this handler, as soon as it waits."""
    old, thread = signal.signal(signal.SIGALRM, handler), threading.get_ident()

    def send() -> None:
        until("the wait", waits)
        signal.pthread_kill(thread, signal.SIGALRM)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        sender.join()
        signal.signal(signal.SIGALRM, old)


def test_a_handshake_that_is_interrupted_goes_on_and_asks_no_second_time(
    fake: Fake, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = fake(starts_for_ever=True)
    loader, wait, waits = load(), ControlSocket.wait, 0

    def counted(control: ControlSocket, timeout_s: float) -> bool:
        nonlocal waits
        waits += 1
        return wait(control, timeout_s)

    monkeypatch.setattr(ControlSocket, "wait", counted)
    for _ in range(3):
        before = waits
        with (
            alarm(_raise, lambda before=before: waits > before and daemon.hellos),
            pytest.raises(TimeoutError, match=r"^mine$"),
        ):
            len(loader)
    assert len(daemon.hellos) == 1


def _raise(*_: object) -> None:
    raise TimeoutError("mine")


def waits_for_a_batch(daemon: FakeDaemon) -> Callable[[], bool]:
    return lambda: any(said.waiting for said in daemon.rules.said)


IMPORTS = """
    import importlib.abc, os, signal, traceback
    torn = []
    def interrupt(number, frame):
        torn.append(any("torch" in f.filename for f in traceback.extract_stack(frame)))
        raise TimeoutError(number)
    class Interrupts(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name == "torch._C":
                os.kill(os.getpid(), signal.SIGUSR1)
                os.kill(os.getpid(), signal.SIGUSR2)
            return None
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, interrupt)
    sys.meta_path.insert(0, Interrupts())
    batches = iter(Loader({path!r}, "train"))
    try:
        next(batches)
    except TimeoutError as error:
        print("came out")
    print(len(torn), any(torn), signal.getsignal(signal.SIGUSR1) is interrupt)
    print(next(batches).indices.tolist())
"""


def test_signals_wait_until_torch_is_imported_and_none_is_lost(fake: Fake) -> None:
    daemon = fake()
    out, err = finished(trainer(IMPORTS.format(path=daemon.path)))
    assert out == f"came out\n2 False True\n{epoch_indices(0, daemon.rules)[:4]}\n", err


@pytest.fixture
def handlers() -> Iterator[list[int]]:
    """Raising ones for two signals; the list has what came."""
    came: list[int] = []

    def handler(number: int, _: object) -> None:
        came.append(number)
        raise TimeoutError(number)

    numbers = (signal.SIGUSR1, signal.SIGUSR2)
    old = [signal.signal(number, handler) for number in numbers]
    yield came
    for number, before in zip(numbers, old, strict=True):
        signal.signal(number, before)


def test_held_signals_all_run_after_the_block(handlers: list[int]) -> None:
    before = [signal.getsignal(number) for number in signal.valid_signals()]

    def hold() -> None:
        with Held():
            for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR1):
                signal.raise_signal(number)
            assert handlers == []

    with pytest.raises(TimeoutError):
        hold()
    assert sorted(handlers) == [signal.SIGUSR1, signal.SIGUSR1, signal.SIGUSR2]
    assert [signal.getsignal(number) for number in signal.valid_signals()] == before


def test_a_handler_that_is_set_while_signals_are_held_stays(handlers: list[int]) -> None:
    came: list[int] = []
    with Held():
        signal.raise_signal(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    assert (came, handlers) == ([signal.SIGUSR1], [])


def test_a_thread_holds_no_signals(handlers: list[int]) -> None:
    found: list[object] = []

    def look() -> None:
        with Held():
            found.append(signal.getsignal(signal.SIGUSR1))

    thread = threading.Thread(target=look)
    before = signal.getsignal(signal.SIGUSR1)
    thread.start()
    thread.join()
    assert found == [before]


@pytest.mark.parametrize("block", [Held, Unswallowed])
def test_a_signal_at_any_call_of_a_block_leaves_every_handler_as_it_was(
    handlers: list[int], block: type[Held]
) -> None:
    before = [signal.getsignal(number) for number in signal.valid_signals()]
    calls = 0

    def interrupt(frame: FrameType, what: str, _: object) -> None:
        nonlocal calls
        if what == "call" and frame.f_code.co_filename == signals.__file__:
            calls += 1
            if calls == last:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGUSR1)

    for last in range(1, 30):
        calls = 0
        sys.setprofile(interrupt)
        with contextlib.suppress(TimeoutError, Carried), block():
            pass
        sys.setprofile(None)
        assert [signal.getsignal(number) for number in signal.valid_signals()] == before, last
    assert 4 <= len(handlers) < 29  # and all calls have been met


def test_a_session_whose_end_is_interrupted_is_ended_all_the_same(
    fake: Fake, load: Load, handlers: list[int]
) -> None:
    daemon = fake(samples=100)
    batches = iter(load())
    got = next(batches).indices.tolist()
    threads = _threads()
    daemon.kill()
    caller = ""

    def interrupt(frame: FrameType, what: str, _: object) -> None:
        nonlocal caller
        if what == "call" and frame.f_code is Held.__enter__.__code__ and not handlers:
            caller = frame.f_back.f_code.co_name if frame.f_back else ""
            if caller == "drop":
                signal.raise_signal(signal.SIGUSR1)

    sys.setprofile(interrupt)
    try:
        while not handlers:
            with contextlib.suppress(TimeoutError):
                got += next(batches).indices.tolist()
    finally:
        sys.setprofile(None)
    got += [index for batch in batches for index in batch.indices.tolist()]
    assert (got, caller) == (epoch_indices(0, daemon.rules), "drop")
    assert _threads() <= threads  # none of the session that was dropped is left


def test_a_signal_while_a_session_ends_leaves_no_thread(fake: Fake, load: Load) -> None:
    daemon = fake()
    threads = _threads()
    old = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
    try:
        for _ in range(40):
            with load() as loader:
                assert len(loader) == 13
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert len(daemon.hellos) == 40
    assert _threads() == threads


def _threads() -> int:
    """Threads of this process, those of libraries too."""
    return len(os.listdir("/proc/self/task"))


def test_what_a_handler_raises_while_a_line_is_logged_comes_out_as_itself(
    handlers: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(logging.StreamHandler[io.StringIO]):
        def format(self, record: logging.LogRecord) -> str:
            signal.raise_signal(signal.SIGUSR1)
            return super().format(record)

    lines = Interrupted(io.StringIO())
    LOG.addHandler(lines)
    try:
        with pytest.raises(TimeoutError):
            warn("a batch is waited for")
    finally:
        LOG.removeHandler(lines)
    assert handlers == [signal.SIGUSR1]
    assert capsys.readouterr().err == ""  # logging would print what it swallows


# Closing


@pytest.mark.parametrize("when", ["it starts", "it makes nothing"])
def test_another_threads_close_ends_a_next_that_waits(fake: Fake, load: Load, when: str) -> None:
    daemon = fake(makes=False, starts_for_ever=when == "it starts")
    loader = load(timeout_s=1000, stall_warning_s=1000)
    raised: list[BaseException] = []

    def pull() -> None:
        try:
            next(iter(loader))
        except BaseException as error:  # noqa: BLE001 - it is looked at below
            raised.append(error)

    thread = threading.Thread(target=pull)
    thread.start()
    until("its hello", lambda: daemon.hellos)
    if when != "it starts":
        until("its wait", lambda: any(said.waiting for said in daemon.rules.said))
    loader.close()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert "is closed" in str(raised[0])
    assert type(raised[0]) is LoaderdError
    until("the session's end", lambda: not daemon.sessions)


def test_another_threads_close_ends_a_wait_for_nobody(tmp_path: Path) -> None:
    loader = Loader(tmp_path / "d.sock", "train", output="numpy", reconnect_s=1000)
    raised: list[str] = []

    def pull() -> None:
        try:
            len(loader)
        except LoaderdError as error:
            raised.append(str(error))

    thread = threading.Thread(target=pull)
    thread.start()
    until("its wait", lambda: loader._delivery._current._connector._handshake is not None)
    loader.close()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert "is closed" in raised[0]


def test_a_handler_may_close_the_loader_that_waits(fake: Fake, load: Load) -> None:
    daemon = fake(makes=False)
    loader = load(timeout_s=1000)
    with (
        alarm(lambda *_: loader.close(), waits_for_a_batch(daemon)),
        pytest.raises(LoaderdError, match="is closed"),
    ):
        next(iter(loader))
    until("the session's end", lambda: not daemon.sessions)
    assert loader._delivery._current.session is None


def test_a_handler_that_asks_for_a_batch_in_the_middle_of_next_is_told_so(
    fake: Fake, load: Load
) -> None:
    daemon = fake(makes=False)
    batches = iter(load())
    told: list[str] = []

    def handler(*_: object) -> None:
        daemon.rules.makes = True
        daemon.wake()
        with pytest.raises(LoaderdError) as caught:
            next(batches)
        told.append(str(caught.value))

    with alarm(handler, waits_for_a_batch(daemon)):
        assert next(batches).step == 0
    assert "by a signal handler" in told[0]


def test_a_state_saved_in_a_handler_before_the_daemon_has_answered_is_the_begin(
    fake: Fake, load: Load
) -> None:
    daemon = fake(starts_for_ever=True)
    loader = load()
    states = []

    def handler(*_: object) -> None:
        states.append(loader.state_dict())
        raise TimeoutError("mine")

    with alarm(handler, lambda: daemon.hellos), pytest.raises(TimeoutError):
        next(iter(loader))
    assert (states[0]["epoch"], states[0]["position"]) == (0, 0)
    assert len(daemon.hellos) == 1


def test_a_fork_in_mid_handshake_keeps_no_connection_in_the_child(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.settimeout(DEADLINE_S)
        listener.bind(str(tmp_path / "d.sock"))
        listener.listen()
        process = trainer(f"""
            import os, signal
            def interrupt(*_): raise TimeoutError
            signal.signal(signal.SIGALRM, interrupt)
            loader = Loader({str(tmp_path / "d.sock")!r}, "train", output="numpy")
            try:
                len(loader)
            except TimeoutError:
                pass
            def sockets():
                return sum("socket" in os.readlink(f"/proc/self/fd/{{fd}}") for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{{fd}}"))
            print(sockets(), flush=True)
            pid = os.fork()
            if pid == 0:
                os.write(1, f"{{sockets()}}\\n".encode())
                os._exit(0)
            os.waitpid(pid, 0)
        """)
        connected, _ = listener.accept()
        with connected:
            assert connected.recv(1 << 16)  # its hello, which it waits behind
            process.send_signal(signal.SIGALRM)
            out, err = finished(process)
    assert out == "1\n0\n", err
