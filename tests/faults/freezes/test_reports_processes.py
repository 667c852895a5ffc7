"""What people report about loaders in public, replayed: memory, sockets, signals, processes.

README.md beside this has the list.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from faults.freezes.users import bring, status_of, trainer
from loaderd_testing.daemon_harness import Site, alive, children, digest, plain, pulls, take, until
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_testing.pipes import line_of


def test_a7_a_daemon_that_wakes_after_its_client_has_left_writes_into_nobodys_batch(
    site: Site, undisturbed: str
) -> None:
    site.write().serve()
    loader = site.loader(prefetch=2)
    batches = iter(loader)
    held = [next(batches), next(batches)]
    before = digest(map(plain, held))
    site.kill(sig=signal.SIGSTOP)
    try:
        loader.close()
    finally:
        site.kill(sig=signal.SIGCONT)
    other = site.loader(prefetch=2)
    assert digest(take(other) + take(other)) == undisturbed
    assert digest(map(plain, held)) == before
    until("the session's end", lambda: len(site.status()["sessions"]) == 1)


def test_b4_two_hundred_held_batches_need_no_descriptor_each(site: Site) -> None:
    site.write(n=1600, stream="drop_last = true").serve()
    code = f"""
    import os, resource
    import numpy
    loader = Loader({str(site.socket)!r}, stream="train", output="numpy", prefetch=3)
    len(loader)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    held, counts = [], set()
    for batch in loader:
        held.append((batch, batch["x"].copy()))
        if len(held) >= 10:
            counts.add(len(os.listdir("/proc/self/fd")))
    print(len(held), len(counts), all((b["x"] == x).all() for b, x in held))
    """
    with trainer(code) as process:
        out, err = process.communicate(timeout=DEADLINE_S)
    assert out.split() == ["200", "1", "True"], err


def shared() -> set[str]:
    return {p.name for p in Path("/dev/shm").iterdir()} if Path("/dev/shm").is_dir() else set()


def test_b6_b7_killed_daemons_and_trainers_leave_no_shared_memory_and_disturb_no_second_daemon(
    site: Site, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = Site(tmp_path_factory.mktemp("other"))
    before = shared()
    try:
        held = next(iter(other.write().serve().loader(output="numpy")))
        content = plain(held)
        site.write()
        files = set()
        for _ in range(3):
            site.serve()
            with trainer(
                f"loader = Loader({str(site.socket)!r}, stream='train', output='numpy')\nfirst = "
                "next(iter(loader))\nprint(len(first['y']), flush=True)\ninput()"
            ) as one:
                assert line_of(one) == "8\n"
                family = [*site.workers(), site.template()]
                site.kill()
                one.kill()
                _, err = one.communicate(timeout=DEADLINE_S)
            assert "resource_tracker" not in err
            until("its processes gone", lambda family=family: not any(map(alive, family)))
            files.add(
                frozenset(p.name for p in site.folder.iterdir() if p.name.startswith("d.sock"))
            )
            # others on this machine may have a file there for a moment
            until("nothing new in /dev/shm", lambda: shared() <= before)
        assert len(files) == 1  # the same names each time, and no more
        assert digest([plain(held)]) == digest([content])
        assert len(take(other.loaders[0])) == 13
    finally:
        other.close()
    assert "resource_tracker" not in site.text() + other.text()


@pytest.mark.parametrize(
    "end",
    ["", "sys.exit(3)", "raise RuntimeError('user')", "threading.Thread(target=sys.exit).start()"],
)
def test_h1_k2_a_trainer_whose_daemon_is_dead_ends_when_its_script_does(
    site: Site, end: str
) -> None:
    site.write().serve()
    code = f"""
    import threading
    loader = Loader({str(site.socket)!r}, stream="train", output="numpy")
    kept = next(iter(loader))
    print("ready", flush=True)
    input()
    {end}
    """
    with trainer(code) as process:
        assert line_of(process) == "ready\n"
        assert int(status_of(process.pid)["Threads"]) < 20
        site.kill()
        _, err = process.communicate("\n", timeout=DEADLINE_S)
    assert process.returncode == {"sys.exit(3)": 3, "raise RuntimeError('user')": 1}.get(end, 0), (
        err
    )


def test_h3_a_client_that_reads_nothing_keeps_the_daemon_flat_and_idle(site: Site) -> None:
    site.write(n=10_000).serve()
    paused = iter(site.loader(prefetch=4))
    first = next(paused)
    until("all its slots full", lambda: site.status()["sessions"][0]["slots"]["announced"] == 4)
    made = site.status()["sessions"][0]["made"]
    memory = int(status_of(site.pid)["VmRSS"].split()[0])
    busy = pulls(site.loader(batch_size=64))
    for _ in range(300):
        next(busy)
    assert site.status()["sessions"][0]["made"] == made == 5
    assert int(status_of(site.pid)["VmRSS"].split()[0]) < memory + 4096
    got = [plain(first), *take(paused, 6)]
    assert [b["step"] for b in got] == list(range(7))


def test_i1_a_killed_daemon_takes_its_workers_with_it(site: Site) -> None:
    site.write(pause=0.05).serve()
    loader = site.loader()
    next(iter(loader))
    family = [site.template(), *site.workers()]
    site.kill()
    until("its family's end", lambda: not any(map(alive, family)))


def test_i2_after_ctrl_c_a_trainer_may_take_more_batches_and_save(site: Site) -> None:
    site.write(pause=0.005)
    code = f"""
    import json
    from loaderd_testing.daemon_harness import indices, plain
    loader = Loader({str(site.config)!r}, stream="train", output="numpy")
    got = []
    try:
        for batch in loader:
            got.append(plain(batch))
            print("step", flush=True)
    except KeyboardInterrupt:
        batches = iter(loader)
        loader.load_state_dict(loader.state_dict())
        loader.set_epoch(0)
        more = [plain(next(batches)) for _ in range(2)]
        print("more", [b["step"] for b in more][1] - more[0]["step"], json.dumps(loader.state_dict())[:1], flush=True)
        loader.close()
    """
    with trainer(code) as process:
        assert line_of(process) == "step\n"
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    assert "more 1 {" in out
    assert len(err.splitlines()) < 10


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_i3_a_schedulers_signal_to_everybody_costs_no_batch(
    site: Site, undisturbed: str, number: signal.Signals
) -> None:
    loader = site.write(pause=0.002).serve().loader()
    before = set(site.settled())
    got = []
    for batch in pulls(loader):
        got.append(plain(batch))
        if len(got) in (1, 9, 10):
            for pid in (site.pid, site.template(), *before):
                os.kill(pid, number)
        if len(got) == 26:
            break
    assert digest(got) == undisturbed
    assert set(site.workers()) == before


def test_i3_a_term_to_everybody_drains_and_the_leased_batches_stay(site: Site) -> None:
    loader = site.write(pause=0.002).serve().loader()
    batches = iter(loader)
    held = next(batches)
    before = digest([plain(held)])
    for pid in (*site.workers(), site.template(), site.pid):
        os.kill(pid, signal.SIGTERM)
    assert site.process.wait(DEADLINE_S) == 0
    assert digest([plain(held)]) == before


@pytest.mark.needs("userns")
def test_j6_as_process_1_it_reaps_what_dies_and_obeys_term(site: Site) -> None:
    module = """
    class Data:
        def __len__(self):
            return 80
        def __getitem__(self, index):
            if os.fork() == 0:  # a grandchild that outlives its parent
                if os.fork() == 0:
                    os._exit(0)
                os._exit(0)
            if index % 20 == 19 and mark("died-%d" % index):
                os._exit(1)
            return {"y": index}
    """
    bring(site, module)
    user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    command = [
        "unshare",
        *user,
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        sys.executable,
        "-m",
        "loaderd",
        "serve",
    ]
    with site.log.open("ab") as log:
        site.process = subprocess.Popen(
            [*command, str(site.config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    until("the ready line", lambda: site.process.poll() is not None or "ready: " in site.text())
    (first,) = children(site.pid)
    try:
        assert [y for b in take(site.loader()) for y in b["y"].tolist()] == list(range(80))
        until("no zombie below it", lambda: not zombies(first))
    finally:
        os.kill(first, signal.SIGTERM)
        site.process.wait(DEADLINE_S)
    assert site.process.returncode == 0


def zombies(pid: int) -> list[int]:
    """Dead and unreaped: children of `pid` and of its children that no living worker still has to
    wait for.
    """
    found = [c for c in children(pid) if not alive(c)]
    return found + [c for t in children(pid) for c in children(t) if not alive(c)]
