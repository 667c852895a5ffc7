from __future__ import annotations

from pathlib import Path

from loaderd_testing.examples import SAMPLES, Examples


def test_ranks_that_are_started_again_after_a_death_go_on_with_the_next_batch(
    examples: Examples, tmp_path: Path
) -> None:
    ranks = [examples.undisturbed(2, rank, 2) for rank in (0, 1)]
    for epoch in range(2):
        taken = [i for rank in ranks for e, _, samples in rank if e == epoch for i in samples]
        assert sorted(taken) == list(range(SAMPLES))
    with examples.held_back(ranks[0][6][2][0]):
        run = examples.start("torch_ddp.py", str(tmp_path / "ddp.pt"), ranks=2)
        run.has_trained(6)
        run.kill_a_rank()  # the other one gets its batch, and no gradients for it
    run.finished()
    for rank in (0, 1):
        assert run.steps(rank) == ranks[rank][:6]
        assert run.steps(rank, life=1) == ranks[rank][4:]  # saved after four steps
    # both lives have trained the fifth and the sixth, from the same weights
    for rank in (0, 1):
        assert run.text(rank).splitlines()[4:6] == run.text(rank, life=1).splitlines()[:2]
