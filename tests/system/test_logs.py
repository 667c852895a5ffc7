from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from loaderd.system import logs
from loaderd.system.event_limit import BURST, WINDOW_S
from loaderd.system.logs import FileSink, Log, PipeSink, QuarantineLog, stderr_sink
from loaderd.system.loop import Loop
from loaderd_testing.deadlines import DEADLINE_S

Until = Callable[[Callable[[], object]], None]


class Kept:
    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def write(self, line: bytes) -> None:
        self.lines.append(line)

    def close(self) -> None: ...


def test_a_line_as_text_and_as_json() -> None:
    sink = Kept()
    Log(sink, wall_s=lambda: 0.25)("warning", "late", "it is late", worker=3, cause="exit code 3")
    Log(sink, form="json", wall_s=lambda: 0.25)("error", "fault", "two\nlines", worker=3)
    assert sink.lines[0] == (
        b'1970-01-01T00:00:00.250Z warning it is late event=late worker=3 cause="exit code 3"\n'
    )
    assert json.loads(sink.lines[1]) == {
        "time": "1970-01-01T00:00:00.250Z",
        "level": "error",
        "event": "fault",
        "text": "two\nlines",
        "worker": 3,
    }
    assert sink.lines[1].count(b"\n") == 1


def test_what_follows_a_first_line_stays_as_it_is() -> None:
    sink = Kept()
    Log(sink, wall_s=lambda: 0.25)("error", "fault", "it failed:\n  File 1\nOSError: no")
    _, *rest = sink.lines[0].decode().splitlines()
    assert sink.lines[0].startswith(b"1970-01-01T00:00:00.250Z error   it failed: event=fault\n")
    assert rest == ["  File 1", "OSError: no"]


def test_text_of_others_forges_no_line_and_moves_no_cursor() -> None:
    sink = Kept()
    log = Log(sink, wall_s=lambda: 0.0)
    text = "it says: \x1b[2Jno\r\n1970-01-01T00:00:00.000Z error   all is lost event=fault\nlast"
    log("warning", "bad_sample", text, key="a\nb")
    assert sink.lines == [
        b'1970-01-01T00:00:00.000Z warning it says: \\x1b[2Jno\\r event=bad_sample key="a\\nb"\n'
        b"  1970-01-01T00:00:00.000Z error   all is lost event=fault\nlast\n"
    ]


def test_lines_below_the_level_are_not_written() -> None:
    sink = Kept()
    log = Log(sink, level="warning")
    log("info", "begun", "no")
    log("error", "fault", "yes")
    log.say("info", "ready", "in any case", {})
    assert len(sink.lines) == 2
    assert list(log.errors) == ["yes"]


def test_what_has_happened_lately_is_kept_whatever_is_written() -> None:
    log = Log(Kept(), level="error", wall_s=lambda: 0.25)
    log("debug", "probe_ended", "nobody minds")
    log("info", "verdict", "it is as it was")
    log("warning", "worker_ended", "worker 3 has ended: " + "x" * 600 + "\nSTACK")
    (kept,) = log.recent
    assert (kept.time, kept.level, kept.event) == (0.25, "warning", "worker_ended")
    assert kept.text.endswith("x")
    assert len(kept.text) == 500
    for k in range(100):
        log("info", "session_began", str(k))
    assert [kept.text for kept in log.recent] == [str(k) for k in range(50, 100)]


def test_a_flood_of_one_event_is_counted_instead_of_written() -> None:
    sink, now_s = Kept(), [0.0]
    log = Log(sink, now_s=lambda: now_s[0])
    for k in range(BURST + 3):
        log("warning", "bad_sample", str(k))
        log("info", "output", "what user code prints is not cut")
    assert len(sink.lines) == 2 * BURST + 3
    log("info", "session_began", "others pass")
    now_s[0] = WINDOW_S
    log("warning", "bad_sample", "again")
    told, again = sink.lines[-2:]
    assert b"3 more lines of event bad_sample were left out event=lines_left_out" in told
    assert b" again event=bad_sample" in again
    assert len(log.recent) == 50  # `status` is told of all
    for k in range(BURST + 1):
        log("warning", "bad_sample", str(k))
    log.close()
    assert b"2 more lines of event bad_sample" in sink.lines[-1]


