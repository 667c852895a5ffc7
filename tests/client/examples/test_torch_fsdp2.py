from __future__ import annotations

from pathlib import Path

from loaderd_testing.examples import SAMPLES, Examples


def test_two_ranks_that_are_killed_go_on_as_three_and_no_sample_comes_twice_or_never(
    examples: Examples, tmp_path: Path
) -> None:
    ranks = [examples.undisturbed(1, rank, 2) for rank in (0, 1)]
    with examples.held_back(ranks[0][6][2][0]):
        first = examples.start("torch_fsdp2.py", str(tmp_path / "saved"), ranks=2)
        first.has_trained(6)
        first.kill()
    assert [first.steps(rank) for rank in (0, 1)] == [rank[:6] for rank in ranks]

    second = examples.start("torch_fsdp2.py", str(tmp_path / "saved"), ranks=3).finished()
    assert second.steps()[0][:2] == (0, 4)  # saved after four steps
    before = [index for rank in ranks for _, _, samples in rank[:4] for index in samples]
    for epoch, taken in ((0, before), (1, [])):
        for rank in range(3):
            taken += [i for e, _, samples in second.steps(rank) if e == epoch for i in samples]
        assert sorted(taken) == list(range(SAMPLES))
    assert [e for e, _, _ in second.steps()] == [0] * 6 + [1] * 8
