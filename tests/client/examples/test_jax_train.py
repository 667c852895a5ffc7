from __future__ import annotations

from pathlib import Path

from loaderd_testing.examples import Examples

IMPORTS = ("jax.numpy",)


def test_a_run_that_is_killed_goes_on_with_the_next_batch_and_the_same_losses(
    examples: Examples, tmp_path: Path
) -> None:
    whole = examples.start("jax_train.py", str(tmp_path / "whole.npz"), imports=IMPORTS).finished()
    undisturbed = examples.undisturbed(2)
    assert whole.steps() == undisturbed

    args = ("jax_train.py", str(tmp_path / "killed.npz"))
    with examples.held_back(undisturbed[6][2][0]):
        first = examples.start(*args, imports=IMPORTS)
        first.has_trained(6)
        first.kill()
    second = examples.start(*args, imports=IMPORTS).finished()
    lines = whole.text().splitlines()
    assert first.text().splitlines() == lines[:6]
    assert second.text().splitlines() == lines[4:]  # saved after four steps
