"""A short storm in every run of the tests; `make storm MINUTES=30` is the long one."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from faults.storm.dataset import PASSED
from faults.storm.faults import ALL, SURVIVED, plan
from faults.storm.storm import Storm

SEED = 4


@pytest.mark.timeout(300)
def test_trainers_in_a_storm_of_faults_get_every_batch_once_and_whole_and_nothing_is_left(
    tmp_path: Path,
) -> None:
    storm = Storm(tmp_path, SEED, 10.0, seats=3, workers=2, samples=400, gap_s=0.3, timeout_s=2.0)
    tally = storm.run()
    print(tally.markdown())
    assert not tally.wrong(), (
        f"seed {SEED}:\n" + "\n".join(tally.wrong()) + "\n" + storm.log.read_text()[-8000:]
    )
    assert tally.books["delivered"] > 100
    assert len(tally.faults) >= 20
    marks = {name: epochs[0] for name, epochs in json.loads(storm.expected.read_text()).items()}
    assert marks["passed/0/1"].count(PASSED) == 9
    assert PASSED not in marks["hollow/0/1"]


def test_a_seed_has_one_storm_and_a_long_one_has_every_kind_of_fault() -> None:
    plans = [plan(random.Random(seed), 100, 1.0, daemon=True) for seed in (5, 5, 6)]
    assert plans[0] == plans[1] != plans[2]
    assert {fault.kind for fault in plans[0]} == set(ALL)
    assert all(0 <= fault.at_s < 100 for fault in plans[0])
    assert {fault.kind for fault in plan(random.Random(5), 100, 1.0, daemon=False)} == set(SURVIVED)
