"""What a hostile day brought to light: each test is a fault that once broke a promise."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from system.site import Site, alive, children, digest, plain, take, until

# The very first sample, which the probe makes, takes a while.
HELD = """
def fault(index):
    if once("held"):
        time.sleep(1)
"""


def family(pid: int) -> list[int]:
    return [pid, *children(pid), *[w for t in children(pid) for w in children(t)]]


def test_a_probe_killed_from_outside_does_not_keep_the_daemon_from_starting(site: Site) -> None:
    site.write(fault=HELD).serve(wait=False)
    until("the probe's first sample", (site.folder / "once-held").exists)
    (probe,) = site.workers()
    os.kill(probe, signal.SIGKILL)
    until("the daemon's ready line", lambda: "ready:" in site.text() or not alive(site.pid))
    assert "probe of stream 'train' has ended: SIGKILL; another one is started" in site.text()
    assert len(take(site.loader())) == 13


def test_a_template_killed_while_a_stream_is_opened_does_not_keep_the_daemon_from_starting(site: Site) -> None:
    site.write(fault=HELD).serve(wait=False)
    until("the probe's first sample", (site.folder / "once-held").exists)
    site.workers()
    os.kill(site.template(), signal.SIGKILL)
    until("the daemon's ready line", lambda: "ready:" in site.text() or not alive(site.pid))
    assert len(take(site.loader())) == 13


def test_an_embedded_daemon_killed_while_it_is_being_started_again_is_started_once_more(site: Site, undisturbed: str) -> None:
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
        "class Numbers:\n    def __len__(self):\n        return 9\n    def __getitem__(self, index):\n        return {'\\udcff': index}\n"
        "def augment(sample, rng):\n    return sample\n"
    )
    site.serve(wait=False)
    assert site.process is not None
    assert site.process.wait(60) == 3
    assert "is called '\\udcff', which is no Unicode text" in site.text()


def test_a_state_asked_for_by_a_signal_during_the_first_hello_makes_one_session(site: Site) -> None:
    site.write(fault=HELD).serve(wait=False)
    until("the probe's first sample", (site.folder / "once-held").exists)
    loader = site.loader()
    states: list[Any] = []
    before = signal.signal(signal.SIGALRM, lambda *_: states.append(loader.state_dict()))
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        batches = take(loader)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(batches) == 13
    assert [state["position"] for state in states] == [0]
    until("one session", lambda: len(site.status()["sessions"]) == 1, 10)
