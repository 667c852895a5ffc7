"""Starts the daemon of a config where none is running, for Loader("config.toml").

`python -m loaderd serve CONFIG --embedded --stream=NAME --ready-fd N` says "ready" on the pipe N
once it serves. Else it says the lines of the error that it ends with, the first of which may begin
with the name of its class and a colon. Eight ranks may do so at once: the daemon's file lock
decides, and whoever is told "already running" just connects.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import select
import signal
import socket as sockets
import stat
import subprocess
import sys

from loaderd_client.endpoint import EXTRA
from loaderd_wire.errors import CLASSES, ConfigError, LoaderdError, StreamFailedError, by_handler
from loaderd_wire.paths import LOG, LOG_BEGINS, run_folders

ROUTINE = re.compile(r"\S+Z (?:info|debug) ")  # how such lines of the log begin
PID = re.compile(rf"{LOG_BEGINS}: pid (\d+)")
OF_STREAM = re.compile(r" event=.* stream=(\S+)")
REFUSED = " event=client_refused"
STAMP = re.compile(r"\S+Z \w+ +")
READY = b"ready"
TAKEN = b"already running"  # how the error of a daemon that did not get the lock begins
PIPE_BYTES = 64 << 10
MOST = 1 << 20  # bytes of error lines that are kept
QUOTED_LINES = 20
EXPLAINING_LINES = 5
END_S = 10.0

# The daemon is nobody's child: whoever started it need not wait for its end, and leaves no zombie
# if it does not. Its parent is there only while it starts, for only a parent hears which signal has
# ended it; that parent goes when its stdin is closed. An interrupt is the trainer's alone, from
# their first moment on.
PARENT = """import os, select, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
pid = os.fork()
if not pid:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    os.execv(sys.argv[1], sys.argv[1:])
os.close(int(sys.argv[-1]))
poll = select.poll()
poll.register(0, select.POLLIN)
poll.register(os.pidfd_open(pid), select.POLLIN)
poll.poll()
ended, status = os.waitpid(pid, os.WNOHANG)
if ended:
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


