"""Finding a daemon and asking it, against sockets that a test opens."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loaderd.cli import control_client
from loaderd.cli.control_client import ControlConnection, target
from loaderd.cli.exit_codes import FAULT, NO_START, USAGE, CommandError
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_wire import codec, paths
from loaderd_wire.messages import PROTOCOL, Ask, Report, Starting

Listen = Callable[[Path], socket.socket]


@pytest.fixture
def listen() -> Iterator[Listen]:
    made: list[socket.socket] = []

    def begin(path: Path) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        made.append(sock)
        sock.settimeout(DEADLINE_S)
        sock.bind(str(path))
        sock.listen()
        return sock

    yield begin
    for sock in made:
        sock.close()


@pytest.fixture
def run_folder(run_base: Path) -> Path:
    """Where the daemons of this user have their sockets."""
    folder = Path(paths.run_folder(os.environ, os.getuid()))
    folder.mkdir(mode=0o700)
    return folder


def test_without_a_name_the_only_live_daemon_is_meant(run_folder: Path, listen: Listen) -> None:
    listen(run_folder / "left.sock").close()  # a socket that nobody listens on any more
    listen(run_folder / "a.other")
    listen(run_folder / "live.sock")
    assert target(None) == str(run_folder / "live.sock")


def test_without_a_name_and_without_a_daemon_the_folder_is_named(run_folder: Path) -> None:
    (run_folder / "left.sock").touch()
    with pytest.raises(CommandError, match=f"no daemon of this user .* {run_folder}") as caught:
        target(None)
    assert caught.value.code == NO_START
    (run_folder / "left.sock").unlink()
    run_folder.rmdir()
    with pytest.raises(CommandError, match="give a SOCKET or a CONFIG"):
        target(None)


def test_a_daemon_whose_socket_did_not_fit_into_the_first_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listen: Listen
) -> None:
    monkeypatch.setattr(paths, "run_folders", lambda env, uid: ("/nowhere", str(tmp_path)))
    listen(tmp_path / "live.sock")
    assert target(None) == str(tmp_path / "live.sock")


def test_without_a_name_several_daemons_are_listed(run_folder: Path, listen: Listen) -> None:
    for name in ("b.sock", "a.sock"):
        listen(run_folder / name)
    with pytest.raises(CommandError) as caught:
        target(None)
    assert caught.value.code == USAGE
    assert str(caught.value).splitlines()[1:] == [
        f"  {run_folder}/a.sock",
        f"  {run_folder}/b.sock",
    ]


def test_what_is_not_there_is_a_socket_unless_its_name_says_that_it_is_a_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert target("d.sock") == str(tmp_path / "d.sock")
    with pytest.raises(CommandError, match=r"config\.toml: No such file or directory") as caught:
        target("config.toml")
    assert caught.value.code == USAGE
    with pytest.raises(CommandError, match="null byte"):
        target("a\0.toml")


def test_what_a_daemon_answers_comes_message_by_message_until_it_hangs_up(
    tmp_path: Path, listen: Listen
) -> None:
    listener, asked = listen(tmp_path / "d"), bytearray()
    answers = [Starting("soon"), Report("{}")]

    def answer() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.settimeout(DEADLINE_S)
            while (found := codec.unframe(asked)) is None:
                asked.extend(peer.recv(1 << 16))
            assert found == Ask(PROTOCOL, "status")
            peer.sendall(b"".join(map(codec.frame, answers)))

    thread = threading.Thread(target=answer)
    thread.start()
    with ControlConnection(str(tmp_path / "d"), "status") as line:
        assert list(line.messages()) == answers
    thread.join()


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", FAULT, "not a loaderd of this version"),
        (b"", FAULT, "has not answered for 0 s"),
    ],
)
def test_what_answers_nothing_or_something_else_is_no_daemon(
    tmp_path: Path, listen: Listen, answer: bytes, code: int, words: str
) -> None:
    listener = listen(tmp_path / "d")
    with ControlConnection(str(tmp_path / "d"), "status") as line:
        peer, _ = listener.accept()
        with peer:
            peer.sendall(answer)
            line.patience_s = 0.01
            with pytest.raises(CommandError, match=words) as caught:
                list(line.messages())
    assert caught.value.code == code
    assert str(caught.value).count(str(tmp_path)) == 1


def test_a_daemon_that_resets_the_connection_has_answered_all_it_will(
    tmp_path: Path, listen: Listen
) -> None:
    listener = listen(tmp_path / "d")
    with ControlConnection(str(tmp_path / "d"), "status") as line:
        listener.accept()[0].close()
        assert list(line.messages()) == []


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "no daemon is running at .*\nstart one"),
        (lambda path: path.touch(), "no daemon is running at"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
    ],
)
def test_a_socket_that_cannot_be_connected_to_says_why(
    tmp_path: Path, make: Callable[[Path], object], words: str
) -> None:
    path = tmp_path / "d"
    make(path)
    with pytest.raises(CommandError, match=words) as caught:
        ControlConnection(str(path), "status")
    assert caught.value.code == NO_START
    assert str(path) in str(caught.value)


def test_who_wants_to_end_a_daemon_is_not_told_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"no daemon is running at .*\nthere is nothing to end$"):
        ControlConnection(str(tmp_path / "d"), "drain")


def test_an_answer_that_is_not_understood_is_another_versions() -> None:
    def parse(body: str) -> str:
        raise ValueError(f"{body} is unknown")

    with pytest.raises(CommandError) as caught:
        control_client.parsed("/d.sock", parse, "a word")
    assert caught.value.code == FAULT
    assert str(caught.value) == (
        "/d.sock: the process there is not a loaderd of this version: a word is unknown"
    )
