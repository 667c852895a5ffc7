"""Lines that never block: the log on stderr, the quarantine file.

Bounded buffers; what doesn't fit is counted and said.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import select
import shutil
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from loaderd.system.event_limit import EventLimit
from loaderd.system.loop import Loop
from loaderd_wire.paths import OLDER
from loaderd_wire.plain_text import plain

MAX_BUFFER = 1 << 20  # bytes that may wait to be written
MAX_LINES = 4096  # lines that may wait for a file
MAX_LINE = 64 << 10  # bytes of one line
MAX_FILE = 16 << 20  # bytes of a file of ours; what was before lies beside it
LEVELS = {"debug": 0, "info": 1, "warning": 2, "error": 3}
RECENT = 50  # events that are kept for `status`
UNLIMITED = frozenset({"output"})  # what user code prints is not ours to cut
# what is told again and again, and says how it is rather than what has happened
PASSING = frozenset({"not_ready", "output", "slow_turn", "verdict"})
PLAIN = re.compile(r"[\w./:@%+,-]+")  # a value that needs no quotes
LIKE_OURS = re.compile(r"\d{4}-\d\d-\d\dT")  # how each line of ours begins
LAST_WORDS_S = 1.0  # how long `close` waits for a slow reader


class Sink(Protocol):
    """Where lines go. `write` never blocks."""

    def write(self, line: bytes) -> None:
        """Take one line, with its newline; it may be dropped, and then a later line says so."""
        ...

    def close(self) -> None:
        """Wait at most LAST_WORDS_S for what is still to be written."""
        ...


class PipeSink:
    """A pipe, terminal or socket, written as far as it takes at once.

    The rest waits until the loop sees it writable again.
    """

    def __init__(self, fd: int, loop: Loop | None) -> None:
        self._loop = loop
        self._buffer = bytearray()
        self._dropped = 0
        self._watching = False
        # A file description of our own: O_NONBLOCK on the inherited one would also hold for whoever
        # else has it.
        try:
            self._fd = os.open(
                f"/proc/self/fd/{fd}",
                os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_APPEND,
            )
        except OSError:
            self._fd = os.dup(fd)

    def write(self, line: bytes) -> None:
        """Take a line, or drop it where more than MAX_BUFFER bytes would wait."""
        if len(self._buffer) + len(line) > MAX_BUFFER:
            self._dropped += 1
            return
        if self._dropped and len(self._buffer) < MAX_BUFFER // 2:
            self._buffer += b"%d lines dropped: nobody reads the log\n" % self._dropped
            self._dropped = 0
        self._buffer += line
        if not self._watching:
            self._flush()

    def close(self) -> None:
        """Close our description; what its reader does not take within LAST_WORDS_S is lost."""
        end_s = time.monotonic() + LAST_WORDS_S
        self._flush()
        while self._buffer and (left_s := end_s - time.monotonic()) > 0:
            select.select([], [self._fd], [], left_s)
            self._flush()
        self._watch(False)
        os.close(self._fd)

    def _flush(self) -> None:
        while self._buffer:
            try:
                # One page at most when poll says yes: that doesn't block even where O_NONBLOCK
                # could not be had.
                if not select.select([], [self._fd], [], 0)[1]:
                    break
                with memoryview(self._buffer) as view:
                    size = os.write(self._fd, view[: select.PIPE_BUF])
            except BlockingIOError:
                break
            except OSError:
                self._buffer.clear()  # its reader is gone for good
                break
            del self._buffer[:size]
        self._watch(bool(self._buffer))

    def _watch(self, on: bool) -> None:
        if self._loop is None or on == self._watching:
            return
        self._watching = on
        if on:
            self._loop.watch(self._fd, self._flush, read=False, write=True)
        else:
            self._loop.unwatch(self._fd)


class FileSink:
    """A regular file, written by a thread.

    A file on a dead NFS blocks whoever writes to it, whatever its flags are.

    open_file() -> fd is called in the thread at the first line. full(fd) is called there after each
    write; True: this file is closed, and the next line calls open_file again.
    """

    def __init__(
        self, open_file: Callable[[], int], full: Callable[[int], bool] = lambda fd: False
    ) -> None:
        self._open_file = open_file
        self._full = full
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        # only the loop's thread adds, only the writer subtracts; read as an estimate
        self._waiting = 0
        self._written = 0
        self._dropped = 0
        self.trouble = ""  # why the latest line could not be written
        self._thread: threading.Thread | None = None

    def write(self, line: bytes) -> None:
        """Take a line, or drop it where MAX_LINES wait; the first one starts the thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="loaderd-log", daemon=True)
            self._thread.start()
        if self._waiting - self._written >= MAX_LINES:
            self._dropped += 1
            return
        if self._dropped:
            line = b"%d lines dropped: the file is too slow\n" % self._dropped + line
            self._dropped = 0
        self._waiting += 1
        self._lines.put(line)

    def close(self) -> None:
        """End the thread; a file that takes longer than LAST_WORDS_S is left to it. Idempotent."""
        if self._thread is not None:
            self._lines.put(None)
            self._thread.join(LAST_WORDS_S)
            self._thread = None

    def _run(self) -> None:
        fd = -1
        try:
            while (line := self._lines.get()) is not None:
                self._written += 1
                try:
                    if fd < 0:
                        fd = self._open_file()
                    # what failed may have left half a line
                    _write_all(fd, b"\n" + line if self.trouble else line)
                    self.trouble = ""
                    if self._full(fd):
                        fd, full = -1, fd
                        os.close(full)
                except OSError as error:  # disk full, folder gone: the next line tries again
                    self.trouble = error.strerror or str(error)
        finally:
            if fd >= 0:
                os.close(fd)


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """Something that has happened, as the log told it.

    Attributes:
        time: When, in seconds since 1970.
        level: "info", "warning" or "error".
        event: Its name, such as "worker_ended".
        text: The first line of what was logged.
    """

    time: float
    level: str
    event: str
    text: str