class EmbeddedStart:
    """A daemon on its way. After `close` it lives on.

    Attributes:
        signal: Name of the signal that has ended it, known after `error`; "" if none has.
        serves: It is ready, or has left because another one serves.
        ended: It has ended and does not serve.
    """

    def __init__(self, config: str, socket: str, stream: str) -> None:
        """Start it.

        Args:
            config: Path of the config.
            socket: Path of its socket.
            stream: What it opens at its start, and without which it ends. The others are opened
                when somebody asks for them.

        Raises:
            ConfigError: The daemon's extra is not installed, or the socket's folder cannot be made.
            StreamFailedError: No process could be started.
        """
        if importlib.util.find_spec("loaderd") is None or importlib.util.find_spec("lmdb") is None:
            raise ConfigError(
                f"{config}: no daemon is running, and starting one needs its extra: {EXTRA}"
            )
        self._log = socket + LOG
        self._owner = os.getpid()
        self.signal = ""  # that has ended it, known after `error`
        self._said = b""
        self._log_begin = 0
        self.serves = False  # or has left because another one does
        self.ended = False
        # a pipe that whoever waits on it can be woken from
        self._pipe, theirs = sockets.socketpair()
        try:
            self._parent = self._start(config, socket, stream, theirs.fileno())
        except BaseException:
            self._pipe.close()
            raise
        finally:
            theirs.close()

    def _start(self, config: str, socket: str, stream: str, write: int) -> subprocess.Popen[bytes]:
        serve = ["serve", config, "--embedded", f"--stream={stream}", "--ready-fd", str(write)]
        command = [sys.executable, "-ISc", PARENT, sys.executable, "-m", "loaderd", *serve]
        try:
            folder = os.path.dirname(socket)
            if folder in run_folders(os.environ, os.getuid()):
                _make_folder(folder)
            log = os.open(
                self._log,
                os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW,
                0o600,
            )
        except OSError as error:
            raise ConfigError(
                f"{config}: cannot write {error.filename}: {error.strerror}; set [daemon] socket "
                "to another folder"
            ) from None
        try:
            self._log_begin = os.fstat(log).st_size
            pipe = subprocess.PIPE
            return subprocess.Popen(
                command,
                bufsize=0,
                stdin=pipe,
                stdout=pipe,
                stderr=log,
                pass_fds=(write,),
                start_new_session=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise StreamFailedError(f"{config}: cannot start {sys.executable}: {error}") from None
        finally:
            os.close(log)

    def close(self) -> None:
        """Stop watching it. It lives on."""
        self._pipe.close()
        if os.getpid() == self._owner:  # not in a forked child
            self._parent.kill()
            self._parent.wait()
        for pipe in (self._parent.stdin, self._parent.stdout):
            if pipe is not None:
                pipe.close()

    def shut(self) -> None:
        """Wake whoever waits for it, in any thread."""
        with contextlib.suppress(OSError):
            self._pipe.shutdown(sockets.SHUT_RD)

    @property
    def newest(self) -> str:
        """What it has logged last, without the time; "" if that is nothing."""
        lines = [line for line in _lines(self._log, self._log_begin, 1) if LOG_BEGINS not in line]
        return STAMP.sub("", lines[0], count=1) if lines else ""

    def wait(self, timeout_s: float) -> None:
        """Sleep until it says something, or for `timeout_s` seconds."""
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        poll.poll(timeout_s * 1000)

    def hear(self) -> None:
        """Take in what it has said. Afterwards `serves` or `ended` may be true."""
        try:
            data = self._pipe.recv(PIPE_BYTES, sockets.MSG_DONTWAIT)
        except BlockingIOError:
            return
        self._said = (self._said + data)[:MOST]
        self.serves = self._said.startswith(READY) or (not data and self._said.startswith(TAKEN))
        self.ended = not data and not self.serves

    def error(self) -> LoaderdError:
        """What it has ended with. A daemon that has said why it ends is gone when this returns."""
        status = self._parent.stdout
        assert status is not None
        poll = select.poll()
        poll.register(status, select.POLLIN)
        code = status.read(PIPE_BYTES) if poll.poll(END_S * 1000) else b"0"
        number = int(code) if code else self._parent_status()
        if number < 0 and not self._said:
            self.signal = _signal_name(-number)
        return self._error()

    def _parent_status(self) -> int:
        """Of a parent that ends without a word; negative where a signal has ended it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._parent.wait(END_S)
        return 0

    def _error(self) -> LoaderdError:
        text = self._said.decode(errors="replace").strip()
        name, colon, rest = text.partition(": ")
        if colon and name in CLASSES:
            text, cls = rest, CLASSES[name]
        else:
            cls = ConfigError if EXTRA in text else StreamFailedError
        how = f"was ended by {self.signal}" if self.signal else "ended"
        text = text or f"the embedded daemon {how} before it was ready"
        return cls(_quoting(text, self._log, _lines(self._log, self._log_begin, QUOTED_LINES)))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def explained(error: LoaderdError, socket: str, stream: str, life: str) -> LoaderdError:
    """The same error with the last lines of the newest embedded daemon's log.

    Lines that are about another stream are left out, and those about clients that were refused:
    they were told.

    Args:
        error: The error. It is returned itself where the log says nothing new.
        socket: Path of the daemon's socket.
        stream: Name of the stream; "" for the only one.
        life: As `last_words`.
    """
    text = str(error)
    log = socket + LOG
    if log in text:
        return error
    lines = [
        line
        for line in _newest(log, life)
        if REFUSED not in line
        and not (stream and (named := OF_STREAM.search(line)) and named[1] != stream)
    ]
    quoting = _quoting(text, log, lines[-EXPLAINING_LINES:])
    return error if quoting == text else type(error)(quoting)


def last_words(socket: str, life: str) -> str:
    """The last line of the newest embedded daemon's log, without its time.

    Args:
        socket: Path of the daemon's socket.
        life: Which daemon it must be of, as its Welcome said; "" where that is not known.

    Returns:
        The line; "" if it is routine, or if there is none.
    """
    lines = _newest(socket + LOG, life)
    return STAMP.sub("", lines[-1], count=1) if lines and not ROUTINE.match(lines[-1]) else ""


def _newest(log: str, life: str) -> list[str]:
    """The lines that the newest daemon has written; none if that is not the one of this life.

    Earlier daemons may have had other reasons to complain, and one that `loaderd serve` has started
    does not write here.
    """
    lines = _lines(log, 0, PIPE_BYTES)
    begin = max(
        (number for number, line in enumerate(lines) if ROUTINE.match(line) and LOG_BEGINS in line),
        default=-1,
    )
    pid = PID.search(lines[begin]) if begin >= 0 else None
    own = life.partition("-")[0]
    if pid and own.isdigit() and own != pid[1]:
        return []
    return lines[begin + 1 :]


def _quoting(text: str, log: str, lines: list[str]) -> str:
    """The text, and what the log's lines say that it does not say itself.

    Routine lines are left out.
    """
    said = [line for line in text.splitlines() if line.strip()]
    quoted = [
        line
        for line in lines
        if line.strip() and not ROUTINE.match(line) and not any(word in line for word in said)
    ]
    return "\n".join([text, f"{log} says:", *quoted] if quoted else [text])


def _lines(log: str, begin: int, most: int) -> list[str]:
    """The last lines of the log, from the byte `begin` on."""
    try:
        with open(log, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            # 0: it was full, and has been begun anew
            file.seek(max(begin if begin <= size else 0, size - PIPE_BYTES))
            return file.read(PIPE_BYTES).decode(errors="replace").strip().splitlines()[-most:]
    except OSError as error:
        if by_handler(error):
            raise
        return []


def _make_folder(folder: str) -> None:
    """The folder of default sockets, ours alone.

    Raises ConfigError where it is somebody else's, OSError where it cannot be made.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(
            f"{folder} must be a folder of uid {os.getuid()} with mode 0700, or set [daemon] "
            "socket to another place"
        )
