"""Words that stand in another table, or are DataLoader's, torchvision's or Loader's: each is told
what to write instead.
"""

from __future__ import annotations

import inspect

import pytest
from torch.utils.data import DataLoader

from config.test_load import faults, read, stream
from loaderd.config import hints, schema
from loaderd.config.transforms import OPS


@pytest.mark.parametrize(
    ("line", "where", "setting"),
    [
        ("num_workers = 4", "streams.train.num_workers", "it belongs in [workers]"),
        ('memory = "1GiB"', "streams.train.memory", "it belongs in [daemon]"),
        ("pin_memory = true", "streams.train.pin_memory", "leave it out"),
        ("prefetch_factor = 2", "streams.train.prefetch_factor", "prefetch= of Loader"),
        ("timeout = 30", "streams.train.timeout", "[workers] sample_timeout_s"),
        ("timeout_s = 30", "streams.train.timeout_s", "an argument of Loader"),
        (
            "shared = true",
            "streams.train.shared",
            "[streams.NAME] share = true, or the argument shared=True",
        ),
        (
            'collate_fn = "a:b"',
            "streams.train.collate_fn",
            'collate = "pkg.module:function", which is called as function(samples) or function(samples, rng)',
        ),
        (
            'sampler = "a:b"',
            "streams.train.sampler",
            "unknown key; the order is [streams.NAME] shuffle and seed",
        ),
        ('batch_sampler = "a:b"', "streams.train.batch_sampler", "batch_size, shuffle and split"),
        ("persistent_workers = true", "streams.train.persistent_workers", "leave it out"),
        (
            'worker_init_fn = "a:b"',
            "streams.train.worker_init_fn",
            '[workers] init = "pkg.module:function"',
        ),
        ('transform = "a:b"', "streams.train.transform", "[[streams.NAME.transforms]]"),
        (
            'transforms = [{op = "ToTensor"}]',
            "streams.train.transforms[0].op",
            "that is to_float, then to_chw here",
        ),
        (
            'transforms = [{op = "v2.RandomHorizontalFlip"}]',
            "streams.train.transforms[0].op",
            "that is hflip here",
        ),
        (
            'transforms = [{op = "AutoAugment"}]',
            "streams.train.transforms[0].op",
            'not in this version; write it as call = "pkg.module:function"',
        ),
        (
            'transforms = [{op = "v2.ColorJitter"}]',
            "streams.train.transforms[0].op",
            "that is color_jitter here",
        ),
        (
            'transforms = [{call = "a:b", p = 1}]',
            "streams.train.transforms[0].p",
            "args = {p = ...}",
        ),
        ("[workers]\ndrop_last = true", "workers.drop_last", "it belongs in [streams.NAME]"),
        ("[workers]\ntimeout = 3", "workers.timeout", "[workers] sample_timeout_s"),
        ("[daemon]\nbatch_size = 8", "daemon.batch_size", "it belongs in [streams.NAME]"),
        ("[daemon]\nnum_workers = 8", "daemon.num_workers", "it belongs in [workers]"),
        ("[daemon]\nprefetch = 8", "daemon.prefetch", "prefetch=4"),
        (
            "[streams]\nbatch_size = 8",
            "streams.batch_size",
            "below a header such as [streams.train]",
        ),
    ],
)
def test_a_word_that_stands_elsewhere_or_is_dataloaders_is_told_what_to_write(
    line: str, where: str, setting: str
) -> None:
    (found,) = stream(line)
    assert found.startswith(f"{where}: ")
    assert setting in found
    assert len(found) < 250


def test_no_word_that_is_explained_as_a_strangers_is_a_key_of_ours() -> None:
    tables = (schema.DAEMON, schema.WORKERS, schema.STREAM)
    known = {name for table in tables for name, key in table.keys.items()}
    assert not known & set(hints.SETTINGS)
    assert not set(hints.OPS) & set(OPS)


def test_every_argument_of_dataloader_is_known_or_explained() -> None:
    named = set(inspect.signature(DataLoader.__init__).parameters) - {"self"}
    known = {name for table in (schema.WORKERS, schema.STREAM) for name in table.keys}
    assert named <= known | set(hints.SETTINGS)


@pytest.mark.parametrize("op", sorted(hints.ABSENT))
def test_an_op_that_is_not_here_does_not_hint_at_one_that_does_something_else(op: str) -> None:
    (found,) = stream(f'transforms = [{{op = "{op}"}}]')
    assert "did you mean" not in found
    assert "not in this version" in found


def test_an_op_that_is_misspelled_still_hints_at_the_right_one() -> None:
    (found,) = stream('transforms = [{op = "hfilp"}]')
    assert found.endswith("did you mean 'hflip'?")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('[streams.train]\ndataset = "__main__:Mine"', "streams.train.dataset"),
        ('[streams.train]\nlmdb = "a"\nlayout = "__main__:Mine"', "streams.train.layout"),
        ('[streams.train]\nlmdb = "a"\ncollate = "__main__:f"', "streams.train.collate"),
        (
            '[streams.train]\nlmdb = "a"\ntransforms = [{call = "__main__:f"}]',
            "streams.train.transforms[0].call",
        ),
        ('[streams.train]\nlmdb = "a"\n[workers]\ninit = "__main__:f"', "workers.init"),
    ],
)
def test_something_of_the_training_script_is_refused_with_the_way_out(
    text: str, where: str
) -> None:
    (found,) = faults(text)
    assert found.startswith(f'{where}: "__main__:')
    assert "workers do not run your script" in found
    assert "a module beside the config" in found


def test_a_module_whose_name_begins_like_the_script_is_a_module() -> None:
    assert (
        read('[streams.train]\ndataset = "__main__s:Mine"').streams[0].dataset == "__main__s:Mine"
    )
