"""Loaders in notebooks: cells that are edited, run again and interrupted, kernels that end."""

from __future__ import annotations

import fcntl
from contextlib import ExitStack

from faults.system.test_embedded import daemons, edit, gone
from loaderd_testing.daemon_harness import Site
from loaderd_testing.deadlines import until
from loaderd_testing.notebooks import Notebook

CELL = """
from loaderd import Loader
loader = Loader("config.toml", output="numpy", prefetch=1, stall_warning_s=1000)
print(*[batch["y"].tolist() for batch in loader])
"""
# A sample waits for as long as somebody has a lock on its file.
WAITS = """
    import fcntl
    path = os.path.join(os.path.dirname(__file__), "held-%d" % index)
    if os.path.exists(path):
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH)
"""


def written(site: Site, n: int = 12, fault: str = "") -> Site:
    """Samples in batches of 4, in their order."""
    site.write(n=n, workers=1, timeout=1000, fault=f"def fault(index):{fault}" if fault else "")
    edit(site, "shuffle = true\nseed = 7\n", "", file="config.toml")
    edit(site, "batch_size = 8", "batch_size = 4", file="config.toml")
    return site


def test_a_cell_that_is_run_again_takes_up_what_was_edited_whatever_the_notebook_keeps(
    site: Site,
) -> None:
    written(site)
    with Notebook(site.folder) as notebook:
        notebook.run("%load_ext autoreload\n%autoreload 2\nimport mine")
        assert notebook.run(CELL) == ("[0, 1, 2, 3] [4, 5, 6, 7] [8, 9, 10, 11]\n", "")
        # what is displayed is kept
        assert notebook.run("loader").text == f"Loader({str(site.config)!r}, stream='train')"
        shown = notebook.run("batch = next(iter(loader)); batch").text.splitlines()
        assert shown[0] == "DictBatch: epoch 1, step 0, rows 4"
        assert shown[2].split() == ["y", "int64", "(4,)"]
        edit(site, "batch_size = 4", "batch_size = 6", file="config.toml")
        assert notebook.run(CELL) == ("[0, 1, 2, 3, 4, 5] [6, 7, 8, 9, 10, 11]\n", "")
        # so is the traceback of an error
        edit(site, '"y": index', '"y": 12 // index')
        error = notebook.run(CELL).error
        assert "sample '0' (index 0) failed in read: ZeroDivisionError" in error
        edit(site, '"y": 12 // index', '"y": -index')
        assert notebook.run(CELL) == ("[0, -1, -2, -3, -4, -5] [-6, -7, -8, -9, -10, -11]\n", "")
        assert notebook.run("print(mine.Numbers()[3]['y'])").text == "-3\n"
        # a daemon that cannot start says why, and its log is where the guide says
        notebook.run("%autoreload 0")
        edit(site, "import os", "import os; os.write(2, b'no licence\\n'); os._exit(3)\nimport os")
        error = notebook.run(CELL).error
        assert "the worker could not start: exit code 3; it printed: no licence" in error
        with open(f"{site.socket}.log") as log:
            assert "no licence" in log.read()


def test_ten_interrupts_and_a_restart_lose_no_batch_and_leave_no_session(site: Site) -> None:
    written(site, 44, WAITS)
    with ExitStack() as stack, Notebook(site.folder) as notebook:
        held = [stack.enter_context((site.folder / f"held-{n}").open("w")) for n in range(4, 44, 4)]
        for file in held:
            fcntl.flock(file, fcntl.LOCK_EX)
        notebook.run(CELL.replace("print(", "got = [] #") + "batches = iter(loader)")
        take = (
            "for batch in batches:\n    got += batch['y'].tolist()\n    print('step', batch.step)"
        )
        for step, file in enumerate(held):
            assert notebook.interrupted(take, at=f"step {step}\n").error == "KeyboardInterrupt: "
            file.close()
        assert notebook.run(take) == ("step 10\n", "")
        assert notebook.run("print(got == [*range(44)])").text == "True\n"

        # a new Loader each time
        again = CELL.replace("print(", "#") + "while True:\n    for batch in loader: print('step')"
        for _ in range(10):
            assert notebook.interrupted(again, at="step").error == "KeyboardInterrupt: "
        whole = " ".join(str([*range(n, n + 4)]) for n in range(0, 44, 4)) + "\n"
        assert notebook.run(CELL) == (whole, "")
        assert len(site.status()["sessions"]) == 1
        assert len(daemons(site)) == 1

        notebook.restart()
        assert notebook.run(CELL) == (whole, "")
        until("the end of the old session", lambda: len(site.status()["sessions"]) == 1)
    gone(site)


def test_two_notebooks_share_a_daemon_that_outlives_a_killed_kernel_and_goes_with_the_last(
    site: Site,
) -> None:
    written(site)
    whole = "[0, 1, 2, 3] [4, 5, 6, 7] [8, 9, 10, 11]\n"
    with Notebook(site.folder) as one, Notebook(site.folder, "other") as other:
        assert (one.run(CELL), other.run(CELL)) == ((whole, ""), (whole, ""))
        assert len(daemons(site)) == 1
        edit(site, "batch_size = 4", "batch_size = 6", file="config.toml")
        text = other.run(CELL).text
        assert (
            "has changed since its daemon started, which goes on with the old settings: others use it"
            in text
        )
        assert text.endswith(whole)
        one.kill()
        until("the end of its session", lambda: len(site.status()["sessions"]) == 1)
        assert other.run(CELL) == ("[0, 1, 2, 3, 4, 5] [6, 7, 8, 9, 10, 11]\n", "")
        other.kill()
        gone(site)
