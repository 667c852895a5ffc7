"""A trainer that runs out of file descriptors is told so, with numbers; it is never aborted."""

from __future__ import annotations

import os
import re
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from client.test_loader import finished, trainer
from loaderd_client import Loader, RefusedError, file_limits
from loaderd_testing.fake_daemon import FakeDaemon
from loaderd_testing.pipes import line_of

Fake = Callable[..., FakeDaemon]
Load = Callable[..., Loader[Any]]

SHORT = """
    import os, resource
    used = len(os.listdir("/proc/self/fd")) - 1
    soft = used + {free}
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft))
    try:
        print("step", next(iter(Loader({source!r}, "train", output="numpy", reconnect_s=5))).step)
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.parametrize("free", range(17))
def test_a_connection_with_few_descriptors_left_comes_or_is_refused_with_numbers(
    fake: Fake, free: int
) -> None:
    daemon = fake()
    process = trainer(SHORT.format(free=free, source=daemon.path))
    out, err = finished(process)
    assert (process.returncode, err) == (0, "")
    if free < file_limits.A_SESSION:
        assert re.match(
            rf"RefusedError loaderd needs \d+ free file descriptors and finds {free}: this "
            r"process may have \d+ \(ulimit -n\)",
            out,
        )
    else:
        assert re.match(rf"step 0|RefusedError .* finds {free}:", out)
    if free == 16:
        assert out == "step 0\n"


@pytest.mark.parametrize("free", range(3))
def test_a_config_that_cannot_be_read_for_want_of_descriptors_is_refused_with_numbers(
    tmp_path: Path, free: int
) -> None:
    config = tmp_path / "c.toml"
    config.write_text("[streams.train]\n")
    out, err = finished(trainer(SHORT.format(free=free, source=str(config))))
    assert re.match(rf"RefusedError .* finds {free}: .*ulimit -n", out), err


@pytest.fixture
def limit() -> Iterator[Callable[[int], None]]:
    """Leaves this process so many descriptors below the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def leave(free: int) -> None:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 9, hard)
        )
        while not file_limits.shortage(free + 1):
            opened.append(os.dup(0))

    opened: list[int] = []
    yield leave
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for fd in opened:
        os.close(fd)


RECONNECTS = """
    import os, resource, signal, logging
    logging.basicConfig(format="%(message)s")
    loader = Loader({path!r}, "train", output="numpy", prefetch=1, reconnect_s={reconnect_s}, stall_warning_s=0.2)
    batches = iter(loader)
    next(batches)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    kept = []
    def leave(free):
        # So many below the limit when the session's own have been given back.
        top = max(map(int, os.listdir("/proc/self/fd")))
        kept.extend(os.dup(0) for _ in range(64))
        for fd in kept[:max(0, free - 9)]:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(kept) + 1, hard))
    leave({free})
    signal.signal(signal.SIGUSR1, lambda *_: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    print("going", flush=True)
    signal.sigwait([signal.SIGUSR2])
    try:
        print("rows", sum(batch.rows for batch in batches))
    except Exception as error:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        print(type(error).__name__, error)
"""


def test_a_reconnect_without_descriptors_waits_for_them_and_says_so(fake: Fake) -> None:
    daemon = fake()
    process = trainer(RECONNECTS.format(path=daemon.path, free=5, reconnect_s=60))
    assert process.stderr is not None
    assert line_of(process) == "going\n"
    daemon.rules.makes = False
    daemon.kill()
    daemon.rules.makes = True
    process.send_signal(signal.SIGUSR2)
    said = ""
    while "ulimit -n" not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    process.send_signal(signal.SIGUSR1)
    out, _ = finished(process)
    assert out == "rows 46\n"


def test_a_reconnect_that_never_gets_descriptors_is_refused_after_reconnect_s(fake: Fake) -> None:
    daemon = fake()
    process = trainer(RECONNECTS.format(path=daemon.path, free=5, reconnect_s=0.5))
    assert line_of(process) == "going\n"
    daemon.rules.makes = False
    daemon.kill()
    daemon.rules.makes = True
    process.send_signal(signal.SIGUSR2)
    out, err = finished(process)
    assert re.match(
        r"RefusedError .*needs \d+ free file descriptors and finds \d+: .*ulimit -n", out
    ), (out, err)


def test_free_descriptors_are_counted_below_the_limit(limit: Callable[[int], None]) -> None:
    limit(3)
    assert file_limits.shortage(3) == ""
    with pytest.raises(RefusedError, match="needs 4 free file descriptors and finds 3"):
        file_limits.require(4)
