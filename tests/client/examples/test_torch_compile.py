from __future__ import annotations

from loaderd_testing.examples import SAMPLES, Examples


def test_a_step_that_is_compiled_once_takes_every_whole_batch_of_both_epochs(
    examples: Examples,
) -> None:
    run = examples.start("torch_compile.py", "aot_eager").finished()  # needs no compiler
    taken = [index for epoch, _, samples in run.steps() if epoch == 0 for index in samples]
    assert len(taken) == len(set(taken)) == SAMPLES // 7 * 7
    assert run.steps() == examples.undisturbed(2, batch_size=7, drop_last=True)
