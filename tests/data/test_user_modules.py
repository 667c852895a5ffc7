"""Which user code is imported ahead, and where it is looked for first."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loaderd.config.stream import StreamConfig, TransformConfig
from loaderd.data.errors import SourceError
from loaderd.data.user_modules import import_all, imported, put_first

NAMES = ("um_data", "um_layout", "um_collate", "um_call", "um_init")


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each with a function `thing`; forgotten after the test."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("def thing(*_, **__): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield
    for name in NAMES:
        sys.modules.pop(name, None)


def plan(**changes: Any) -> StreamConfig:
    call = changes.pop("call", None)
    steps = (TransformConfig("hflip", None, {"p": 0.5}), TransformConfig(None, call, {}))
    return StreamConfig("train", transforms=steps if call else steps[:1], **changes)


@pytest.mark.parametrize(
    ("what", "settings"),
    [
        ("dataset", {"dataset": "um_data:thing"}),
        ("layout", {"lmdb": "d", "layout": "um_layout:thing"}),
        ("collate", {"lmdb": "d", "collate": "um_collate:thing"}),
        ("call", {"lmdb": "d", "call": "um_call:thing"}),
    ],
)
def test_each_setting_that_names_code_has_its_module_imported_and_told_once(
    what: str, settings: dict[str, str]
) -> None:
    told: list[str] = []
    import_all([plan(**settings)], "", told.append)
    assert told == [f"importing um_{what.replace('dataset', 'data')} ({what} of stream 'train')"]
    import_all([plan(**settings)], "", told.append)
    assert len(told) == 1


def test_init_comes_last_and_built_in_layouts_and_collates_are_no_modules() -> None:
    told: list[str] = []
    both = plan(lmdb="d", layout="auto", collate="stack", call="um_call:thing")
    import_all([both], "um_init:thing", told.append)
    assert told == [
        "importing um_call (call of stream 'train')",
        "importing um_init (init of [workers])",
    ]


def test_what_is_not_there_is_told_before_it_fails() -> None:
    told: list[str] = []
    with pytest.raises(SourceError, match="um_nowhere"):
        import_all([plan(dataset="um_nowhere:thing")], "", told.append)
    assert told == ["importing um_nowhere (dataset of stream 'train')"]


def test_a_folder_is_put_first_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/a", "/b"])
    put_first("")
    assert sys.path == ["/a", "/b"]
    put_first("/b")
    put_first("/b")
    assert sys.path == ["/b", "/a", "/b"]
    monkeypatch.setattr(sys, "path", [])
    put_first("/b")
    assert sys.path == ["/b"]


def test_what_was_imported_is_remembered_for_one_folder(tmp_path: Path) -> None:
    known = imported(str(tmp_path))
    assert known.folder == str(tmp_path)
    assert imported(str(tmp_path)) is known
    assert imported("").folder == ""
