"""Values that are not finite, from a database through built-in ops to the trainer: named by key and
field, under the stream's policy.
"""

from __future__ import annotations

import textwrap

import numpy as np
import pytest

from loaderd_client import SampleError
from loaderd_testing.daemon_harness import Site, indices, take

DATA = """
import numpy as np

class Maps:
    '''Pictures of floats: 13 has a NaN, 29 an infinity.'''
    def __len__(self):
        return 48
    def __getitem__(self, index):
        x = np.full((6, 5, 3), index / 48, np.float32)
        if index == 13:
            x[2, 3, 1] = np.nan
        if index == 29:
            x[0, 0, 0] = np.inf
        return {"x": x, "y": index}
"""
CONFIG = """
[daemon]
socket = "d.sock"
[workers]
num_workers = 2
[streams.train]
lmdb = "maps.lmdb"
batch_size = 8
shuffle = true
seed = 3
nonfinite = "error"
on_error = "{policy}"
{sample_pipeline}
"""
RECIPE = (
    '[[streams.train.transforms]]\nop = "normalize"\nfield = "x"\nmean = [0.5, 0.5, '
    "0.5]\nstd = [0.25, 0.25, 0.25]\n"
)


def served(site: Site, policy: str, sample_pipeline: str) -> Site:
    (site.folder / "maps.py").write_text(textwrap.dedent(DATA))
    done = site.cli("pack", "dataset", "maps:Maps", "maps.lmdb")
    assert done.returncode == 0, done.stderr
    site.config.write_text(CONFIG.format(policy=policy, sample_pipeline=sample_pipeline))
    return site.serve()


@pytest.mark.parametrize("sample_pipeline", [RECIPE, ""], ids=["normalized", "copied in bulk"])
def test_replaced_rows_are_finite_and_their_originals_named(
    site: Site, sample_pipeline: str
) -> None:
    loader = served(site, "replace", sample_pipeline).loader()
    errors = []
    got = []
    for batch in loader:
        errors += batch.errors
        got += take([batch])
    assert len(indices(got)) == 48
    assert not {13, 29} & set(indices(got))
    for batch in got:
        assert np.isfinite(batch["x"]).all()
        assert batch["y"].tolist() == batch["indices"]
    assert {(error.index, error.key, error.stage, error.error) for error in errors} == {
        (13, "13", "check", "NonFinite"),
        (29, "29", "check", "NonFinite"),
    }
    assert all("field 'x' has 1 values that are not finite" in error.message for error in errors)
    assert next(error for error in errors if error.index == 13).message.endswith(
        "the first at (2, 3, 1)"
    )


@pytest.mark.parametrize("sample_pipeline", [RECIPE, ""], ids=["normalized", "copied in bulk"])
def test_a_batch_with_a_nan_is_raised_with_its_key_and_field_and_the_next_one_comes(
    site: Site, sample_pipeline: str
) -> None:
    batches = iter(served(site, "raise", sample_pipeline).loader())
    errors: list[SampleError] = []
    rows = 0
    while True:
        try:
            rows += next(batches).rows
        except SampleError as error:
            errors.append(error)
        except StopIteration:
            break
    named = {bad.key for error in errors for bad in error.errors}
    assert named == {"13", "29"}
    assert rows == 48 - 8 * len(errors)
    for error in errors:
        assert f"sample {error.key!r}" in str(error)
        assert "field 'x'" in str(error)
        assert error.stage == "check"
