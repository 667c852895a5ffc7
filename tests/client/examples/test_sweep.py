from __future__ import annotations

import re
from pathlib import Path

from loaderd_testing.deadlines import until
from loaderd_testing.examples import Examples, steps_in

RATES = ("0.5", "0.1", "0.02", "0.004")


def test_four_trials_that_are_killed_once_go_on_with_their_next_batch_and_share_it(
    examples: Examples, tmp_path: Path
) -> None:
    undisturbed = examples.undisturbed(2)
    logs = [tmp_path / f"{rate}.log" for rate in RATES]
    with examples.held_back(undisturbed[9][2][0]):
        run = examples.start("sweep.py", str(tmp_path))
        until(  # they meet where nobody can go on
            "nine steps of each trial, two of them twice",
            lambda: (
                all(log.exists() and len(steps_in(log.read_text())) == 11 for log in logs)
                or examples.ended(run.pid) is not None
            ),
        )
    text = run.finished().text()
    losses = set[str]()
    for rate, log in zip(RATES, logs, strict=True):
        lines = log.read_text().splitlines()
        steps = steps_in(log.read_text())
        assert steps == undisturbed[:6] + undisturbed[4:]  # saved after four steps
        assert lines[4:6] == lines[6:8]
        told = re.search(rf"rate {rate}: loss (\S+); (\d+)% of the batches", text)
        assert told is not None
        assert lines[-1].endswith(told[1])
        assert int(told[2]) > 0
        losses.add(told[1])
    assert len(losses) == len(RATES)
