"""The pages that users read: their blocks run, what they claim is what was recorded, and they are
short and plain.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import lmdb
import numpy as np
import pytest
import torch
from PIL import Image
from torch.optim.optimizer import register_optimizer_step_post_hook

import loaderd
from loaderd import Loader, LoaderdError
from loaderd.data.packing.kinds import KINDS  # of the others: tests/cli/test_pack_kinds.py
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_testing.pages import ROOT, block, commands, prose, rows, sentences, text_of

README, CLIENT, DATA = "README.md", "client/README.md", "loaderd/data/README.md"
USER_PAGES = (
    README,
    CLIENT,
    "client/MIGRATING.md",
    DATA,
)  # its blocks: tests/client/test_migrating.py


def run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loaderd", *args],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def photos(folder: Path) -> None:
    """photos/ in class folders."""
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (folder / "photos" / name).mkdir(parents=True)
        for i in range(60):
            Image.fromarray(rng.integers(0, 256, (40, 48, 3), np.uint8)).save(
                folder / "photos" / name / f"{i}.jpg"
            )


DATASET = """
import numpy as np
class MyDataset:
    def __init__(self, root): self.root = root
    def __len__(self): return 16
    def __getitem__(self, i): return {"x": np.full(3, i, np.float32), "name": f"{self.root}/{i}"}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the data page's commands work on: photos, its config, and the modules that it names."""
    folder = tmp_path_factory.mktemp("pages")
    photos(folder)
    (folder / "config.toml").write_text(block(DATA, "toml", "[daemon]"))
    (folder / "augment.py").write_text("def train(sample, rng, strength):\n    return sample\n")
    (folder / "mypkg").mkdir()
    (folder / "mypkg" / "__init__.py").write_text("")
    (folder / "mypkg" / "data.py").write_text(DATASET)
    return folder


def packed(site: Path) -> Path:
    if not (site / "train.lmdb").exists():
        done = run(site, "pack", "imagefolder", "photos", "train.lmdb")
        assert done.returncode == 0, done.stderr
    return site


def test_the_quickstart_works_as_it_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    photos(tmp_path)
    monkeypatch.chdir(tmp_path)
    pack, check, status = commands(README)
    assert [command[1] for command in (pack, check, status)] == ["pack", "check", "status"]
    done = run(tmp_path, *pack[1:])
    assert done.returncode == 0, done.stderr
    (tmp_path / "config.toml").write_text(block(README, "toml", "[streams.train]"))
    done = run(tmp_path, *check[1:])
    assert done.returncode == 0, done.stdout + done.stderr
    steps: list[object] = []
    counts = register_optimizer_step_post_hook(lambda *optimizer: steps.append(optimizer))
    world: dict[str, object] = {}
    exec(compile(block(README, "python", "import Loader"), README, "exec"), world)
    counts.remove()
    done = run(tmp_path, *status[1:])
    assert (done.returncode, "STREAMS" in done.stdout) == (0, True), done.stdout + done.stderr
    loader = world["loader"]
    assert isinstance(loader, Loader)
    loader.close()
    assert len(steps) == 2 * 4
    printed = capsys.readouterr().out.strip()
    said = re.search(r"You see one line such as `(.+?)`", text_of(README))
    assert said is not None
    assert re.sub(r"[\d.]+", "0", printed) == re.sub(r"[\d.]+", "0", said[1])


@pytest.mark.parametrize(("settings", "longest"), [("tokens:pad", 49), ("attention_mask", 56)])
def test_ragged_lists_are_padded_as_the_data_page_says(
    tmp_path: Path, settings: str, longest: int
) -> None:
    (tmp_path / "tokens.py").write_text(block(DATA, "python", "class Reviews"))
    (tmp_path / "config.toml").write_text(block(DATA, "toml", settings))
    with Loader(str(tmp_path / "config.toml"), output="numpy") as loader:
        first, second = loader
    assert first["label"].tolist() == [0, 1]
    assert bytes(first["input_ids"][0].astype("u1")).rstrip(b"\0") == b"short"
    assert second["input_ids"].shape == (1, longest)


def test_the_commands_of_the_data_page_work_in_their_order(site: Path) -> None:
    shown = [c for c in commands(DATA) if c[2] not in KINDS or c[2] in ("imagefolder", "dataset")]
    assert [c[1] for c in shown] == ["pack", "pack", "check", "serve", "status", "preview"]
    for command in shown:
        if command[1] in ("serve", "status"):
            continue
        text = " ".join(command[1:])
        words = [
            *text.split(" --args ")[0].split(),
            *(["--args", json.dumps({"root": "/data"})] if "--args" in text else []),
        ]
        target = "numbers.lmdb" if "dataset" in words else "train.lmdb"
        done = run(site, *[target if word.endswith(".lmdb") else word for word in words])
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    with Image.open(site / "batch.png") as sheet:
        assert sheet.size > (100, 100)


def test_a_dataset_is_served_as_it_is(site: Path) -> None:
    (site / "as_it_is.toml").write_text(block(DATA, "toml", "[streams.train]\ndataset"))
    done = run(site, "check", "as_it_is.toml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "x float32[3]" in done.stdout


def test_the_training_loop_trains_and_its_state_is_kept_and_loaded(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(packed(site))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 2))
    world = {
        "model": model,
        "criterion": torch.nn.CrossEntropyLoss(),
        "optimizer": torch.optim.SGD(model.parameters(), 0.01),
        "torch": torch,
    }
    before = [p.detach().clone() for p in model.parameters()]
    exec(compile(block(CLIENT, "python", "import Loader"), CLIENT, "exec"), world)
    assert world["loss"].isfinite()
    assert any((a != b).any() for a, b in zip(before, model.parameters(), strict=True))
    exec(compile(block(CLIENT, "python", "torch.save"), CLIENT, "exec"), world)
    world["loader"].close()
    world["loader"] = Loader("config.toml", stream="train")
    exec(compile(block(CLIENT, "python", "torch.load"), CLIENT, "exec"), world)
    assert world["loader"].epoch == 2
    world["loader"].close()


