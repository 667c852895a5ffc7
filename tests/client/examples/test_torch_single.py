from __future__ import annotations

from pathlib import Path

from loaderd_testing.examples import SAMPLES, Examples


def test_a_run_that_is_killed_goes_on_with_the_next_batch_and_the_same_losses(
    examples: Examples, tmp_path: Path
) -> None:
    whole = examples.start("torch_single.py", str(tmp_path / "whole.pt")).finished()
    undisturbed = examples.undisturbed(2)
    assert whole.steps() == undisturbed
    for epoch in range(2):
        taken = [index for e, _, samples in whole.steps() if e == epoch for index in samples]
        assert sorted(taken) == list(range(SAMPLES))

    args = ("torch_single.py", str(tmp_path / "killed.pt"))
    with examples.held_back(undisturbed[6][2][0]):
        first = examples.start(*args)
        first.has_trained(6)
        first.kill()
    second = examples.start(*args).finished()
    lines = whole.text().splitlines()
    assert first.text().splitlines() == lines[:6]
    assert second.text().splitlines() == lines[4:]  # saved after four steps


def test_an_example_without_arguments_says_how_it_is_started(examples: Examples) -> None:
    run = examples.start("torch_single.py")
    assert run.code() == 1
    assert "python client/examples/torch_single.py client/examples/config.toml" in run.all_text()
    assert "Traceback" not in run.all_text()
