"""Each pair of client/MIGRATING.md is run, and both sides deliver the same where they can."""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore
from webdataset.writer import ShardWriter

from loaderd import Loader, __version__
from loaderd.cli import pack, status
from loaderd.cli.parser import parser
from loaderd.server.status_report import as_plain
from loaderd_testing.deadlines import until
from loaderd_testing.packing import write_mnist
from loaderd_testing.pages import commands, sections
from loaderd_testing.sample_builders import coded, picture
from loaderd_testing.torchvision_import import declare_operators

PAGE = "client/MIGRATING.md"
IMAGES = "A folder of images"
MODULE = re.compile(r"# (\w+)\.py\n")
pytestmark = [
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # webdataset closes shards by chance
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata
]


class Ran(NamedTuple):
    """The values that each step of a program was called with."""

    train: list[tuple[Any, ...]]
    val: list[tuple[Any, ...]]


class Page:
    """The page's modules, configs and data in the current folder.

    The first section has a config of its own, since its classes are others. A Loader keeps the
    daemon of all other sections.
    """

    def __init__(self, folder: Path) -> None:
        self.modules: list[str] = []
        self._programs: dict[str, list[str]] = {}
        configs = {name: f'[daemon]\nsocket = "{name}.sock"\n' for name in ("images", "config")}
        for title, blocks in sections(PAGE).items():
            programs = self._programs[title] = []
            config = "images" if title == IMAGES else "config"
            for language, text in blocks:
                text = text.replace("/data", str(folder)).replace("config.toml", f"{config}.toml")
                module = MODULE.match(text)
                if language == "toml":
                    configs[config] += text + without_function(text)
                elif module:
                    self.modules.append(module[1])
                    (folder / f"{module[1]}.py").write_text(text)
                else:
                    programs.append(text)
        for name, text in configs.items():
            (folder / f"{name}.toml").write_text(text)
        photos(folder)
        for part in ("train", "t10k"):
            write_mnist(folder, part, 100)
        for command in commands(PAGE):
            words = [word.replace("/data", str(folder)) for word in command[1:]]
            pack.run(parser(__version__).parse_args(words))
        self._keeper = Loader("config.toml", stream="ranks", output="numpy")
        assert len(self._keeper)
        until("both workers", lambda: ready_workers("config.sock") == 2)

    def both(self, title: str) -> tuple[Ran, Ran]:
        """What the programs of a section deliver: DataLoader's, and ours."""
        theirs, ours = self._programs[title]
        return run(theirs), run(ours)

    def close(self) -> None:
        self._keeper.close()
        until("the end of the daemons", lambda: not [*Path().glob("*.sock*")])


def without_function(config: str) -> str:
    """The stream once more, as the comment below its `collate` says; or nothing."""
    changed = re.sub(r"^collate = .*\n# ", "", config, flags=re.M)
    return changed.replace("]", "-without]", 1) if changed != config else ""


def ready_workers(socket: str) -> int:
    workers = as_plain(status.fetch(socket))["workers"]
    return sum(one["process"] == "ready" for one in workers)


def run(program: str) -> Ran:
    ran = Ran([], [])
    world = {
        "train_step": lambda *args, **fields: ran.train.append((*args, *fields.values())),
        "val_step": lambda *args: ran.val.append(args),
        "device": "cpu",
    }
    torch.manual_seed(0)
    random.seed(0)
    exec(compile(program, PAGE, "exec"), world)
    for value in world.values():
        if isinstance(value, Loader):
            value.close()
    return ran


def photos(folder: Path) -> None:
    """Folders of two classes, and tar shards."""
    for part, count in (("train", 64), ("val", 40)):
        for at in range(count):
            path = folder / "photos" / part / ("cat", "dog")[at % 2] / f"{at}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(coded(picture(300, 280, seed=at), "JPEG", quality=95))
    (folder / "shards").mkdir()
    with ShardWriter(f"{folder}/shards/%03d.tar", maxcount=12, verbose=0) as sink:
        for at in range(24):
            image = coded(picture(32, 32, seed=at), "JPEG", quality=95)
            sink.write({"__key__": f"{at:03}", "jpg": image, "cls": at})


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    declare_operators()
    folder = tmp_path_factory.mktemp("migrating")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        shown = Page(folder)
        yield shown
        shown.close()
    for name in shown.modules:
        sys.modules.pop(name, None)


Steps = list[tuple[Any, ...]]


def assert_alike(theirs: Steps, ours: Steps) -> None:
    """As many rows, of the same dtypes and shapes."""
    kinds = [[(one.dtype, one.shape) for one in steps[0]] for steps in (theirs, ours)]
    assert kinds[0] == kinds[1]
    assert len(list(rows(theirs))) == len(list(rows(ours)))


def rows(steps: Steps) -> Iterator[tuple[Any, ...]]:
    """The samples of all steps, as tensors."""
    for step in steps:
        yield from zip(*step, strict=True)


