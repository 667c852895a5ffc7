"""Class names: given to `pack`, and compared between the streams of a config."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loaderd_client import Loader, LoaderdError
from loaderd_testing.cli_harness import Place


def two(place: Place, *options: str) -> str:
    """A config whose streams are folders of the classes a, b, c and a, c."""
    place.pack(place.images("photos", "abc"), "train.lmdb")
    few = place.images("few", "ac")
    if options:
        place.cli("pack", "imagefolder", few, "val.lmdb", *options)
    else:
        place.pack(few, "val.lmdb")
    (place.folder / "two.toml").write_text(
        "[workers]\nnum_workers = 1\n[streams.train]\nlmdb = 'train.lmdb'\n[streams.val]\nlmdb = "
        "'val.lmdb'\n"
    )
    return "two.toml"


DIFFER = "label 1 is 'b' in 'train', 'c' in 'val'"


def test_serve_refuses_streams_whose_labels_mean_two_things(place: Place) -> None:
    done = place.cli("serve", two(place), code=3)
    assert DIFFER in done.stderr
    assert "--classes-from" in done.stderr


def test_check_finds_streams_whose_labels_mean_two_things(place: Place) -> None:
    config = two(place)
    done = place.cli("check", config, code=1)
    assert DIFFER in done.stdout
    assert DIFFER in place.cli("check", config, "--all", code=1).stdout
    assert DIFFER not in place.cli("check", config, "--stream", "val").stdout


def test_an_embedded_daemon_refuses_a_stream_whose_labels_mean_other_things_than_those_of_another_that_it_serves(
    place: Place,
) -> None:
    config = str(place.folder / two(place))
    with (
        Loader(config, stream="train", output="numpy") as train,
        Loader(config, stream="val", output="numpy") as val,
    ):
        batches = iter(train)
        next(batches)
        for _ in range(2):
            with pytest.raises(LoaderdError) as caught:
                len(val)
            assert "'train'" in str(caught.value)
            assert "--classes-from" in str(caught.value)
        assert len(list(batches)) == len(train) - 1


@pytest.mark.parametrize("how", ["--classes-from", "--classes"])
def test_a_folder_packed_with_the_classes_of_another_goes_with_it(place: Place, how: str) -> None:
    (place.folder / "names.txt").write_text("a\nb\nc\n")
    config = two(place, how, "train.lmdb" if how == "--classes-from" else "names.txt")
    place.cli("check", config)
    facts = json.loads(place.cli("inspect", "val.lmdb", "--json").stdout)
    assert facts["classes"] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["--classes", "none.txt"], 3, "none.txt: No such file"),
        (["--classes-from", "none.lmdb"], 3, "none.lmdb: there is no such file"),
        (["--classes-from", "mine.py"], 3, "mine.py"),
        (["--classes", "one.txt"], 3, "folder 'b' is not one of the 1 class given"),
        (["--classes", "one.txt", "--classes-from", "x"], 2, "not allowed with argument"),
    ],
)
def test_classes_that_cannot_be_had_or_do_not_fit_are_one_line(
    place: Place, args: list[str], code: int, said: str
) -> None:
    (place.folder / "one.txt").write_text("a\n")
    done = place.cli("pack", "imagefolder", place.images(), "db", *args, code=code)
    assert said in done.stderr
    assert done.stderr.count("\n") == (2 if code == 2 else 1)
    assert not Path(place.folder / "db").exists()


def test_a_dataset_brings_its_own_classes(place: Place) -> None:
    done = place.cli("pack", "dataset", "mine:Numbers", "n.lmdb", "--classes", "names.txt", code=2)
    assert "--classes is for pack imagefolder" in done.stderr


@pytest.mark.parametrize("classes", ["train.lmdb", "names.txt"])
def test_stream_that_names_the_classes_of_another_has_its_labels(
    place: Place, classes: str
) -> None:
    (place.folder / "names.txt").write_text("a\nb\nc\n")
    config = place.folder / two(place)
    config.write_text(config.read_text() + f'classes = "{classes}"\nbatch_size = 100\n')
    with Loader(str(config), stream="val", output="numpy") as val:
        labels = next(iter(val))["label"]
        assert val.classes == ("a", "b", "c")
    assert sorted(set(labels.tolist())) == [0, 2]
    place.cli("check", config.name)


def test_class_that_the_named_classes_lack_is_told(place: Place) -> None:
    (place.folder / "names.txt").write_text("a\nb\n")
    config = place.folder / two(place)
    config.write_text(config.read_text() + 'classes = "names.txt"\n')
    done = place.cli("serve", config.name, code=3)
    assert "class 'c' (label 1) is not one of the 2 classes of" in done.stderr