def test_the_layout_class_reads_a_database_that_something_else_has_written(site: Path) -> None:
    (site / "layouts.py").write_text(block(DATA, "python", "class Pairs"))
    files = sorted((site / "photos").rglob("*.jpg"))[:20]
    with (
        lmdb.open(str(site / "foreign.lmdb"), subdir=False, map_size=1 << 24) as env,
        env.begin(write=True) as txn,
    ):
        txn.put(b"num-samples", b"%d" % len(files))
        for number, file in enumerate(files, 1):
            txn.put(b"image-%09d" % number, file.read_bytes())
            txn.put(b"label-%09d" % number, b"%d" % number)
    (site / "foreign.toml").write_text(
        '[streams.train]\nlmdb = "foreign.lmdb"\nlayout = "layouts:Pairs"\n'
    )
    done = run(site, "check", "foreign.toml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "samples   20, layout layouts:Pairs" in done.stdout
    assert "image uint8[40,48,3]" in done.stdout


def test_every_argument_statistic_and_error_that_a_page_names_exists(tmp_path: Path) -> None:
    known = set(inspect.signature(Loader).parameters)
    named = 0
    for name in USER_PAGES:
        for argument in re.findall(r"Loader\((?:\"config.toml\", )?(\w+)=", text_of(name)):
            named += 1
            assert argument in known, argument
    assert named > 1
    stats = {
        word
        for first, *_ in rows(text_of(CLIENT), r"\| `(batches|waited|started|wait_fr)")
        for word in re.findall(r"\w+", first)
    }
    (tmp_path / "config.toml").write_text(block(README, "toml", "[streams.train]"))
    with Loader(tmp_path / "config.toml") as loader:
        assert stats <= set(loader.stats())
    assert len(stats) == 5
    errors = {first.strip("`") for first, *_ in rows(text_of(CLIENT), r"\| `\w+Error` ")}
    assert errors == {name for name in dir(loaderd) if name.endswith("Error")} - {"LoaderdError"}
    assert all(issubclass(getattr(loaderd, name), LoaderdError) for name in errors)


def test_what_is_said_of_dataloader_is_what_was_recorded() -> None:
    record: dict[str, list[list[str]]] = {}
    for situation, *sides in rows(
        text_of("tests/faults/freezes/README.md"), r"\| S\d+ [^|]+\|[^|]*batches"
    ):
        record.setdefault(situation.split()[0], []).append([situation, *sides])
    assert set(record) == {f"S{n}" for n in range(1, 27)}
    told: list[str] = []
    for seeds, what, *sides in rows(text_of(CLIENT), r"\| S\d+[, |]"):
        for seed in seeds.split(", "):
            told.append(seed)
            for _, *seen in record[seed]:
                for said, was in zip(sides, seen, strict=True):
                    assert ("stands still" in said) == ("stands still" in was), seed
                    assert not said.startswith("ends") or "then it ends" in was, seed
                    assert not said.startswith("all batches") or re.match(
                        r"all [\d,]+ batches", was
                    ), seed
        known = set(re.findall(r"[\d.,]*\d", str([record[seed] for seed in seeds.split(", ")]))) | {
            "48",
            "200",
        }
        assert set(re.findall(r"[\d.,]*\d", f"{what} {sides}")) <= known, seeds
    assert sorted(told) == sorted(record)


def test_the_figures_of_the_readme_are_those_of_the_benchmark_page() -> None:
    measured = text_of("tests/bench/README.md")
    shown = rows(text_of(README), r"\| .* \| [\d.,]+(/s| rows/s| images/s| s) \|")
    assert len(shown) == 4
    for _, *cells in shown:
        for cell in cells:
            assert re.findall(r"[\d.,]*\d", cell)[0] in measured, cell


def test_the_readme_is_short() -> None:
    words = sum(len(sentence) for sentence in sentences(text_of(README)))
    assert words > 300, "the count finds too little"
    assert 600 <= len(text_of(README).split()) <= 900


@pytest.mark.parametrize("name", USER_PAGES)
def test_sentences_of_the_user_pages_are_short(name: str) -> None:
    lengths = [len(sentence) for sentence in sentences(text_of(name))]
    assert len(lengths) > 30, "the count finds too little"
    assert sum(lengths) / len(lengths) < 17
    if name == README:
        assert max(lengths) < 20, max(sentences(text_of(name)), key=len)


@pytest.mark.parametrize("name", USER_PAGES)
def test_no_placeholder_and_no_private_word_is_left(name: str) -> None:
    assert "@@" not in text_of(name)
    words = {word.lower() for word in re.findall(r"[A-Za-z]+", prose(text_of(name)))}
    assert not words & {
        "treaty",
        "boss",
        "guest",
        "guests",
        "inquest",
        "verdict",
        "obituary",
        "rim",
    }


def test_the_root_is_where_the_pages_are() -> None:
    assert all((ROOT / name).exists() for name in USER_PAGES)
