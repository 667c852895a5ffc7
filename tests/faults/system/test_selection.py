"""Listed, repeated and drawn samples: the same stream whatever dies, and never another unnoticed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loaderd_client import ConfigError, Loader, StreamChangedError
from loaderd_testing.daemon_harness import Site, digest, indices, patiently, plain, take
from loaderd_testing.deadlines import until

STREAM = 'keys = "keys.txt"\nweights = "w.npy"\nrepeat = 2\non_error = "replace"'
FAULT = """
def fault(index):
    if index == 8:
        raise ValueError("bad")
"""


def written(site: Site) -> Site:
    (site.folder / "keys.txt").write_text("".join(f"{n}\n" for n in range(40, 4, -1)))
    np.save(site.folder / "w.npy", [n % 3 for n in range(36)])
    return site.write(stream=STREAM, fault=FAULT)


def test_drawn_samples_are_the_same_after_kills_of_worker_and_daemon(site: Site) -> None:
    written(site).serve()
    loader = site.loader()
    undisturbed = [take(loader), take(loader)]
    drawn = indices(undisturbed[0])
    assert len(drawn) == 72
    assert set(drawn) <= {40 - n for n in range(36) if n % 3}
    assert len(set(drawn)) < 36, "some come several times"
    assert 8 not in drawn, "a substitute has its place"

    other = site.loader()
    got = []
    for batch in patiently(iter(other)):
        got.append(plain(batch))
        if len(got) == 2:
            site.kill(site.workers()[0])
        if len(got) == 4:
            site.kill()
            site.serve()
    assert digest(got) == digest(undisturbed[0])
    resumed = site.loader()
    resumed.load_state_dict(other.state_dict())
    assert digest(take(resumed)) == digest(undisturbed[1])


@pytest.mark.parametrize("shared", [False, True])
def test_batches_may_have_the_places_and_names_of_their_samples_alone(
    site: Site, shared: bool
) -> None:
    site.write().serve()
    whole = take(site.loader())
    fields = ["__key__", "__index__"]
    batches = list(site.loader(fields=fields, shared=shared))
    assert [list(batch) for batch in batches] == [fields] * len(whole)
    places = [batch["__index__"].tolist() for batch in batches]
    assert places == [batch.indices.tolist() for batch in batches]
    assert [place for batch in places for place in batch] == indices(whole)
    assert [batch["__key__"] for batch in batches] == [batch.sample_keys for batch in batches]


def loaded(loader: Loader[Any], state: dict[str, Any]) -> None:
    loader.load_state_dict(state)
    take(loader)


def test_files_that_have_changed_make_another_stream(site: Site) -> None:
    loader = written(site).serve().loader()
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    site.kill()
    (site.folder / "keys.txt").write_text("".join(f"{n}\n" for n in range(36)))
    np.save(site.folder / "w.npy", np.ones(36))
    site.serve()
    with pytest.raises(StreamChangedError, match=r"keys was .*, is .*; weights was .*, is "):
        take(batches)
    fresh = site.loader()
    with pytest.raises(ConfigError, match=r"another order of samples: .*keys was "):
        loaded(fresh, state)


def test_edited_files_are_read_for_the_next_loader(site: Site) -> None:
    with written(site).serve().loader() as loader:
        assert len(loader) == 9
    (site.folder / "keys.txt").write_text("".join(f"{n}\n" for n in range(20)))
    np.save(site.folder / "w.npy", np.ones(20))
    until("the new list", lambda: len(site.loader()) == 5)


def test_check_makes_each_selected_sample_once(site: Site) -> None:
    written(site)
    out = site.cli("check", str(site.config), "--all")
    assert "36 of 36 samples made once" in out.stdout, out.stdout + out.stderr
    assert "36 of 100 (keys keys.txt), 72 an epoch" in out.stdout


def test_preview_shows_the_drawn_samples(site: Site) -> None:
    written(site)
    out = site.cli("preview", str(site.config), "--json", "--step", "1")
    assert out.returncode == 0, out.stderr


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        ('keys = "keys.txt"', "keys.txt:2: no sample has the key '100'"),
        ('weights = "w.npy"', "w.npy: weight 1 is -1.0"),
        ('split_by = "key"\ngroup = "(a)"', "does not match the key '0'"),
    ],
)
def test_selection_that_is_wrong_keeps_the_daemon_from_starting(
    site: Site, stream: str, text: str
) -> None:
    (site.folder / "keys.txt").write_text("1\n100\n")
    np.save(site.folder / "w.npy", np.full(100, -1.0) + (np.arange(100) == 0) * 2)
    out = site.write(stream=stream).cli("serve", str(site.config))
    assert out.returncode == 3
    assert text in out.stderr
    assert "Traceback" not in out.stderr
