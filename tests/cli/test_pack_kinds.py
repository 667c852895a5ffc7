"""Every kind of source, packed by the data page's own command, served, and compared with what the
source's own reader reads.
"""

from __future__ import annotations

import glob
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaderd.__main__ import main
from loaderd.data.packing.kinds import KINDS
from loaderd_client import Loader
from loaderd_testing.packing import SOURCES, Samples
from loaderd_testing.pages import commands
from loaderd_testing.sample_builders import by_pillow

DATA = "loaderd/data/README.md"
OTHERS = {
    command[2]: shlex.split(" ".join(command[1:]))
    for command in commands(DATA)
    if command[2] in KINDS
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Samples]:
    """What a Loader delivers of each kind. One daemon serves all of them."""
    folder = tmp_path_factory.mktemp("kinds")
    config = "[workers]\nnum_workers = 1\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for kind, (write, _, stream) in SOURCES.items():
            write(folder)
            words = [f"{kind}.lmdb" if word == "train.lmdb" else word for word in OTHERS[kind]]
            command = [name for word in words for name in sorted(glob.glob(word)) or [word]]
            assert main(command) == 0
            config += f"[streams.{kind}]\nlmdb = '{kind}.lmdb'\n{stream}\n"
    (folder / "config.toml").write_text(config)

    def samples(kind: str) -> Samples:
        with Loader(str(folder / "config.toml"), stream=kind, output="numpy") as loader:
            return [{name: value[0] for name, value in batch.items()} for batch in loader]

    return samples


@pytest.mark.parametrize("kind", SOURCES)
def test_what_is_packed_and_served_is_what_the_sources_own_reader_reads(
    served: Callable[[str], Samples], kind: str, tmp_path: Path
) -> None:
    write, read, _ = SOURCES[kind]
    write(tmp_path)
    expected = read(tmp_path)
    delivered = served(kind)
    assert len(delivered) == len(expected)
    for ours, theirs in zip(delivered, expected, strict=True):
        assert {name: plain(value) for name, value in ours.items()} == {
            name: plain(value) for name, value in theirs.items()
        }


def plain(value: Any) -> Any:
    if isinstance(value, bytes):
        value = by_pillow(value)
    return json.dumps(np.asarray(value).tolist()) if not isinstance(value, str) else value


def test_the_page_shows_every_kind() -> None:
    assert set(OTHERS) == set(KINDS)
    assert set(SOURCES) == set(KINDS) - {"imagefolder", "dataset"}
