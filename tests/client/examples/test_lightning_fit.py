from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

from loaderd_testing.examples import SAMPLES, Examples, Run
from loaderd_testing.pages import block, text_of

IMPORTS = ("loaderd_testing.torchvision_operators", "lightning")


def validations(run: Run) -> list[str]:
    return re.findall(r"validation of (\d+) samples", run.text())


def test_a_fit_that_is_killed_goes_on_in_mid_epoch_and_validates_all_samples_each_time(
    examples: Examples, tmp_path: Path
) -> None:
    whole = examples.start("lightning_fit.py", str(tmp_path / "whole"), imports=IMPORTS)
    undisturbed = examples.undisturbed(2)
    assert whole.finished().steps() == undisturbed
    # a sanity check of two batches, then after every 6 of 2 * 24 steps
    assert validations(whole) == ["10", *["23"] * 8]

    args = ("lightning_fit.py", str(tmp_path / "killed"))
    with ExitStack() as second_epoch:
        with examples.held_back(undisturbed[23][2][0]):
            first = examples.start(*args, imports=IMPORTS)
            first.has_trained(23)
            second_epoch.enter_context(examples.held_back(undisturbed[30][2][0]))
        first.has_trained(30)
        first.kill()
    second = examples.start(*args, imports=IMPORTS).finished()
    assert first.steps() == undisturbed[:30]
    assert second.steps() == undisturbed[28:]  # saved after 28 steps
    losses = [re.findall(r"loss .*", run.text()) for run in (whole, second)]
    assert losses[1] == losses[0][28:]


def test_two_devices_share_each_epoch_and_the_validation(
    examples: Examples, tmp_path: Path
) -> None:
    args = ("lightning_fit.py", str(tmp_path / "two"), "2")
    run = examples.start(*args, ranks=2, imports=IMPORTS).finished()
    for rank in (0, 1):
        assert run.steps(rank) == examples.undisturbed(2, rank, 2)
    taken = [i for rank in (0, 1) for e, _, samples in run.steps(rank) if not e for i in samples]
    assert sorted(taken) == list(range(SAMPLES))
    assert validations(run) == ["20", *["23"] * 4]


def test_the_data_module_of_the_guide_is_the_one_that_is_tested() -> None:
    shown = block("client/README.md", "python", "LightningDataModule")
    assert shown in text_of("client/examples/lightning_fit.py")
