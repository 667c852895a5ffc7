"""Daemon and trainer in containers of their own: separate namespaces, a tiny /dev/shm each, one
shared folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from loaderd_testing.daemon_harness import Site, children, until
from loaderd_testing.deadlines import DEADLINE_S

# Everything is imported before the uid changes: the other user may not be allowed to read this
# interpreter's files.
TRAINER = """
import os, sys, hashlib, pathlib
sys.path[:0] = [{tests!r}]
import loaderd_client, numpy, loaderd_testing.daemon_harness
from loaderd_testing.daemon_harness import digest, take
if {uid} is not None:
    os.setgroups([])
    os.setresgid({uid}, {uid}, {uid})
    os.setresuid({uid}, {uid}, {uid})
loader = loaderd_client.Loader({socket!r}, stream="train", output="numpy", reconnect_s=20)
try:
    print(digest(take(loader) + take(loader)), flush=True)
except loaderd_client.LoaderdError as error:
    print(type(error).__name__, error, flush=True)
loader.close()
"""
APART = [
    "unshare",
    "--mount",
    "--pid",
    "--ipc",
    "--net",
    "--uts",
    "--fork",
    "--kill-child",
    "--mount-proc",
]
SMALL_SHM = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'


def apart() -> list[str]:
    user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    return [*APART[:1], *user, *APART[1:], "sh", "-c", SMALL_SHM, "sh"]


def trainer_code(socket: Path, uid: int | None = None) -> list[str]:
    return [
        sys.executable,
        "-c",
        TRAINER.format(
            tests=str(Path(__file__).parents[2] / "support"), socket=str(socket), uid=uid
        ),
    ]


@pytest.fixture
def open_site() -> Iterator[Site]:
    """A site that another user may enter; pytest keeps its own temporary folders closed."""
    with tempfile.TemporaryDirectory(prefix="loaderd-") as name:
        Path(name).chmod(0o755)
        site = Site(Path(name))
        yield site
        site.close()


def train(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.needs("userns")
@pytest.mark.parametrize("big", [False, True])
def test_two_containers_with_one_shared_folder(site: Site, undisturbed: str, big: bool) -> None:
    site.write()
    if big:  # batches of 16 MB, with 1 MB of /dev/shm on each side
        module = site.folder / "mine.py"
        module.write_text(
            module.read_text()
            + (
                "\ndef big(sample, rng):\n    return {'x': np.full((1 << 21,), sample['y'], "
                "np.uint8)}\n"
            )
        )
        site.config.write_text(site.config.read_text().replace("mine:augment", "mine:big"))
    with site.log.open("ab") as log:
        command = [*apart(), sys.executable, "-m", "loaderd", "serve", str(site.config)]
        site.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        until(
            "the daemon's ready line",
            lambda: site.process.poll() is not None or "ready: " in site.text(),
        )
        out = train([*apart(), *trainer_code(site.socket)])
        assert len(out) == 64, out
        assert big or out == undisturbed
    finally:
        for pid in _below(site.pid):
            os.kill(pid, signal.SIGTERM)
        site.process.wait(DEADLINE_S)


def _below(pid: int) -> list[int]:
    """The daemon inside: the only child of unshare."""
    return [c for c in children(pid) if b"loaderd" in Path(f"/proc/{c}/cmdline").read_bytes()]


@pytest.mark.needs("second_uid")
def test_another_user_is_served_when_the_config_allows_it(
    open_site: Site, undisturbed: str
) -> None:
    open_site.write(daemon="allow_uids = [4321]").serve()
    assert train(trainer_code(open_site.socket, 4321)) == undisturbed


@pytest.mark.needs("second_uid")
def test_a_user_that_is_not_allowed_is_refused_on_both_sides(open_site: Site) -> None:
    open_site.write(daemon="allow_uids = [4321]").serve()
    out = train(trainer_code(open_site.socket, 4322))
    assert out.startswith("RefusedError")
    assert "4322" in out
    assert "allow_uids" in out
    assert "4322" in open_site.text()


@pytest.mark.needs("second_uid")
@pytest.mark.parametrize("allowed", [False, True])
def test_a_user_that_the_daemons_namespace_does_not_know(
    open_site: Site, undisturbed: str, allowed: bool
) -> None:
    extra = ', "unmapped"' if allowed else ""
    open_site.write(daemon=f"allow_uids = [4321{extra}]")
    with open_site.log.open("ab") as log:
        command = [
            "unshare",
            "--user",
            "--map-root-user",
            sys.executable,
            "-m",
            "loaderd",
            "serve",
            str(open_site.config),
        ]
        open_site.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    until(
        "the daemon's ready line",
        lambda: open_site.process.poll() is not None or "ready: " in open_site.text(),
    )
    out = train(trainer_code(open_site.socket, 4321))
    if allowed:
        assert out == undisturbed
    else:
        assert out.startswith("RefusedError")
        assert "unmapped" in out


@pytest.mark.needs("second_uid")
def test_without_allow_uids_another_user_cannot_even_connect(open_site: Site) -> None:
    open_site.write().serve()
    code = trainer_code(open_site.socket, 4321)
    code[2] = code[2].replace("reconnect_s=20", "reconnect_s=1")
    out = train(code)
    assert out.startswith("RefusedError")
    assert "allow_uids" in out
