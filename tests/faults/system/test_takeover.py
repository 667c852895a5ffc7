"""A daemon is upgraded under running trainers, with real workers: no byte is another."""

from __future__ import annotations

import signal
from typing import Any

from loaderd_testing.daemon_harness import Site, digest, plain, take
from loaderd_testing.deadlines import DEADLINE_S


def test_two_upgrades_and_a_killed_one_between_them_change_no_byte_of_two_trainers(
    site: Site, undisturbed: str
) -> None:
    site.write(pause=0.002).serve()
    loaders = [site.loader(), site.loader()]
    got: list[list[dict[str, Any]]] = [[], []]
    held = []  # of a segment of each daemon
    for _ in range(2):
        for step, batches in enumerate(zip(*loaders, strict=True)):
            for taken, batch in zip(got, batches, strict=True):
                taken.append(plain(batch))
            if step == 3:
                held.append(batches[0])
                old = site.process
                site.serve("--takeover")
                assert old.wait(DEADLINE_S) == 0
            elif step == 6:
                old = site.process
                site.serve("--takeover", wait=False)
                site.workers()
                site.kill(sig=signal.SIGKILL)
                site.process = old
    assert [digest(taken) for taken in got] == [undisturbed] * 2
    assert digest(take(held)) == digest([got[0][3], got[0][16]])
    assert site.status()["pid"] == site.pid


def test_an_upgrade_with_another_order_is_refused_by_its_field(site: Site) -> None:
    loader = site.write(pause=0.002).serve().loader()
    before = take(loader)
    loader.set_epoch(0)
    batches = iter(loader)
    got = take(batches, 3)
    site.write(pause=0.002, stream='split = "0%:90%"')
    refused = site.cli("serve", str(site.config), "--takeover")
    assert refused.returncode == 3
    assert "stream 'train' has changed: samples was 100, is 90; split was 0%:100%, is 0%:90%" in (
        refused.stderr
    )
    assert digest(got + take(batches)) == digest(before)
    assert site.process.poll() is None