class WriteLog(Protocol):
    """Takes lines for the log."""

    def __call__(self, level: str, event: str, text: str, /, **facts: Any) -> object:
        """Log one line.

        Args:
            level: One of LEVELS.
            event: Name of what has happened, the same at every time.
            text: For people, with everything in it.
            facts: Names and values of what it is about, for programs.
        """
        ...


class Log:
    """log(level, event, text, **facts): one line, as text or as JSON.

    Lines below `level` are not written, and of one event no more than EventLimit lets pass. `close`
    it.

    Attributes:
        errors: The texts of the latest errors.
        recent: What has happened lately, newest last.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        form: str = "text",
        level: str = "info",
        wall_s: Callable[[], float] = time.time,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sink = sink
        self._now_s = now_s
        self._limit = EventLimit()
        self._json = form == "json"
        self._level = LEVELS[level]
        self._wall_s = wall_s
        self.errors: deque[str] = deque(maxlen=20)
        self.recent: deque[LoggedEvent] = deque(maxlen=RECENT)

    def __call__(self, level: str, event: str, text: str, /, **facts: Any) -> None:
        """Write the line unless its level is too low; what `status` shows is kept all the same."""
        if LEVELS[level] >= LEVELS["error"]:
            self.errors.append(text[:2000])
        if LEVELS[level] > 0 and event not in PASSING:
            first = text.split("\n", 1)[0][:500]
            self.recent.append(LoggedEvent(round(self._wall_s(), 3), level, event, first))
        if LEVELS[level] >= self._level:
            now_s = self._now_s()
            self._tell_left_out(now_s)
            if event in UNLIMITED or self._limit.passes(event, now_s):
                self.say(level, event, text, facts)

    def say(self, level: str, event: str, text: str, facts: Mapping[str, Any]) -> None:
        """Write the line whatever its level."""
        now_s = self._wall_s()
        second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_s))
        stamp = f"{second}.{int(now_s * 1e3) % 1000:03d}Z"
        if self._json:
            known = {"time": stamp, "level": level, "event": event, "text": text}
            line = json.dumps(known | dict(facts), default=str)
        else:
            more = "".join(f" {name}={_value(value)}" for name, value in facts.items())
            first, *rest = plain(text).split("\n")  # what follows is a traceback
            rest = [f"  {each}" if LIKE_OURS.match(each) else each for each in rest]
            line = "\n".join([f"{stamp} {level:<7} {first} event={event}{more}", *rest])
        data = line.encode("utf-8", "backslashreplace")
        if len(data) > MAX_LINE:
            data = data[:MAX_LINE] + b" ..."
        self._sink.write(data + b"\n")

    def close(self) -> None:
        """Close the sink; no line may follow."""
        self._tell_left_out(float("inf"))
        self._sink.close()

    def _tell_left_out(self, now_s: float) -> None:
        for event, count in self._limit.over(now_s):
            text = f"{count} more lines of event {event} were left out"
            self.say("warning", "lines_left_out", text, {"of": event, "count": count})


def _value(value: Any) -> str:
    """As logfmt has it: in quotes where there is anything but plain characters."""
    text = str(value)
    return text if PLAIN.fullmatch(text) else json.dumps(text)


class QuarantineLog:
    """Samples set aside, one JSON object a line, appended to a file.

    The file exists from the first one on. Beyond max_bytes it becomes <path>.1 and a new one
    begins.

    Attributes:
        count: Samples so far.
        tail: The latest few, newest last.
    """

    def __init__(
        self, path: str, *, max_bytes: int = MAX_FILE, wall_s: Callable[[], float] = time.time
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._wall_s = wall_s
        self._sink = FileSink(self._open, self._full)
        self._told = ""
        self.count = 0
        self.tail: deque[dict[str, Any]] = deque(maxlen=20)

    def add(self, facts: Mapping[str, Any]) -> None:
        """Append one sample's facts, with the time in seconds since 1970."""
        entry = {"time": round(self._wall_s(), 3), **facts}
        self.count += 1
        self.tail.append(entry)
        self._sink.write(json.dumps(entry, default=str).encode() + b"\n")

    def trouble(self) -> str:
        """Why lines are being lost, once for each reason; "" if they are not."""
        found = self._sink.trouble
        new, self._told = found != self._told, found
        return f"{self._path}: {found}; bad samples are not recorded there" if found and new else ""

    def close(self) -> None:
        """Close the file; no sample may follow."""
        self._sink.close()

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _full(self, fd: int) -> bool:
        found = os.fstat(fd)
        if found.st_nlink and found.st_size < self._max_bytes:
            return False
        try:
            if found.st_nlink:  # else somebody has removed it
                os.replace(self._path, self._path + OLDER)
        except OSError:
            os.ftruncate(fd, 0)  # without a place for the older ones the latest are kept
            return False
        return True