def test_a_line_without_end_is_cut() -> None:
    sink = Kept()
    Log(sink)("info", "output", "x" * 10_000_000)
    assert len(sink.lines[0]) < 70_000


def test_a_reader_that_does_not_read_blocks_nobody_and_is_told_what_it_missed(
    loop: Loop, until: Until
) -> None:
    read, write = os.pipe()
    sink = PipeSink(write, loop)
    for k in range(3000):
        sink.write(b"%06d " % k + b"x" * 1000 + b"\n")
    got = bytearray()

    def more() -> None:
        got.extend(os.read(read, 1 << 16))

    loop.watch(read, more)
    until(lambda: len(got) > logs.MAX_BUFFER and not sink._watching)
    sink.write(b"the end\n")
    until(lambda: got.endswith(b"the end\n"))
    loop.unwatch(read)
    sink.close()
    os.close(read)
    assert os.get_blocking(write)  # the description that others have too
    os.close(write)
    lines = got.decode().splitlines()
    dropped = [line for line in lines if "dropped" in line]
    assert len(dropped) == 1
    assert int(dropped[0].split()[0]) + sum(line[:6].isdigit() for line in lines) == 3000


def test_a_reader_that_is_gone_harms_nobody(loop: Loop) -> None:
    read, write = os.pipe()
    os.close(read)
    sink = PipeSink(write, loop)
    os.close(write)
    for _ in range(10):
        sink.write(b"nobody\n")
        loop.turn(0)
    assert not sink._watching
    sink.close()


def test_what_waits_at_the_end_is_still_written(loop: Loop) -> None:
    read, write = os.pipe()
    sink = PipeSink(write, loop)
    for _ in range(100):
        sink.write(b"x" * 999 + b"\n")
    got = bytearray()

    def drink() -> None:
        while data := os.read(read, 1 << 16):
            got.extend(data)

    reader = threading.Thread(target=drink)
    reader.start()
    os.close(write)
    sink.close()
    reader.join()
    os.close(read)
    assert len(got) == 100_000


def test_a_regular_file_is_written_and_has_all_lines_at_the_end(tmp_path: Path, loop: Loop) -> None:
    path = tmp_path / "log"
    with path.open("ab") as file:
        sink = stderr_sink(loop, file.fileno())
        assert isinstance(sink, FileSink)
        for k in range(100):
            sink.write(b"%d\n" % k)
        sink.close()
    assert path.read_text().split() == [str(k) for k in range(100)]


def test_a_file_that_hangs_blocks_nobody_and_drops_are_counted(
    until: Until, tmp_path: Path
) -> None:
    gate = threading.Event()
    path = tmp_path / "log"

    def slow_open() -> int:
        gate.wait(DEADLINE_S)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    sink = FileSink(slow_open)
    for k in range(logs.MAX_LINES + 500):
        sink.write(b"%d\n" % k)
    gate.set()
    until(lambda: sink._written >= sink._waiting)
    sink.write(b"end\n")
    sink.close()
    lines = path.read_text().splitlines()
    dropped = [int(line.split()[0]) for line in lines if "dropped" in line]
    assert len(dropped) == 1
    assert dropped[0] + len(lines) - 2 == logs.MAX_LINES + 500


