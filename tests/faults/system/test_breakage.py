"""What a hostile day brought to light: each test is a fault that once broke a promise."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from loaderd.data.lmdb.writer import Writer
from loaderd.data.packing import writer
from loaderd.data.packing.inputs import pack_dataset, pack_imagefolder
from loaderd_testing.daemon_harness import Site, alive, children, digest, plain, take, until
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_testing.sample_builders import coded, picture

# The very first sample, which the probe makes, takes until there is a file `go`.
HELD = """
def fault(index):
    once("held")
    while not os.path.exists(os.path.join(os.path.dirname(__file__), "go")):
        time.sleep(0.01)
"""


def family(pid: int) -> list[int]:
    return [pid, *children(pid), *[w for t in children(pid) for w in children(t)]]


def test_a_probe_killed_from_outside_does_not_keep_the_daemon_from_starting(site: Site) -> None:
    site.write(fault=HELD).serve(wait=False)
    until("the probe's first sample", (site.folder / "once-held").exists)
    (probe,) = site.workers()
    os.kill(probe, signal.SIGKILL)
    (site.folder / "go").touch()
    until("the daemon's ready line", lambda: "ready:" in site.text() or not alive(site.pid))
    assert "probe of stream 'train' has ended: SIGKILL; another one is started" in site.text()
    assert len(take(site.loader())) == 13


def test_a_template_killed_while_a_stream_is_opened_does_not_keep_the_daemon_from_starting(
    site: Site,
) -> None:
    site.write(fault=HELD).serve(wait=False)
    until("the probe's first sample", (site.folder / "once-held").exists)
    site.workers()
    os.kill(site.template(), signal.SIGKILL)
    (site.folder / "go").touch()
    until("the daemon's ready line", lambda: "ready:" in site.text() or not alive(site.pid))
    assert len(take(site.loader())) == 13


def test_an_embedded_daemon_killed_while_it_is_being_started_again_is_started_once_more(
    site: Site, undisturbed: str
) -> None:
    site.write()
    loader = site.loader(source=site.config)
    batches = iter(loader)
    seen = [plain(next(batches))]
    site.seen.update(family(served := daemon_of(site)))
    os.kill(served, signal.SIGKILL)
    killed = threading.Thread(target=lambda: os.kill(_successor(site, served), signal.SIGKILL))
    killed.start()
    seen += take(batches)
    killed.join()
    assert digest(seen + take(loader)) == undisturbed
    loader.close()
    until("the last daemon gone", lambda: not site.socket.exists())


def daemon_of(site: Site) -> int:
    """The pid in the lock file, 0 if there is none."""
    try:
        return int(site.socket.with_name("d.sock.lock").read_text() or 0)
    except FileNotFoundError:
        return 0


def _successor(site: Site, served: int) -> int:
    """Another daemon, before it is ready."""
    return until("the next daemon's lock", lambda: (pid := daemon_of(site)) != served and pid)


def test_a_thread_that_a_module_starts_on_import_does_not_hold_up_the_start(site: Site) -> None:
    site.write(fault="threading.Thread(target=time.sleep, args=(600,)).start()").serve()
    assert len(take(site.loader())) == 13


def test_a_field_name_that_is_no_text_is_refused_at_the_start(site: Site) -> None:
    site.write()
    (site.folder / "mine.py").write_text(
        "class Numbers:\n    def __len__(self):\n        return 9\n    def __getitem__(self, "
        "index):\n        return {'\\udcff': index}\n"
        "def augment(sample, rng):\n    return sample\n"
    )
    site.serve(wait=False)
    assert site.process.wait(DEADLINE_S) == 3
    assert "is called '\\udcff', which is no Unicode text" in site.text()


def test_a_state_asked_for_by_a_signal_during_the_first_hello_makes_one_session(site: Site) -> None:
    site.write(fault=HELD).serve(wait=False)
    until("the probe's first sample", (site.folder / "once-held").exists)
    loader = site.loader()
    states: list[Any] = []

    def handler(*_: object) -> None:
        states.append(loader.state_dict())
        (site.folder / "go").touch()

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        batches = take(loader)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(batches) == 13
    assert [state["position"] for state in states] == [0]
    until("one session", lambda: len(site.status()["sessions"]) == 1)


def test_a_link_to_itself_does_not_hide_the_images_beside_it(tmp_path: Path) -> None:
    for name in ("a/1.png", "a/sub/2.png", "b/3.png"):
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / name).write_bytes(coded(picture()))
    os.symlink("loop.png", tmp_path / "src" / "a" / "loop.png")
    report = pack_imagefolder(str(tmp_path / "src"), str(tmp_path / "db"))
    assert (report.samples, report.classes) == (3, ("a", "b"))
    assert report.bad == (("a/loop.png", "Too many levels of symbolic links"),)


def test_a_pack_killed_before_it_had_anything_to_keep_says_nothing_about_the_source(
    tmp_path: Path,
) -> None:
    Writer(str(tmp_path / "db.part")).close()
    report = pack_dataset("loaderd_testing.sample_builders:Numbers", {"n": 5}, str(tmp_path / "db"))
    assert (report.samples, report.restarted) == (5, False)


def test_a_pack_of_slow_samples_keeps_them_every_few_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "BATCH_S", 0.0)

    def interrupted(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack_dataset(
            "loaderd_testing.sample_builders:Numbers",
            {"n": 5},
            str(tmp_path / "db"),
            progress=interrupted,
        )
    assert (
        pack_dataset(
            "loaderd_testing.sample_builders:Numbers", {"n": 5}, str(tmp_path / "db")
        ).resumed_at
        == 2
    )


@pytest.mark.parametrize("descriptors", [20, 40, 100])
def test_too_few_descriptors_for_any_session_are_told_at_the_start(
    site: Site, descriptors: int
) -> None:
    served = site.write().cli(
        "serve",
        str(site.config),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors)),
    )
    assert served.returncode == 3
    assert f"RLIMIT_NOFILE is {descriptors}" in served.stderr
    assert "Traceback" not in served.stderr


FULL = """
import resource, sys
from loaderd.system.lockfile import LockFile
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
with LockFile(sys.argv[1]):
    print("held")
"""


def test_a_socket_is_locked_on_a_full_disk(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "d.sock")],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.stdout == "held\n", done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_lock_file_that_somebody_removes_lets_no_second_daemon_in(site: Site) -> None:
    loader = site.write().serve().loader()
    before = take(loader)
    (site.folder / "d.sock.lock").unlink()
    second = site.cli("serve", str(site.config))
    assert second.returncode == 3
    assert "already running" in second.stderr
    assert len(take(loader)) == len(before)


def test_a_quarantine_that_cannot_be_written_is_said_once(site: Site) -> None:
    fault = """
    def fault(index):
        if index % 10 == 5:
            raise ValueError("odd")
    """
    site.write(
        fault=fault, daemon='quarantine = "nowhere/bad.jsonl"', stream='on_error = "skip"'
    ).serve()
    loader = site.loader()
    until(
        "the line about it",
        lambda: take(loader) and "bad samples are not recorded there" in site.text(),
    )
    take(loader)
    assert site.text().count("bad samples are not recorded there") == 1
