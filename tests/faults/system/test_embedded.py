"""Loader("config.toml"): a daemon that comes with its first user and goes with its last."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from loaderd_client import ConfigError, DaemonGoneError, LoaderdError, StallError, StreamFailedError
from loaderd_testing.daemon_harness import (
    Site,
    alive,
    children,
    digest,
    indices,
    patiently,
    plain,
    take,
    until,
)
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_testing.pipes import line_of
from loaderd_testing.python_processes import TRAINING, python
from loaderd_wire.paths import LOG_BEGINS

TRAINER = """
import sys
sys.path[:0] = [{tests!r}]
from loaderd_client import Loader
from loaderd_testing.daemon_harness import digest, take
loader = Loader({config!r}, stream="train", output="numpy")
print(digest(take(loader) + take(loader)), flush=True)
{then}
loader.close()
"""


def trainer(site: Site, then: str = "") -> subprocess.Popen[str]:
    code = TRAINER.format(
        tests=str(Path(__file__).parents[2] / "support"), config=str(site.config), then=then
    )
    return python(
        "-c",
        code,
        imports=TRAINING,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )


def daemons(site: Site) -> list[int]:
    """Pids of living daemons of this site."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            starter = b"-ISc" in words  # a daemon's parent while it starts
            if (
                b"serve" in words
                and os.fsencode(site.config) in words
                and not starter
                and alive(int(entry.name))
            ):
                found.append(int(entry.name))
    return found


def gone(site: Site) -> None:
    until("the embedded daemon's end", lambda: not daemons(site))
    left = {p.name for p in site.folder.iterdir() if p.name.startswith("d.sock")}
    assert left <= {"d.sock.lock"}, left


def test_the_first_loader_starts_it_and_the_last_one_ends_it(site: Site, undisturbed: str) -> None:
    site.write()
    loader = site.loader(source=site.config)
    assert daemons(site) == []  # construction alone starts nothing
    assert digest(take(loader) + take(loader)) == undisturbed
    assert len(daemons(site)) == 1
    loader.close()
    gone(site)


def test_two_projects_at_once_have_daemons_and_modules_of_their_own(tmp_path: Path) -> None:
    """Both are called config.toml, name no socket, and have a module mine."""
    loaders: list[Any] = []
    with ExitStack() as stack:
        for name, count in (("a", 40), ("b", 24)):
            (tmp_path / name).mkdir()
            site = Site(tmp_path / name).write(n=count, workers=1)
            stack.callback(site.close)
            text = site.config.read_text()
            site.config.write_text(text.replace('socket = "d.sock"\n', ""))
            loaders.append(site.loader(source=site.config))
            assert len(loaders[-1]) == count // 8  # and so its daemon is there
        assert [sorted(indices(take(loader))) for loader in loaders] == [
            list(range(40)),
            list(range(24)),
        ]


@pytest.mark.parametrize("attempt", range(3))
def test_eight_loaders_at_once_share_one_daemon(site: Site, undisturbed: str, attempt: int) -> None:
    site.write()
    trainers = [trainer(site) for _ in range(8)]
    results = [t.communicate(timeout=DEADLINE_S) for t in trainers]
    assert [r[0].strip() for r in results] == [undisturbed] * 8, [r[1] for r in results]
    gone(site)


def test_a_last_out_that_meets_a_first_in(site: Site, undisturbed: str) -> None:
    site.write()
    for _ in range(6):
        loader = site.loader(source=site.config)
        assert digest(take(loader) + take(loader)) == undisturbed
        loader.close()
        loader = site.loader(source=site.config)
        assert len(loader) == 13
        loader.close()
    gone(site)


def test_the_starter_killed_leaves_the_daemon_to_the_others(site: Site, undisturbed: str) -> None:
    site.write()
    first = trainer(site, "sys.stdin.readline()")
    try:
        assert line_of(first).strip() == undisturbed
        loader = site.loader(source=site.config)
        got = take(loader)
        first.kill()
        first.wait()
        got += take(loader)
        assert digest(got) == undisturbed
    finally:
        first.kill()
        first.communicate()
    loader.close()
    gone(site)


def test_a_starter_killed_alone_takes_the_daemon_with_it(site: Site, undisturbed: str) -> None:
    site.write()
    first = trainer(site, "sys.stdin.readline()")
    try:
        assert line_of(first).strip() == undisturbed
        assert len(daemons(site)) == 1
    finally:
        first.kill()
        first.communicate()
    gone(site)