def plain(value: Any) -> Any:
    """Tensors as lists, and tuples, too: what can be compared with ==."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return list(map(plain, value))
    return value.tolist() if isinstance(value, torch.Tensor) else value


def numbers(steps: Steps) -> list[int]:
    """Which of the points came, in order."""
    return [int(x[0]) // 4 for x, _ in rows(steps)]


def test_every_pair_of_the_page_is_run_by_a_test() -> None:
    titles = [title for title, blocks in sections(PAGE).items() if title and blocks]
    text = Path(__file__).read_text()
    assert len(titles) >= 10
    for title in titles:
        assert f'"{title}"' in text, title


@pytest.mark.parametrize(
    "title", ["Subset", "Texts of any length", "Detection", "What makes it fast"]
)
def test_both_sides_deliver_the_same_steps(page: Page, title: str) -> None:
    theirs, ours = page.both(title)
    assert len(theirs.train) > 1
    assert plain(theirs.train) == plain(ours.train)


def test_images_of_folders_are_the_same_within_one_level_of_255(page: Page) -> None:
    theirs, ours = page.both(IMAGES)
    assert_alike(theirs.train, ours.train)
    assert sorted(int(label) for _, label in rows(ours.train)) == [0] * 32 + [1] * 32
    for (expected, labels), (images, found) in zip(theirs.val, ours.val, strict=True):
        assert plain(labels) == plain(found)
        assert (images - expected).abs().max() <= 1.01 / 255 / 0.224


def test_a_dataset_in_two_parts_is_whole(page: Page) -> None:
    theirs, ours = page.both("MNIST or CIFAR, in two parts")
    for side in ("train", "val"):
        assert_alike(getattr(theirs, side), getattr(ours, side))
    levels = [
        Counter(
            ((image * 0.3081 + 0.1307) * 255).round().byte().numpy().tobytes() + bytes([label])
            for image, label in rows(ran.train + ran.val)
        )
        for ran in (theirs, ours)
    ]
    assert levels[0] == levels[1]
    assert len(levels[0]) == 100


def test_ranks_share_each_epoch_as_with_a_distributed_sampler(page: Page) -> None:
    shares: list[tuple[Ran, Ran]] = []
    for rank in range(2):
        distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
        try:
            shares.append(page.both("DistributedSampler"))
        finally:
            distributed.destroy_process_group()
    for side in zip(*shares, strict=True):
        orders = [numbers(ran.train) for ran in side]
        assert [len(order) for order in orders] == [100, 100]
        for epoch in (slice(50), slice(50, 100)):
            assert sorted(orders[0][epoch] + orders[1][epoch]) == list(range(100))
        assert orders[0][:50] != orders[0][50:]


def test_classes_of_unequal_size_come_equally_often(page: Page) -> None:
    theirs, ours = page.both("WeightedRandomSampler")
    assert_alike(theirs.train, ours.train)
    for ran in (theirs, ours):
        assert 35 <= sum(int(label) for _, label in rows(ran.train)) <= 65


@pytest.mark.parametrize(
    ("title", "stream", "fields"),
    [
        ("Texts of any length", "reviews", ["input_ids", "attention_mask", "label"]),
        ("Detection", "boxes", ["0", "1.boxes", "1.labels"]),
    ],
)
def test_the_config_does_what_a_collate_function_of_ones_own_did(
    page: Page, title: str, stream: str, fields: list[str]
) -> None:
    theirs, _ = page.both(title)
    with Loader("config.toml", stream=f"{stream}-without", fields=fields, as_tuple=True) as loader:
        ours = list(loader)
    if title == "Detection":
        ours = [
            (images, [{"boxes": b, "labels": n} for b, n in zip(boxes, labels, strict=True)])
            for images, boxes, labels in ours
        ]
    assert plain(theirs.train) == plain(ours)


def test_texts_of_similar_length_share_batches(page: Page) -> None:
    plain, _ = page.both("Texts of any length")
    theirs, ours = page.both("A batch_sampler that groups by length")

    def filled(ran: Ran) -> int:
        return sum(int((1 - mask).sum()) for _, mask, _ in ran.train)

    for ran in (theirs, ours):
        assert sorted(int(label) for *_, label in rows(ran.train)) == list(range(60))
        assert filled(ran) < filled(plain) / 2


def test_the_samples_of_a_batch_are_mixed(page: Page) -> None:
    theirs, ours = page.both("MixUp and CutMix")
    assert_alike(theirs.train, ours.train)
    for ran in (theirs, ours):
        for _, labels in ran.train:
            assert (labels.sum(1) - 1).abs().max() < 1e-6
        assert any((labels.max(1).values < 1).any() for _, labels in ran.train)


def test_shards_give_the_same_images(page: Page) -> None:
    theirs, ours = page.both("WebDataset")
    assert_alike(theirs.train, ours.train)
    images = [{int(label): image for image, label in rows(ran.train)} for ran in (theirs, ours)]
    assert sorted(images[0]) == list(range(24))
    for label, image in images[0].items():
        assert (images[1][label].int() - image.int()).abs().max() <= 1


def test_two_datasets_are_one(page: Page) -> None:
    theirs, ours = page.both("ConcatDataset")
    assert_alike(theirs.train, ours.train)
    for ran in (theirs, ours):
        exact = [
            number
            for number, (x, _) in zip(numbers(ran.train), rows(ran.train), strict=True)
            if x[0] % 4 == 0
        ]
        assert sorted(exact) == list(range(100))


def test_a_seed_makes_the_same_steps_again(page: Page) -> None:
    first, second = page.both("Seeds"), page.both("Seeds")
    assert_alike(first[0].train, first[1].train)
    for one, other in zip(first, second, strict=True):
        assert plain(one.train) == plain(other.train)


def test_a_state_goes_on_with_the_samples_that_are_left(page: Page) -> None:
    theirs, ours = page.both("StatefulDataLoader")
    assert_alike(theirs.train, ours.train)
    for ran in (theirs, ours):
        assert sorted(numbers(ran.train)) == list(range(100))
