"""Jobs in real workers: what lies in the slot afterwards, and what is said about the samples that
could not be made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from loaderd.core.jobs import Excluded, JobKind
from loaderd.core.order import Order
from loaderd_testing.engine_harness import Workshop, adding, numbers

Build = Callable[..., Workshop]

ORDER = Order(100, shuffle=1)
FIRST = int(ORDER.indices(7, 0, np.array([0]))[0])
SUBSTITUTES = [ORDER.substitute(7, 0, 0, tries) for tries in (1, 2)]
ODD = ("raises", "exits", "interrupts", "generator_exit", "no_memory", "recurses")

PLANS = (
    numbers("plain"),
    numbers("half", shuffle=1, split="50%:100%", transforms=(adding(1000),)),
    numbers("chances", dataset="wares:Chances", shuffle=1),
    numbers(
        "replaced chance",
        dataset="wares:Chances",
        bad={str(FIRST): "raises"},
        on_error="replace",
        shuffle=1,
    ),
    numbers("many chances", dataset="wares:ManyChances", shuffle=1),
    numbers("repeated chances", dataset="wares:Chances", shuffle=1, repeat=3),
    numbers("even chances", dataset="wares:Chances"),
    numbers("wild", dataset="wares:Wild", shuffle=1),
    numbers("shuffled words", dataset="wares:Words", shuffle=1),
    numbers("words", dataset="wares:Words"),
    numbers("strict", bad={"20": "raises", "22": "raises"}),
    numbers("skip", on_error="skip"),
    numbers("skip three", bad={"18": "raises", "21": "raises", "24": "raises"}, on_error="skip"),
    *(numbers(f"skip {what}", bad={"20": what}, on_error="skip") for what in ODD),
    numbers("replace", on_error="replace"),
    numbers("replace one", bad={str(FIRST): "raises"}, on_error="replace", shuffle=1),
    numbers(
        "replace two",
        bad={str(FIRST): "raises", str(SUBSTITUTES[0]): "raises"},
        on_error="replace",
        shuffle=1,
    ),
    numbers("deadly", bad={"50": "leaves", "21": "leaves"}, on_error="replace"),
    numbers("uneven", dataset="wares:Uneven", on_error="skip"),
    numbers(
        "many", dataset="wares:Many", bad={"21": "raises"}, on_error="skip", transforms=(adding(5),)
    ),
    numbers(
        "collated", collate="wares:stacked", batch_size=6, bad={"21": "raises"}, on_error="skip"
    ),
    numbers("odd", dataset="wares:Odd", collate="wares:stacked", batch_size=4, on_error="skip"),
    numbers("anything", dataset="wares:Anything", collate="wares:described", batch_size=4),
    numbers(
        "none at 21",
        dataset="wares:NoneAt",
        bad={"21": "raises"},
        collate="wares:stacked",
        batch_size=4,
        on_error="replace",
    ),
    numbers("picky", collate="wares:picky", batch_size=4, on_error="skip"),
    numbers("moody", collate="wares:moody", batch_size=4, on_error="skip"),
)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    shop = Workshop(tmp_path_factory.mktemp("users"), PLANS)
    shop.start(1, 2)
    yield shop
    shop.close()


@pytest.fixture
def shop(opened: Workshop) -> Iterator[Workshop]:
    """Workers 1 and 2, ready for every stream of PLANS; segments that the test adds are dropped
    after it.
    """
    yield opened
    opened.drain()


def test_a_job_fills_its_rows(shop: Workshop) -> None:
    facts = shop.facts("plain")
    assert (facts.total, facts.samples, facts.keys, facts.form, facts.collated) == (
        100,
        100,
        "index",
        "dict",
        False,
    )
    assert [(spec.name, spec.dtype, spec.shape) for spec in facts.specs] == [
        ("x", "<i8", (3,)),
        ("y", "<i8", ()),
    ]
    pond = shop.pond(facts, 8)
    done = shop.run(1, shop.job("plain", 8))
    assert (done.bad, done.replaced, done.size, done.changed) == ((), (), 0, "")
    assert done.seconds > 0
    assert done.bytes == 8 * (3 + 1) * 8
    assert pond.indices(0, 8) == list(range(8))
    assert pond.field(0, "x", 8).tolist() == [[i] * 3 for i in range(8)]
    assert pond.field(0, "y", 8).tolist() == list(range(8))


def test_order_and_transforms_are_the_streams_own(shop: Workshop) -> None:
    facts = shop.facts("half")
    pond = shop.pond(facts, 8)
    shop.run(1, shop.job("half", 8, start=45, epoch=3))
    expected = Order(100, "50%:100%", "random", 1).indices(7, 3, np.arange(45, 53))
    assert pond.indices(0, 8) == expected.tolist()
    assert pond.field(0, "x", 8)[:, 0].tolist() == (expected + 1000).tolist()


@pytest.mark.parametrize("stream", ["chances", "wild", "shuffled words", "repeated chances"])
def test_however_a_batch_is_cut_its_bytes_are_the_same(shop: Workshop, stream: str) -> None:
    facts = shop.facts(stream)
    pond = shop.pond(facts, 12, slots=2)
    shop.run(1, shop.job(stream, 12, epoch=1))
    pieces = [(2, 5, 12), (1, 1, 5), (2, 0, 1)]
    dones = [
        shop.run(worker, shop.job(stream, 12, slot=1, epoch=1, first=first, last=last))
        for worker, first, last in pieces
    ]
    body = pond.layout.tail_offset
    assert pond.read(0)[:body] == pond.read(1)[:body]
    if stream == "shuffled words":
        words = [word for done in reversed(dones) for word in pond.chunk(1, done)["text"]["word"]]
        assert words == ["w" * (i % 50) for i in pond.indices(1, 12)]
    if stream == "wild":
        drawn = pond.field(0, "a", 12)[np.isin(np.array(pond.indices(0, 12)) % 4, (1, 2))]
        assert len(set(drawn.tolist())) == len(drawn) > 3


def test_a_worker_whose_first_draws_are_in_a_fetch_of_many_draws_as_one_that_has_drawn(
    shop: Workshop,
) -> None:
    pond = shop.pond(shop.facts("many chances"), 8, slots=3)
    for slot, worker in enumerate((1, 2, 2)):
        shop.run(worker, shop.job("many chances", 8, slot=slot))
    for name in "ab":
        first, *others = (pond.field(slot, name, 8).tolist() for slot in range(3))
        assert others == [first, first]
        assert len(set(first)) == 8


def test_a_substitute_draws_what_it_draws_in_its_own_place(shop: Workshop) -> None:
    position = int(np.flatnonzero(ORDER.indices(7, 0, np.arange(100)) == SUBSTITUTES[0])[0])
    drawn = []
    for stream, worker, start in (
        ("replaced chance", 1, 0),
        ("replaced chance", 2, 0),
        ("chances", 1, position),
    ):
        pond = shop.pond(shop.facts(stream), 1)
        shop.run(worker, shop.job(stream, 1, start=start))
        drawn.append(
            (pond.indices(0, 1), pond.field(0, "a", 1).tolist(), pond.field(0, "b", 1).tolist())
        )
    assert drawn[0] == drawn[1] == drawn[2]
    assert drawn[0][0] == [SUBSTITUTES[0]]


def test_text_and_bytes_lie_in_the_jobs_own_tail(shop: Workshop) -> None:
    facts = shop.facts("words")
    pond = shop.pond(facts, 60)
    done = shop.run(1, shop.job("words", 60, first=20, last=30))
    offset, room = pond.layout.tail_of(20, 30)
    assert done.offset == offset
    assert 0 < done.size <= room
    assert done.bytes == done.size + 10 * 8
    assert pond.chunk(0, done) == {
        "text": {
            "word": ["w" * i for i in range(20, 30)],
            "raw": [bytes([i]) * 3 for i in range(20, 30)],
        }
    }


def test_a_tail_that_is_too_small_is_said_with_the_bytes_it_takes(shop: Workshop) -> None:
    facts = shop.facts("words")
    shop.pond(facts, 50, tail=8)
    done = shop.run(1, shop.job("words", 50))
    assert done.needs_tail > 8
    assert done.size == 0
    shop.pond(facts, 50, tail=done.needs_tail)
    again = shop.run(1, shop.job("words", 50))
    assert again.needs_tail == 0
    assert again.size > 0


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("raises", "ValueError"),
        ("exits", "SystemExit"),
        ("interrupts", "KeyboardInterrupt"),
        ("generator_exit", "GeneratorExit"),
        ("no_memory", "MemoryError"),
        ("recurses", "RecursionError"),
    ],
)
def test_whatever_user_code_raises_is_a_bad_sample_of_that_name(
    shop: Workshop, what: str, error: str
) -> None:
    facts = shop.facts(f"skip {what}")
    pond = shop.pond(facts, 8)
    done = shop.run(1, shop.job(f"skip {what}", 8, start=18))
    assert [
        (bad.row, bad.lost, bad.sample.index, bad.sample.position, bad.sample.error)
        for bad in done.bad
    ] == [(2, True, 20, 20, error)]
    assert what in done.bad[0].sample.traceback
    assert "loaderd" not in done.bad[0].sample.traceback
    assert pond.field(0, "y", 8).tolist()[3:] == [21, 22, 23, 24, 25]


def test_raise_tells_of_every_bad_row_of_the_batch(shop: Workshop) -> None:
    facts = shop.facts("strict")
    shop.pond(facts, 8)
    done = shop.run(1, shop.job("strict", 8, start=18))
    assert [(bad.row, bad.sample.key, bad.sample.stage) for bad in done.bad] == [
        (2, "20", "read"),
        (4, "22", "read"),
    ]


def test_replace_takes_the_orders_own_substitute(shop: Workshop) -> None:
    assert len({FIRST, *SUBSTITUTES}) == 3
    for name, taken in (("replace one", SUBSTITUTES[0]), ("replace two", SUBSTITUTES[1])):
        pond = shop.pond(shop.facts(name), 4)
        done = shop.run(1, shop.job(name, 4))
        assert [
            (bad.row, bad.lost, bad.sample.index, bad.sample.substitute) for bad in done.bad
        ] == [(0, False, FIRST, taken)]
        assert pond.indices(0, 4)[0] == taken
        assert pond.field(0, "y", 4)[0] == taken


def test_a_row_is_made_from_its_first_candidate_that_is_not_condemned(shop: Workshop) -> None:
    order = Order(100)
    facts = shop.facts("deadly")
    pond = shop.pond(facts, 4)
    done = shop.run(
        1, shop.job("deadly", 4, start=49, excluded=tuple(Excluded(1, n) for n in range(3)))
    )
    assert done.bad == ()
    assert [(one.row, one.index) for one in done.replaced] == [(1, order.substitute(7, 0, 50, 3))]
    assert pond.indices(0, 4) == [49, order.substitute(7, 0, 50, 3), 51, 52]


def test_a_row_whose_substitutes_are_used_up_is_lost(shop: Workshop) -> None:
    facts = shop.facts("replace")
    shop.pond(facts, 4)
    done = shop.run(1, shop.job("replace", 4, excluded=tuple(Excluded(1, n) for n in range(17))))
    assert [(bad.row, bad.lost) for bad in done.bad] == [(1, True)]


def test_a_sample_that_raises_is_told_with_its_own_fault_where_its_first_substitute_is_condemned(
    shop: Workshop,
) -> None:
    shop.pond(shop.facts("replace one"), 4)
    done = shop.run(1, shop.job("replace one", 4, excluded=(Excluded(0, 1),)))
    assert done.replaced == ()
    assert [(bad.sample.index, bad.sample.error, bad.sample.substitute) for bad in done.bad] == [
        (FIRST, "ValueError", SUBSTITUTES[1])
    ]


def test_a_sample_that_differs_from_the_first_is_bad_and_says_both(shop: Workshop) -> None:
    facts = shop.facts("uneven")
    shop.pond(facts, 8)
    done = shop.run(1, shop.job("uneven", 8, start=48))
    assert [(bad.row, bad.sample.stage) for bad in done.bad] == [(2, "check")]
    assert "(3,)" in done.bad[0].sample.message
    assert "(4,)" in done.bad[0].sample.message


def test_compact_moves_the_surviving_rows_up(shop: Workshop) -> None:
    facts = shop.facts("skip three")
    pond = shop.pond(facts, 8)
    done = shop.run(1, shop.job("skip three", 8, start=18))
    lost = tuple(bad.row for bad in done.bad)
    assert lost == (0, 3, 6)
    again = shop.run(1, shop.job("skip three", 8, start=18, kind=JobKind.COMPACT, lost=lost))
    assert again.bad == ()
    assert pond.indices(0, 5) == [19, 20, 22, 23, 25]
    assert pond.field(0, "y", 5).tolist() == [19, 20, 22, 23, 25]
    assert pond.field(0, "x", 5)[:, 0].tolist() == [19, 20, 22, 23, 25]


def test_an_old_index_in_a_lost_row_does_not_mislead_compact(shop: Workshop) -> None:
    facts = shop.facts("skip")
    pond = shop.pond(facts, 4)
    # The slot held this very batch before, compacted; row 1 was lost both times without any job
    # having come to it.
    for _ in range(2):
        shop.run(1, shop.job("skip", 4, first=0, last=1))
        shop.run(1, shop.job("skip", 4, first=2, last=4))
        shop.run(1, shop.job("skip", 4, kind=JobKind.COMPACT, lost=(1,)))
        assert pond.indices(0, 3) == [0, 2, 3]
        assert pond.field(0, "y", 3).tolist() == [0, 2, 3]


def test_a_trial_makes_rows_and_writes_nothing(shop: Workshop) -> None:
    facts = shop.facts("skip three")
    pond = shop.pond(facts, 8)
    before = pond.read(0)
    done = shop.run(1, shop.job("skip three", 8, start=18, kind=JobKind.TRIAL))
    assert [bad.sample.index for bad in done.bad] == [18, 21, 24]
    assert pond.read(0) == before


def test_a_dataset_that_fetches_many_gives_the_same_rows(shop: Workshop) -> None:
    facts = shop.facts("many")
    pond = shop.pond(facts, 8)
    done = shop.run(1, shop.job("many", 8))
    assert done.bad == ()
    assert pond.field(0, "x", 8)[:, 0].tolist() == [i + 5 for i in range(8)]
    done = shop.run(1, shop.job("many", 8, start=18))
    assert [(bad.row, bad.sample.index, bad.sample.error) for bad in done.bad] == [
        (3, 21, "ValueError")
    ]
    assert pond.field(0, "x", 8)[4:, 0].tolist() == [i + 5 for i in range(22, 26)]


def test_a_collated_batch_is_described_in_the_tail(shop: Workshop) -> None:
    facts = shop.facts("collated")
    assert facts.collated
    assert [spec.name for spec in facts.specs] == ["x", "names"]
    pond = shop.pond(facts, 6)
    done = shop.run(1, shop.job("collated", 6, start=18, kind=JobKind.BATCH))
    assert [bad.sample.index for bad in done.bad] == [21]
    chunk = pond.chunk(0, done)
    dtype, shape, offset = chunk["arrays"]["x"]
    values = np.frombuffer(pond.read(0), dtype, int(np.prod(shape)), offset).reshape(shape)
    assert done.bytes == values.nbytes + done.size
    assert values[:, 0].tolist() == [18, 19, 20, 22, 23] == pond.indices(0, 5)
    assert chunk["text"]["names"] == ["18", "19", "20", "22", "23"]


def test_a_collated_batch_leaves_out_the_rows_it_is_told_to(shop: Workshop) -> None:
    facts = shop.facts("collated")
    pond = shop.pond(facts, 4)
    done = shop.run(1, shop.job("collated", 4, start=20, kind=JobKind.BATCH, lost=(1,)))
    assert done.bad == ()
    assert pond.chunk(0, done)["text"]["names"] == ["20", "22", "23"]


def test_a_body_that_is_too_small_is_said_with_the_bytes_it_takes(shop: Workshop) -> None:
    facts = shop.facts("collated")
    assert facts.body_bytes >= 6 * 24
    shop.pond(facts, 6, body=64)
    assert shop.run(1, shop.job("collated", 6, kind=JobKind.BATCH)).needs_body == 192
    shop.pond(facts, 6, body=128)
    # the next step of the layout, and still too small
    assert shop.run(1, shop.job("collated", 6, kind=JobKind.BATCH)).needs_body == 192
    shop.pond(facts, 6, body=192)
    assert shop.run(1, shop.job("collated", 6, kind=JobKind.BATCH)).size > 0


def test_a_sample_unlike_the_first_is_named_where_a_collate_would_have_taken_it(
    shop: Workshop,
) -> None:
    pond = shop.pond(shop.facts("odd"), 4)
    done = shop.run(1, shop.job("odd", 4, start=49, kind=JobKind.BATCH))
    assert [(bad.row, bad.sample.index, bad.sample.stage) for bad in done.bad] == [(1, 50, "check")]
    assert "'x' is float32, in the stream's first sample it is int64; collate failed with it" in (
        done.bad[0].sample.message
    )
    assert pond.indices(0, 3) == [49, 51, 52]


def test_samples_of_any_kind_reach_the_collate_function(shop: Workshop) -> None:
    facts = shop.facts("anything")
    assert [(spec.name, spec.kind) for spec in facts.specs] == [
        ("ids", "array"),
        ("boxes", "list"),
        ("kinds", "text"),
    ]
    pond = shop.pond(facts, 4)
    done = shop.run(1, shop.job("anything", 4, kind=JobKind.BATCH))
    assert done.bad == ()
    chunk = pond.chunk(0, done)
    assert chunk["text"]["kinds"] == ["dict", "NoneType", "Box", "list"]
    assert [(dtype, shape) for dtype, shape, _ in chunk["arrays"]["boxes"]] == [
        ("<f4", [n, 4]) for n in range(4)
    ]


def test_a_none_that_a_collate_function_cannot_take_is_named(shop: Workshop) -> None:
    pond = shop.pond(shop.facts("none at 21"), 4)
    done = shop.run(1, shop.job("none at 21", 4, start=20, kind=JobKind.BATCH))
    assert [(bad.row, bad.sample.index) for bad in done.bad] == [(1, 21)]
    assert "the sample is None; collate failed with it: TypeError" in done.bad[0].sample.message
    assert pond.indices(0, 4)[0] == 20


def test_the_global_generators_give_a_sample_other_numbers_in_the_next_epoch(
    shop: Workshop,
) -> None:
    pond = shop.pond(shop.facts("even chances"), 4)
    for epoch in (0, 1):
        shop.run(1, shop.job("even chances", 4, slot=epoch, epoch=epoch))
    assert pond.indices(0, 4) == pond.indices(1, 4)
    assert not set(pond.field(0, "a", 4)) & set(pond.field(1, "a", 4))
    assert not set(pond.field(0, "b", 4)) & set(pond.field(1, "b", 4))


def test_a_collate_that_fails_is_told_as_such(shop: Workshop) -> None:
    facts = shop.facts("picky")
    shop.pond(facts, 4)
    done = shop.run(1, shop.job("picky", 4, start=48, kind=JobKind.BATCH))
    assert [(bad.row, bad.lost, bad.sample.stage, bad.sample.error) for bad in done.bad] == [
        (0, True, "collate", "ZeroDivisionError")
    ]
    assert "picky" in done.bad[0].sample.traceback
    assert done.size == 0


def test_a_collate_whose_fields_differ_from_the_first_batchs_is_told_which_and_how(
    shop: Workshop,
) -> None:
    facts = shop.facts("moody")
    shop.pond(facts, 4)
    x = str(np.dtype(next(spec.dtype for spec in facts.specs if spec.name == "x")))
    for start, text in {
        20: "collate returned a field 'z', which the first batch did not have; it had 'names', 'x'",
        30: "collate returned no field 'names', which the first batch had",
        40: (
            "collate returned field 'x' as an array of float64, in the first batch it was an "
            f"array of {x}"
        ),
        50: (
            "collate returned field 'x' as a list of str, in the first batch it was an array of "
            f"{x}"
        ),
        60: (
            "collate returned field 'names' as an array of float64, in the first batch it was a "
            "list of str"
        ),
    }.items():
        done = shop.run(1, shop.job("moody", 4, start=start, kind=JobKind.BATCH))
        assert [(bad.row, bad.lost, bad.sample.stage, bad.sample.message) for bad in done.bad] == [
            (0, True, "collate", text)
        ]
        assert done.size == 0
    assert shop.run(1, shop.job("moody", 4, start=70, kind=JobKind.BATCH)).size > 0


def test_torch_knows_its_worker_and_draws_by_sample(build: Build) -> None:
    shop = build(numbers(dataset="torched:Torches"), num_workers=2)
    facts = shop.facts("train")
    shop.start(1, 2)
    pond = shop.pond(facts, 6)
    for slot, worker in enumerate((1, 2)):
        shop.run(worker, shop.job("train", 6, slot=slot, start=3 * slot))
        assert pond.field(slot, "id", 6).tolist() == [slot] * 6
        assert pond.field(slot, "of", 6).tolist() == [2] * 6
        assert pond.field(slot, "same", 6).all()
        assert pond.field(slot, "n", 6).tolist() == [1] * 6
    drawn = pond.field(0, "drawn", 6).tolist()
    # sample 3 was the fourth of one and the first of the other
    assert drawn[3:] == pond.field(1, "drawn", 6).tolist()[:3]
    assert len(set(drawn)) == 6
    assert shop.threads_of_template() == 1


def test_repeated_sample_draws_other_numbers_each_time(shop: Workshop) -> None:
    pond = shop.pond(shop.facts("repeated chances"), 300)
    shop.run(1, shop.job("repeated chances", 300))
    assert sorted(pond.indices(0, 300)) == sorted([*range(100)] * 3)
    for name in ("a", "b"):
        assert len(set(pond.field(0, name, 300).tolist())) == 300