def test_an_embedded_daemon_killed_under_two_users_is_started_again(
    site: Site, undisturbed: str
) -> None:
    site.write()
    one, two = site.loader(source=site.config), site.loader(source=site.config)
    batches = iter(two)
    got = [plain(next(batches))]
    others = []
    for batch in one:
        others.append(plain(batch))
        if len(others) == 5:
            os.kill(daemons(site)[0], signal.SIGKILL)
    got += take(batches)
    assert len(daemons(site)) == 1
    assert digest(got + take(two)) == undisturbed
    assert digest(others + take(one)) == undisturbed
    one.close()
    two.close()
    gone(site)


DIES = """
def fault(index):
    if index == 20:  # as if memory ran out each time that this sample is made
        stat = open("/proc/%d/stat" % os.getppid()).read()
        os.kill(int(stat.rsplit(")", 1)[1].split()[1]), signal.SIGKILL)
"""


def test_daemons_that_all_die_of_the_same_batch_are_given_up_and_counted(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.write(fault=DIES)
    site.config.write_text(site.config.read_text().replace("shuffle = true", "shuffle = false"))
    error, got = "", list[int]()
    for timeout_s in (10, 40, 160):  # on a slow machine one daemon's start takes all the time
        loader = site.loader(source=site.config, timeout_s=timeout_s)
        got.clear()  # batches before that one may be lost with it each time
        with pytest.raises((DaemonGoneError, StallError)) as caught:
            got.extend(batch.step for batch in loader)
        error = str(caught.value)
        if re.match(r"\d+ daemons have gone while step ", error):
            break
        loader.close()
    step = error.split()[6]
    assert step in ("0", "1", "2")
    assert got == list(range(len(got)))
    assert (
        f"while step {step} of epoch 0 was waited for, the last one: it closed the connection"
        in error
    )
    assert f"going on with its successor at step {step} of epoch 0" in caplog.text
    for each in site.loaders:
        each.close()
    until("the daemons' end", lambda: not daemons(site))


def test_a_config_that_cannot_be_served_is_raised_by_the_loader(site: Site) -> None:
    site.write()
    site.config.write_text(site.config.read_text().replace("batch_size", "batchsize"))
    with pytest.raises(LoaderdError, match="batch_size"):
        len(site.loader(source=site.config))
    assert daemons(site) == []


def test_errors_of_a_config_that_has_been_corrected_are_not_told_again(site: Site) -> None:
    site.write()
    right = site.config.read_text()
    site.config.write_text(right.replace("batch_size", "batchsize"))
    with pytest.raises(ConfigError, match="batchsize"):
        len(site.loader(source=site.config))
    site.config.write_text(right)
    starter = site.loader(source=site.config)
    assert len(starter) == 13
    loader = site.loader(source=site.config, timeout_s=5, prefetch=1)
    batches = iter(loader)
    next(patiently(batches))
    assert "batchsize" in Path(f"{site.socket}.log").read_text()
    (pid,) = daemons(site)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(StallError) as caught:
            take(batches)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "batchsize" not in str(caught.value)
    loader.close()
    starter.close()
    gone(site)


def test_user_code_that_cannot_boot_is_raised_by_the_loader(site: Site) -> None:
    site.write(fault="import no_such_module")
    with pytest.raises(LoaderdError, match="no_such_module"):
        len(site.loader(source=site.config))
    until("its end", lambda: not daemons(site))


def test_a_training_script_without_a_guard_that_also_has_the_dataset_is_told_to_have_one(
    site: Site,
) -> None:
    site.write()
    module = (site.folder / "mine.py").read_text()
    (site.folder / "mine.py").write_text(
        module
        + (
            f"\nfrom loaderd_client import Loader\nfor batch in Loader({str(site.config)!r}, "
            "'train', output='numpy'): pass\n"
        )
    )
    done = subprocess.run(
        [sys.executable, str(site.folder / "mine.py")],
        stderr=subprocess.PIPE,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 1
    assert 'put the training loop under `if __name__ == "__main__":`' in done.stderr
    assert re.search(r"/mine\.py, line \d+: importing mine failed: ConfigError", done.stderr)
    until("its end", lambda: not daemons(site))


def test_the_end_of_a_daemon_that_serve_has_started_is_not_told_with_an_older_daemons_log(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.write().serve()
    Path(f"{site.socket}.log").write_text(
        f"2026-01-01T00:00:00.000Z info    {LOG_BEGINS}: pid 1 event=log_begins\n"
        "2026-01-01T00:00:00.000Z error   the disk is full event=fault\n"
    )
    batches = patiently(iter(site.loader(source=site.config)))
    next(batches)
    site.kill()
    site.serve()
    for _ in batches:
        pass
    assert "the daemon is gone (it closed the connection); going on" in caplog.text
    Path(f"{site.socket}.log").unlink()


def test_who_asks_for_what_only_the_edited_config_has_is_told_that_the_daemon_has_the_old_one(
    site: Site,
) -> None:
    site.write().serve()
    with site.config.open("a") as file:
        file.write('[streams.new]\ndataset = "mine:Numbers"\n')
    old = r"has changed since this daemon started, which goes on with the old settings"
    for source in (site.config, site.socket):
        with pytest.raises(ConfigError, match=rf"no stream 'new'; there are: train\n.*{old}"):
            len(site.loader(source=source, stream="new"))
    other = site.folder / "other.toml"
    other.write_text(site.config.read_text())
    with pytest.raises(ConfigError) as refused:
        len(site.loader(source=other))
    assert "has changed" not in str(refused.value)


def test_a_config_that_was_edited_is_taken_up_where_nobody_else_uses_the_daemon(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.write()
    loader = site.loader(source=site.config)
    assert len(take(loader)[0]["y"]) == 8
    other = site.loader(source=site.config)
    next(iter(other))
    before = daemons(site)
    loader.close()
    assert "was written to" not in caplog.text
    site.config.write_text(site.config.read_text().replace("batch_size = 8", "batch_size = 5"))
    # somebody is still here, whose stream goes on as it was
    assert len(next(iter(site.loader(source=site.config)))["y"]) == 8
    assert daemons(site) == before
    assert "has changed since its daemon started" in caplog.text
    for each in site.loaders:
        each.close()
    assert len(next(iter(site.loader(source=site.config)))["y"]) == 5
    assert daemons(site) != before
    assert len(daemons(site)) == 1


def edit(
    site: Site, old: str = '"y": index', new: str = '"y": index + 1000', file: str = "mine.py"
) -> None:
    """As a notebook's user does between two runs."""
    path = site.folder / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def edited(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "mine.py" in record.getMessage()]


def test_code_that_was_edited_is_taken_up_where_nobody_else_uses_the_daemon(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.write()
    loader = site.loader(source=site.config)
    assert max(next(iter(loader))["y"]) < 1000
    before = daemons(site)
    loader.close()
    edit(site)
    assert min(next(iter(site.loader(source=site.config)))["y"]) >= 1000
    assert daemons(site) != before
    assert edited(caplog) == []  # the new code is what was asked for


def test_code_that_was_edited_where_others_use_the_daemon_is_told_to_who_comes(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.write()
    other = site.loader(source=site.config)
    next(iter(other))
    before = daemons(site)
    edit(site)
    assert max(next(iter(site.loader(source=site.config)))["y"]) < 1000
    assert daemons(site) == before
    (text,) = edited(caplog)
    assert (
        "mine.py was edited after its import: other sessions use this daemon, so it keeps the "
        f"old code (`loaderd drain {site.config}`"
    ) in text


def test_a_module_imported_in_mid_sample_counts_as_code_that_was_imported(site: Site) -> None:
    site.write(fault="def fault(index):\n    import late\n    assert late.fine or index\n")
    (site.folder / "late.py").write_text("fine = True")
    loader = site.loader(source=site.config)
    next(iter(loader))
    before = daemons(site)
    loader.close()
    (site.folder / "late.py").write_text("fine = 1")
    next(iter(site.loader(source=site.config)))
    assert daemons(site) != before


def test_a_training_that_meets_a_successor_with_other_code_is_told_once_and_goes_on(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.write()
    loader = site.loader(source=site.config)
    batches = iter(loader)
    rows = [next(batches)["y"].tolist()]
    edit(site)
    for _ in range(2):
        os.kill(daemons(site)[0], signal.SIGKILL)
        rows += [batch["y"].tolist() for batch in take(batches, 5)]
    told = edited(caplog)
    assert len(told) == 1
    assert "code has changed since this training began: mine.py;" in told[0]
    assert max(rows[0]) < 1000
    assert min(rows[-1]) >= 1000
    caplog.clear()
    state = loader.state_dict()
    loader.close()
    gone(site)
    resumed = site.loader(source=site.config)
    resumed.load_state_dict(state)
    next(iter(resumed))
    assert edited(caplog) == []  # it was saved by the new code


def test_a_state_that_other_code_has_saved_is_loaded_with_one_warning(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.write()
    loader = site.loader(source=site.config)
    first = take(loader, 3)
    state = loader.state_dict()
    loader.close()
    gone(site)
    edit(site)
    loader = site.loader(source=site.config)
    loader.load_state_dict(state)
    batch = next(iter(loader))
    assert batch.step == 3
    assert not set(batch.indices.tolist()) & {index for one in first for index in one["indices"]}
    (text,) = edited(caplog)
    assert "code has changed since this state was saved: mine.py;" in text


def test_another_configs_daemon_on_the_socket_is_not_taken_for_ours(site: Site) -> None:
    site.write().serve()
    other = site.folder / "other.toml"
    other.write_text(site.config.read_text())
    with pytest.raises(
        ConfigError, match=r"other\.toml[\s\S]*config\.toml|config\.toml[\s\S]*other\.toml"
    ):
        len(site.loader(source=other))


def test_ctrl_c_goes_to_the_trainer_alone_and_leaves_nothing(site: Site) -> None:
    site.write(pause=0.05)
    code = TRAINER.format(
        tests=str(Path(__file__).parents[2] / "support"), config=str(site.config), then=""
    )
    code = code.replace(
        "print(digest(take(loader) + take(loader)), flush=True)",
        "next(iter(loader)); print('going', flush=True); take(loader)",
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert line_of(process) == "going\n"
    # not while it still prints
    until("the next epoch", lambda: site.status()["sessions"][0]["epoch"] == 1)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode != 0
    assert err.strip().endswith("KeyboardInterrupt")
    assert err.count("Traceback") == 1
    assert 1 < err.count("\n  File ") < 15
    gone(site)


HANGS = """
open(os.path.join(os.path.dirname(__file__), "importing"), "w").close()
threading.Event().wait()
"""


WAITS = """
import time
here = os.path.dirname(os.path.abspath(__file__))
open(os.path.join(here, "importing"), "w").close()
while not os.path.exists(os.path.join(here, "go")):
    time.sleep(0.01)
"""


def test_an_interrupt_of_the_daemon_is_no_end_of_it(site: Site, undisturbed: str) -> None:
    site.write(fault=WAITS)
    first = trainer(site, "sys.stdin.readline()")
    try:
        until("the import", (site.folder / "importing").exists)
        (pid,) = daemons(site)
        os.kill(pid, signal.SIGINT)
        (site.folder / "go").touch()
        assert line_of(first).strip() == undisturbed
        os.kill(pid, signal.SIGINT)
        loader = site.loader(source=site.config)
        assert digest(take(loader) + take(loader)) == undisturbed
        assert daemons(site) == [pid]
        loader.close()
    finally:
        _, err = first.communicate(timeout=DEADLINE_S)
    assert "Traceback" not in err
    gone(site)


INTERRUPTED = """
import os, pathlib, signal, threading
folder = pathlib.Path({folder!r})
def interrupt():
    while not (folder / "importing").exists():
        threading.Event().wait(0.01)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    len(loader)
except KeyboardInterrupt:
    (folder / "go").touch()
    print("interrupted", flush=True)
"""


def test_a_cell_interrupted_while_the_daemon_starts_leaves_a_loader_that_works(
    site: Site, undisturbed: str
) -> None:
    site.write(fault=WAITS)
    code = TRAINER.format(
        tests=str(Path(__file__).parents[2] / "support"), config=str(site.config), then=""
    )
    begin = "print(digest("
    code = code.replace(begin, INTERRUPTED.format(folder=str(site.folder)) + begin)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert (done.returncode, done.stdout) == (0, f"interrupted\n{undisturbed}\n"), done.stderr
    assert "Traceback" not in done.stderr
    gone(site)


def test_who_waits_for_a_start_that_hangs_is_told_by_whom(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.write(fault=HANGS)
    doing = (
        "not ready after [0-9]+ s: opening stream 'train'; the fork server has been importing mine"
    )
    # the daemon says it from its fifth second on, whenever that begins
    for timeout_s in (9, 27, 81):
        with pytest.raises(
            StallError, match=r"the embedded daemon starts; its log is .*d\.sock\.log"
        ) as caught:
            len(site.loader(source=site.config, timeout_s=timeout_s, stall_warning_s=timeout_s - 1))
        if "importing mine" in caplog.text:
            break
        gone(site)  # else the next one waits for this one's daemon
    assert re.search(f"which ends with: {doing}", str(caught.value))
    gone(site)


def test_a_daemon_whose_starter_left_before_it_was_ready_leaves_too(site: Site) -> None:
    site.write(fault=HANGS)
    starter = trainer(site)
    try:
        until("the import", (site.folder / "importing").exists)
        (pid,) = daemons(site)
        family = [pid, *children(pid)]
        assert len(family) == 2
        starter.send_signal(signal.SIGINT)
        _, err = starter.communicate(timeout=DEADLINE_S)
    finally:
        starter.kill()
        starter.communicate()
    assert err.strip().endswith("KeyboardInterrupt")
    gone(site)
    until("its template's end", lambda: not any(alive(p) for p in family))


def test_what_the_error_says_the_log_is_not_quoted_for(site: Site) -> None:
    site.write()
    (site.folder / "mine.py").write_text("import no_such_dependency\n")
    with pytest.raises(LoaderdError) as caught:
        len(site.loader(source=site.config))
    said = [line.strip() for line in str(caught.value).splitlines()]
    assert len([line for line in said if "there is no module 'no_such_dependency'" in line]) == 1
    assert said.count("import no_such_dependency") == 1
    assert not any(line.endswith("says:") for line in said)


def test_what_an_embedded_daemon_wrote_of_bad_samples_leaves_with_it(site: Site) -> None:
    site.write(
        fault="def fault(index):\n    if index == 3:\n        raise ValueError('three')",
        stream="on_error = 'replace'",
    )
    loader = site.loader(source=site.config)
    take(loader)
    bad = site.folder / "d.sock.bad.jsonl"
    until("the quarantine file", bad.exists)
    (site.folder / "d.sock.bad.jsonl.1").touch()  # as rotation leaves them
    (site.folder / "d.sock.log.1").touch()


TWO_MORE = """
[streams.val]
dataset = "other:Numbers"
dataset_args = {{n = 40}}
batch_size = 8
[streams.bad]
{bad}
"""
BAD = {
    "code that is not there": ('dataset = "nowhere:Nothing"', "nowhere"),
    "no database": ('lmdb = "none.lmdb"', "none.lmdb"),
    "code that ends its process": ('dataset = "ends:Numbers"', "SIGKILL"),
}


def with_others(site: Site, bad: str = 'lmdb = "none.lmdb"') -> Site:
    """Beside "train" a stream "val" with a module of its own, and one that cannot be opened."""
    site.write()
    (site.folder / "other.py").write_text((site.folder / "mine.py").read_text())
    (site.folder / "ends.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    site.config.write_text(site.config.read_text() + TWO_MORE.format(bad=bad))
    return site


@pytest.mark.parametrize("what", BAD)
def test_a_stream_that_cannot_be_opened_is_an_error_for_who_asks_for_it_alone(
    site: Site, undisturbed: str, what: str
) -> None:
    bad, said = BAD[what]
    with_others(site, bad)
    loader = site.loader(source=site.config)
    got = take(loader)
    (pid,) = daemons(site)
    for _ in range(2):
        with pytest.raises(StreamFailedError, match=rf"stream 'bad': [\s\S]*{said}"):
            len(site.loader(source=site.config, stream="bad"))
    assert len(take(site.loader(source=site.config, stream="val"))) == 5
    assert digest(got + take(loader)) == undisturbed
    assert daemons(site) == [pid]
    for each in site.loaders:
        each.close()
    gone(site)


def test_who_starts_a_daemon_for_a_stream_that_cannot_be_opened_is_told_why(
    site: Site, undisturbed: str
) -> None:
    with_others(site)
    with pytest.raises(StreamFailedError, match=r"stream 'bad': .*none\.lmdb"):
        len(site.loader(source=site.config, stream="bad"))
    with pytest.raises(ConfigError, match="no stream 'worse'; there are: train, val, bad"):
        len(site.loader(source=site.config, stream="worse"))
    loader = site.loader(source=site.config)
    assert digest(take(loader) + take(loader)) == undisturbed
    loader.close()
    gone(site)


def test_a_quarantine_file_that_the_config_names_stays(site: Site) -> None:
    fault = "def fault(index):\n    if index == 3:\n        raise ValueError('three')"
    site.write(fault=fault, stream="on_error = 'replace'", daemon='quarantine = "bad.jsonl"')
    loader = site.loader(source=site.config)
    take(loader)
    until("the quarantine file", (site.folder / "bad.jsonl").exists)
    loader.close()
    gone(site)
    assert "three" in (site.folder / "bad.jsonl").read_text()


def test_a_config_in_a_folder_whose_name_is_not_utf_8_is_served(
    tmp_path: Path, undisturbed: str
) -> None:
    folder = os.fsdecode(os.path.join(os.fsencode(tmp_path), b"f\xff"))
    os.mkdir(folder)
    site = Site(Path(folder)).write()
    site.config.write_text(site.config.read_text().replace('"d.sock"', f'"{tmp_path}/d.sock"'))
    with site.loader(source=site.config) as loader:
        assert digest(take(loader) + take(loader)) == undisturbed
    until("the embedded daemon's end", lambda: not daemons(site))


def test_another_shuffle_is_told_as_a_config_has_it(site: Site) -> None:
    site.write()
    with site.loader(source=site.config) as loader:
        take(loader, 1)
        state = loader.state_dict()
    gone(site)
    site.config.write_text(
        site.config.read_text().replace("shuffle = true", "shuffle = {block = 16}")
    )
    with site.loader(source=site.config) as loader:
        loader.load_state_dict(state)
        with pytest.raises(ConfigError, match=r"shuffle was true, is \{block = 16\}"):
            next(iter(loader))


def test_a_handler_that_raises_all_the_time_stops_neither_the_start_nor_the_batches(
    site: Site,
) -> None:
    site.write(n=16, pause=0.1, workers=1)
    old = signal.signal(signal.SIGALRM, _raise)
    batches, got, interrupts = iter(site.loader(source=site.config, batch_size=3)), [], 0
    signal.setitimer(signal.ITIMER_REAL, 0.13, 0.13)
    try:
        while len(got) < 16:
            try:
                for batch in batches:
                    got += batch["y"].tolist()
            except TimeoutError:
                interrupts += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert sorted(got) == list(range(16))
    assert interrupts > 6


def _raise(_: int, frame: FrameType | None) -> None:
    # outside of next() what Python loses between a return and an assignment is nobody's to save
    while frame is not None:
        if frame.f_code.co_name == "__next__":
            raise TimeoutError
        frame = frame.f_back


def test_serve_refuses_a_config_whose_streams_cannot_all_be_opened_and_names_each_that_cannot(
    site: Site,
) -> None:
    with_others(site)
    site.config.write_text(
        site.config.read_text() + '[streams.worse]\ndataset = "nowhere:Nothing"\n'
    )
    site.serve(wait=False)
    assert site.process.wait(DEADLINE_S) == 3
    assert "stream 'bad': " in site.text()
    assert "stream 'worse': " in site.text()
    assert "ready: " not in site.text()


def test_a_stream_opened_late_outlives_its_workers_and_their_template(
    site: Site, undisturbed: str
) -> None:
    with_others(site)
    loader = site.loader(source=site.config)
    got = take(loader)
    late = site.loader(source=site.config, stream="val")
    before = digest(take(late))
    (pid,) = daemons(site)
    (template,) = children(pid)
    workers = [pid for pid in children(template) if alive(pid)]
    for victim in (*workers, template):
        os.kill(victim, signal.SIGKILL)
        late.set_epoch(0)
        assert digest(take(late)) == before
    assert digest(got + take(loader)) == undisturbed
    for each in site.loaders:
        each.close()
    gone(site)


def test_a_stream_whose_code_breaks_while_it_is_served_breaks_alone(
    site: Site, undisturbed: str
) -> None:
    with_others(site)
    loader = site.loader(source=site.config)
    got = take(loader)
    late = site.loader(source=site.config, stream="val")
    assert len(take(late)) == 5
    (site.folder / "other.py").write_text("this is no Python at all\n")
    (pid,) = daemons(site)
    (template,) = children(pid)
    workers = children(template)
    os.kill(template, signal.SIGKILL)
    until("its workers' end", lambda: not any(map(alive, workers)))
    with pytest.raises(StreamFailedError, match=r"other\.py"):
        indices(take(late) + take(late))
    assert digest(got + take(loader)) == undisturbed
    for each in site.loaders:
        each.close()
    gone(site)
