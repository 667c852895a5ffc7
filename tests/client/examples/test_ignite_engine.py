from __future__ import annotations

import re
from pathlib import Path

from loaderd_testing.examples import Examples, Run

IMPORTS = ("ignite.engine", "ignite.handlers", "ignite.metrics")


def test_an_engine_that_is_killed_goes_on_from_its_checkpoint_with_the_next_batch(
    examples: Examples, tmp_path: Path
) -> None:
    whole = examples.start("ignite_engine.py", str(tmp_path / "whole"), imports=IMPORTS)
    undisturbed = examples.undisturbed(2)
    assert whole.finished().steps() == undisturbed

    args = ("ignite_engine.py", str(tmp_path / "killed"))
    with examples.held_back(undisturbed[6][2][0]):
        first = examples.start(*args, imports=IMPORTS)
        first.has_trained(6)
        first.kill()
    second = examples.start(*args, imports=IMPORTS).finished()
    assert first.steps() == undisturbed[:6]
    assert second.steps() == undisturbed[4:]  # saved after four steps
    assert results(second) == results(whole)[4:]


def results(run: Run) -> list[str]:
    return re.findall(r"loss \d.*|validation .*", run.text())
