from __future__ import annotations

import re
from pathlib import Path

from loaderd_testing.examples import Examples, Run
from loaderd_testing.pages import block, text_of

IMPORTS = ("loaderd_testing.torchvision_operators", "transformers.trainer")


def test_a_trainer_that_is_killed_goes_on_from_its_checkpoint_with_the_next_batch(
    examples: Examples, tmp_path: Path
) -> None:
    whole = examples.start("transformers_trainer.py", str(tmp_path / "whole"), imports=IMPORTS)
    undisturbed = examples.undisturbed(2)
    assert whole.finished().steps() == undisturbed
    assert re.findall(r"validation of (\d+) samples", whole.text()) == ["23", "23"]

    args = ("transformers_trainer.py", str(tmp_path / "killed"))
    with examples.held_back(undisturbed[6][2][0]):
        first = examples.start(*args, imports=IMPORTS)
        first.has_trained(6)
        first.kill()
    second = examples.start(*args, imports=IMPORTS).finished()
    assert first.steps() == undisturbed[:6]
    assert second.steps() == undisturbed[4:]  # saved after four steps
    assert losses(second) == losses(whole)[4:]


def test_the_callback_and_the_trainer_of_the_guide_are_those_that_are_tested() -> None:
    shown = block("client/README.md", "python", "ExportableState")
    assert shown in text_of("client/examples/transformers_trainer.py")


def losses(run: Run) -> list[str]:
    return re.findall(r"loss \d.*", run.text())
