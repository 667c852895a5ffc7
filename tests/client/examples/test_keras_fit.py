from __future__ import annotations

from pathlib import Path

from loaderd_testing.examples import Examples

IMPORTS = ("loaderd_testing.keras_import",)


def test_a_fit_that_is_killed_goes_on_with_the_batch_after_the_last_that_was_trained(
    examples: Examples, tmp_path: Path
) -> None:
    whole = examples.start("keras_fit.py", str(tmp_path / "whole"), imports=IMPORTS).finished()
    undisturbed = examples.undisturbed(2)
    assert whole.steps() == undisturbed
    assert "Warning" not in whole.all_text()
    again = examples.start("keras_fit.py", str(tmp_path / "whole"), imports=IMPORTS).finished()
    assert again.steps() == [], "it was saved after the last step"

    args = ("keras_fit.py", str(tmp_path / "killed"))
    with examples.held_back(undisturbed[6][2][0]):
        first = examples.start(*args, imports=IMPORTS)
        first.has_trained(6)
        first.kill()
    second = examples.start(*args, imports=IMPORTS).finished()
    assert first.steps() == undisturbed[:6]
    assert second.steps() == undisturbed[4:]  # saved after four steps
    assert second.text().splitlines() == whole.text().splitlines()[4:]
