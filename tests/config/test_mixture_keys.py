"""Mixtures in a config: what they say themselves, and what their sources say."""

from __future__ import annotations

from fractions import Fraction

import pytest

from config.test_load import faults, read
from loaderd.config.mixture_keys import exact, units_of

SOURCES = '[streams.a]\nlmdb = "a"\n[streams.b]\nlmdb = "b"\n'


def said(mixture: str, sources: str = SOURCES) -> list[str]:
    return faults(f"{sources}[streams.mix]\n{mixture}\n")


def test_weights_are_what_is_written() -> None:
    assert exact({"a": 0.7, "b": 0.3, "c": 2}) == [Fraction(7, 10), Fraction(3, 10), 2]
    assert units_of({"a": 0.7, "b": 0.3}) == [7, 3]
    assert units_of({"a": 20, "b": 10}) == [2, 1]


def test_sources_have_the_batches_of_their_mixture() -> None:
    config = read(
        '[streams.a]\nlmdb = "a"\nbatch_size = 9\nepoch_steps = 4\npad = {x = 1}\n'
        'transforms = [{op = "hflip"}, {op = "mixup", num_classes = 3}]\n'
        '[streams.mix]\nof = {a = 1}\nbatch_size = 4\nragged = ["y"]\n'
        'transforms = [{op = "cutmix", num_classes = 3}]'
    )
    (alone, mix) = config.streams
    (source,) = mix.sources
    assert [step.op for step in source.transforms] == ["hflip", "cutmix"]
    assert (source.batch_size, source.ragged, source.pad) == (4, ("y",), {})
    assert source.epoch_steps == 0
    assert alone.epoch_steps == 4
    assert type(mix).from_json(mix.to_json()) == mix


@pytest.mark.parametrize(
    ("mixture", "words"),
    [
        ("of = {a = 1, c = 1}", "streams.mix.of.c: no stream of that name"),
        ("of = {a = 1, mix = 1}", "streams.mix.of.mix: is a mixture itself"),
        ("of = {a = 0}", "streams.mix.of.a: 0 is not a weight above 0"),
        ("of = {a = -1.5}", "-1.5 is not a weight above 0"),
        ("of = {a = nan}", "is not a weight above 0"),
        ('of = {a = "1"}', '"1" is not a weight above 0'),
        ("of = {}", "is not a table of streams with their weights"),
        ('of = ["a"]', "is not a table of streams with their weights"),
        ("of = {a = 0.33333333333, b = 1}", "write whole numbers"),
        ("of = {a = 1}\nshuffle = true", "streams.mix.shuffle: true: a mixture has that from its"),
        ('of = {a = 1}\nlmdb = "x"', "streams.mix.lmdb: "),
        ('of = {a = 1}\non_error = "skip"', "streams.mix.on_error: "),
        (
            'of = {a = 1}\ntransforms = [{op = "hflip"}]',
            "streams.mix.transforms[0]: works on samples",
        ),
        ('of = {a = 1}\nstop = "all"\nepoch_steps = 3', "streams.mix.stop: "),
        ('of = {a = 1}\nstop = "never"', "is not one of 'first', 'all'"),
        ('lmdb = "x"\nstop = "all"', 'streams.mix.stop: "all": goes with of, which is not set'),
    ],
)
def test_what_a_mixture_cannot_be_is_named(mixture: str, words: str) -> None:
    (found,) = said(mixture)
    assert words in found


def test_sources_with_other_rules_for_bad_samples_are_named() -> None:
    (found,) = said(
        "of = {a = 1, b = 1}",
        '[streams.a]\nlmdb = "a"\n[streams.b]\nlmdb = "b"\non_error = "replace"\n',
    )
    assert found.startswith("streams.mix.of: 'a' has on_error = \"raise\" and 'b' \"replace\"")