def _cut(fd: int, path: str, max_bytes: int) -> bool:
    """Move what the log at `path` has into <path>.1 once it is full.

    Others write at its end too: it must stay the same file.
    """
    if os.fstat(fd).st_size >= max_bytes:
        # without a place for the older lines the latest are kept
        with contextlib.suppress(OSError), open(path, "rb") as log:
            if os.path.samestat(os.fstat(fd), os.fstat(log.fileno())):
                with open(
                    path + OLDER,
                    "wb",
                    opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600),
                ) as older:
                    shutil.copyfileobj(log, older)
        os.ftruncate(fd, 0)
    return False


def stderr_sink(
    loop: Loop | None, fd: int = 2, *, path: str = "", max_bytes: int = MAX_FILE
) -> Sink:
    """The sink for an inherited descriptor, by what kind of file it is.

    Lines for a closed one go nowhere.

    Args:
        loop: Calls whatever is here.
        fd: The descriptor.
        path: Of a log file of our own, opened to append, which is kept at about max_bytes, with as
            much of older lines beside it; "": the file is the user's, who may do with it what he
            likes.
        max_bytes: For a file of our own.
    """
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return FileSink(lambda: os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
    if stat.S_ISREG(mode):
        return FileSink(
            lambda: os.dup(fd), (lambda fd: _cut(fd, path, max_bytes)) if path else lambda fd: False
        )
    return PipeSink(fd, loop)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
