from __future__ import annotations

import re
from pathlib import Path

from loaderd_testing.examples import Examples

IMPORTS = ("accelerate",)
CPU = {"ACCELERATE_USE_CPU": "true"}  # as `accelerate launch --cpu` says


def test_two_ranks_that_are_killed_go_on_from_their_saved_state_and_validate_each_sample_once(
    examples: Examples, tmp_path: Path
) -> None:
    ranks = [examples.undisturbed(2, rank, 2) for rank in (0, 1)]
    args = ("accelerate_ddp.py", str(tmp_path / "saved"))
    with examples.held_back(ranks[0][6][2][0]):
        first = examples.start(*args, ranks=2, imports=IMPORTS, **CPU)
        first.has_trained(6)
        first.kill()
    second = examples.start(*args, ranks=2, imports=IMPORTS, **CPU).finished()
    for rank in (0, 1):
        assert first.steps(rank) == ranks[rank][:6]
        assert second.steps(rank) == ranks[rank][4:]  # saved after four steps
        # both lives have trained the fifth and the sixth, from the same weights
        assert first.text(rank).splitlines()[4:6] == second.text(rank).splitlines()[:2]
    assert re.findall(r"validation of (\d+) samples", second.text()) == ["23", "23"]
