"""What user code draws from the global generators: a function of the sample, whoever makes it,
after whatever death.
"""

from __future__ import annotations

from pathlib import Path

from faults.freezes.users import bring
from loaderd_testing.daemon_harness import Site, digest, take

# Draws in few samples only, all of them late, of numbers of which the generators keep every second;
# ends its worker once where it is told to.
MODULE = """
import random

class Data:
    def __len__(self):
        return 1400
    def __getitem__(self, index):
        drawn = 0.0
        if index >= 1000 and index % 3 == 0:
            drawn = random.gauss(0, 1) + np.random.standard_normal()
        if {deadly} and index in (1002, 1203) and mark(f"death{{index}}"):
            os._exit(3)
        return {{"index": index, "drawn": drawn}}

def more(sample, rng):
    if sample["index"] >= 1000:
        sample["drawn"] = sample["drawn"] + random.random() + np.random.rand() + rng.random()
    return sample
"""


def delivered(folder: Path, workers: int, deadly: bool = False) -> tuple[str, int]:
    """(the digest of an epoch, how many different sums it has) of a daemon of its own."""
    folder.mkdir()
    site = Site(folder)
    try:
        bring(
            site,
            MODULE.format(deadly=deadly),
            workers=workers,
            batch=40,
            stream="shuffle = true",
            transform="mine:more",
        ).serve()
        with site.loader() as loader:
            got = take(loader)
        assert all((folder / f"death{index}").exists() is deadly for index in (1002, 1203))
        return digest(got), len({value for batch in got for value in batch["drawn"].tolist()})
    finally:
        site.close()


def test_code_that_draws_late_and_seldom_draws_the_same_in_one_worker_in_four_and_after_deaths(
    tmp_path: Path,
) -> None:
    undisturbed = delivered(tmp_path / "one", workers=1)
    assert undisturbed[1] == 401  # 400 that have drawn, and none
    assert delivered(tmp_path / "four", workers=4) == undisturbed
    assert delivered(tmp_path / "deaths", workers=2, deadly=True) == undisturbed