def test_the_quarantine_file_exists_only_once_there_is_a_bad_sample(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    nothing = QuarantineLog(str(path))
    nothing.close()
    assert not path.exists()
    quarantine = QuarantineLog(str(path), wall_s=lambda: 1.5)
    quarantine.add({"stream": "train", "index": 42, "key": "a\nb"})
    quarantine.close()
    assert json.loads(path.read_text()) == {
        "time": 1.5,
        "stream": "train",
        "index": 42,
        "key": "a\nb",
    }
    assert path.stat().st_mode & 0o777 == 0o600
    assert quarantine.count == 1


def test_the_quarantine_file_is_bounded_and_keeps_the_latest(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    quarantine = QuarantineLog(str(path), max_bytes=10_000)
    for k in range(1000):
        quarantine.add({"index": k})
    quarantine.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.jsonl", "bad.jsonl.1"]
    assert all(p.stat().st_size < 11_000 for p in tmp_path.iterdir())
    kept = [
        json.loads(line)["index"]
        for p in (path.with_suffix(".jsonl.1"), path)
        for line in p.read_text().splitlines()
    ]
    assert kept == list(range(kept[0], 1000))
    assert [entry["index"] for entry in quarantine.tail] == list(range(980, 1000))


@pytest.mark.parametrize("where", ["nowhere/bad.jsonl"])
def test_a_quarantine_that_cannot_be_written_harms_nobody(tmp_path: Path, where: str) -> None:
    quarantine = QuarantineLog(str(tmp_path / where))
    quarantine.add({"index": 1})
    quarantine.close()
    assert quarantine.count == 1
    assert "No such file" in quarantine.trouble()
    assert quarantine.trouble() == ""  # said once
    (tmp_path / "nowhere").mkdir()
    quarantine.add({"index": 2})
    quarantine.close()
    assert [
        json.loads(line)["index"] for line in (tmp_path / where).read_text().splitlines() if line
    ] == [2]


def test_a_quarantine_file_that_somebody_removes_is_made_anew(tmp_path: Path, until: Until) -> None:
    path = tmp_path / "bad.jsonl"
    quarantine = QuarantineLog(str(path), max_bytes=1000)
    quarantine.add({"index": 1})
    until(path.exists)
    path.unlink()
    for k in range(2, 100):  # the first of them may still go into the file that was removed
        quarantine.add({"index": k})
    quarantine.close()
    assert quarantine.trouble() == ""
    assert json.loads(path.read_text().splitlines()[-1])["index"] == 99


def test_a_quarantine_file_that_cannot_be_rotated_stays_bounded_and_no_other_file_is_written(
    tmp_path: Path, until: Until
) -> None:
    path = tmp_path / "bad.jsonl"
    (tmp_path / "bad.jsonl.1").mkdir()  # nothing can be put in its place
    quarantine = QuarantineLog(str(path), max_bytes=1000)
    quarantine.add({"index": 0})
    until(path.exists)
    with (tmp_path / "other").open("wb"):
        for k in range(1, 200):
            quarantine.add({"index": k})
        quarantine.close()
    assert (tmp_path / "other").read_bytes() == b""
    assert path.stat().st_size < 1100
    assert json.loads(path.read_text().splitlines()[-1])["index"] == 199


def test_a_log_of_ours_is_bounded_and_keeps_the_latest(tmp_path: Path, loop: Loop) -> None:
    path = tmp_path / "d.log"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    sink = stderr_sink(loop, fd, path=str(path), max_bytes=10_000)
    for k in range(1000):
        sink.write(b"line %04d\n" % k)
    sink.close()
    os.write(fd, b"from a worker\n")  # which has the same file, and writes at its end
    os.close(fd)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d.log", "d.log.1"]
    assert all(p.stat().st_size < 11_000 for p in tmp_path.iterdir())
    assert (tmp_path / "d.log.1").stat().st_mode & 0o777 == 0o600
    kept = (tmp_path / "d.log.1").read_text() + path.read_text()
    assert kept.endswith("line 0999\nfrom a worker\n")
    assert "\0" not in kept


def test_a_log_of_ours_that_has_been_removed_is_not_copied_back(tmp_path: Path, loop: Loop) -> None:
    path = tmp_path / "d.log"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    path.unlink()
    sink = stderr_sink(loop, fd, path=str(path), max_bytes=100)
    for _ in range(100):
        sink.write(b"late\n")
    sink.close()
    os.close(fd)
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_the_user_has_redirected_is_never_cut(tmp_path: Path, loop: Loop) -> None:
    path = tmp_path / "mine.log"
    with path.open("ab") as file:
        sink = stderr_sink(loop, file.fileno())
        for _ in range(1000):
            sink.write(b"x" * 99 + b"\n")
        sink.close()
    assert path.stat().st_size == 100_000
