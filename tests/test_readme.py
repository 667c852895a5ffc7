"""The README's blocks run, and what it names exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import lmdb
import numpy as np
import pytest
import torch
from PIL import Image

from loaderd_testing.deadlines import DEADLINE_S

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


def block(language: str, what: str) -> str:
    """The only block in this language that has these words."""
    found = [each for each in re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.S | re.M) if what in each]
    assert len(found) == 1
    return found[0]


def loaderd(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "loaderd", *args], cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S)


def commands() -> list[list[str]]:
    """The indented `loaderd ...` lines, without their comments."""
    return [line.split("#")[0].split() for line in re.findall(r"^    (loaderd .*)$", TEXT, re.M)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos/ in class folders, the README's config, and the function that it calls."""
    folder = tmp_path_factory.mktemp("readme")
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (folder / "photos" / name).mkdir(parents=True)
        for i in range(60):
            Image.fromarray(rng.integers(0, 256, (40, 48, 3), np.uint8)).save(folder / "photos" / name / f"{i}.jpg")
    (folder / "config.toml").write_text(block("toml", "[streams.train]"))
    (folder / "augment.py").write_text("def train(sample, rng, strength):\n    return sample\n")
    return folder


def test_the_commands_work_in_their_order(site: Path) -> None:
    shown = commands()
    assert [c[1] for c in shown] == ["pack", "check", "serve", "status", "preview"]
    for command in shown:
        if command[1] not in ("serve", "status"):
            done = loaderd(site, *command[1:])
            assert done.returncode == 0, (command, done.stdout, done.stderr)
    with Image.open(site / "batch.png") as sheet:
        assert sheet.size > (100, 100)


def test_the_training_loop_trains(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (site / "train.lmdb").exists():
        assert loaderd(site, "pack", "imagefolder", "photos", "train.lmdb").returncode == 0
    monkeypatch.chdir(site)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 2))
    world = {"model": model, "criterion": torch.nn.CrossEntropyLoss(), "optimizer": torch.optim.SGD(model.parameters(), 0.01)}
    before = [p.detach().clone() for p in model.parameters()]
    exec(compile(block("python", "import Loader"), "README.md", "exec"), world)
    world["loader"].close()
    assert world["loss"].isfinite()
    assert any((a != b).any() for a, b in zip(before, model.parameters(), strict=True))


def test_the_layout_class_reads_a_database_that_something_else_has_written(site: Path) -> None:
    (site / "layouts.py").write_text(block("python", "class Pairs"))
    files = sorted((site / "photos").rglob("*.jpg"))[:20]
    with lmdb.open(str(site / "foreign.lmdb"), subdir=False, map_size=1 << 24) as env, env.begin(write=True) as txn:
        txn.put(b"num-samples", b"%d" % len(files))
        for number, file in enumerate(files, 1):
            txn.put(b"image-%09d" % number, file.read_bytes())
            txn.put(b"label-%09d" % number, b"%d" % number)
    (site / "foreign.toml").write_text('[streams.train]\nlmdb = "foreign.lmdb"\nlayout = "layouts:Pairs"\n')
    done = loaderd(site, "check", "foreign.toml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "samples   20, layout layouts:Pairs" in done.stdout
    assert "image uint8[40,48,3]" in done.stdout


def test_every_argument_and_file_that_it_names_exists() -> None:
    import inspect

    from loaderd_client import Loader

    known = set(inspect.signature(Loader).parameters)
    for name in re.findall(r"Loader\((?:\"config.toml\", )?(\w+)=", TEXT):
        assert name in known, name
    for name in re.findall(r"`((?:loaderd|client|deploy|tests)/[\w/.]*|CHANGELOG\.md)`", TEXT):
        assert (ROOT / name).exists(), name


def rows(text: str, begin: str) -> list[list[str]]:
    """The cells of a table's rows that begin so."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if re.match(begin, line)]


def test_what_is_said_of_dataloader_is_what_was_recorded() -> None:
    record: dict[str, list[list[str]]] = {}
    for situation, *sides in rows((ROOT / "tests" / "faults" / "freezes" / "README.md").read_text(), r"\| S\d+ [^|]+\|[^|]*batches"):
        record.setdefault(situation.split()[0], []).append([situation, *sides])
    assert set(record) == {f"S{n}" for n in range(1, 27)}
    told: list[str] = []
    for seeds, what, *sides in rows(TEXT, r"\| S\d+[, |]"):
        for seed in seeds.split(", "):
            told.append(seed)
            for _, *seen in record[seed]:
                for said, was in zip(sides, seen, strict=True):
                    assert ("stands still" in said) == ("stands still" in was), seed
                    assert not said.startswith("ends") or "then it ends" in was, seed
                    assert not said.startswith("all batches") or re.match(r"all [\d,]+ batches", was), seed
        known = set(re.findall(r"[\d.,]*\d", str([record[seed] for seed in seeds.split(", ")]))) | {"48", "200"}
        assert set(re.findall(r"[\d.,]*\d", f"{what} {sides}")) <= known, seeds
    assert sorted(told) == sorted(record)


def test_no_placeholder_is_left() -> None:
    assert "@@" not in TEXT
