"""Which of the users' modules were imported, and which of their files have been edited since."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loaderd.system import modules
from loaderd.system.modules import Imported, Modules
from loaderd_testing.deadlines import until

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """write(path below tmp_path, text): a module that can be imported; forgotten after the test."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(path: str, text: str) -> Path:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        importlib.invalidate_caches()
        return file

    yield make
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_modules_of_the_folder_are_known_and_no_others(tmp_path: Path, write: Write) -> None:
    write("pack_one/__init__.py", "")
    write("pack_one/deep.py", "x = 1")
    write("unused_one.py", "")
    write("site-packages/installed_one.py", "")
    sys.path.insert(0, str(tmp_path / "site-packages"))
    imported = Imported(str(tmp_path))
    importlib.import_module("pack_one.deep")
    importlib.import_module("installed_one")
    importlib.import_module("colorsys")
    sys.path.remove(str(tmp_path / "site-packages"))
    assert [module.path for module in imported.news()] == [
        "pack_one/__init__.py",
        "pack_one/deep.py",
    ]
    assert imported.news() == ()
    write("late_one.py", "")
    importlib.import_module("late_one")
    assert [module.path for module in imported.news()] == ["late_one.py"]
    assert [module.path for module in imported.all()] == [
        "late_one.py",
        "pack_one/__init__.py",
        "pack_one/deep.py",
    ]


def test_a_folder_with_another_name_is_the_same_folder(tmp_path: Path, write: Write) -> None:
    write("named_one.py", "")
    importlib.import_module("named_one")
    (tmp_path.parent / "alias").symlink_to(tmp_path)
    imported = Imported(str(tmp_path.parent / "alias"))
    assert [module.path for module in imported.news()] == ["named_one.py"]


def test_what_lies_in_the_table_of_modules_is_asked_for_nothing(tmp_path: Path) -> None:
    class Wild:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"asked for {name}")

    sys.modules["wild_one"] = Wild()  # pyright: ignore[reportArgumentType]
    try:
        assert Imported(str(tmp_path)).news() == ()
    finally:
        del sys.modules["wild_one"]


def test_without_a_folder_there_is_nothing_to_know() -> None:
    assert Imported("").news() == ()


def test_an_edited_file_is_known_by_its_bytes_and_not_by_its_time(
    tmp_path: Path, write: Write
) -> None:
    file = write("edited_one.py", "x = 1")
    importlib.import_module("edited_one")
    known = Modules(str(tmp_path))
    assert known.add(Imported(str(tmp_path)).news()) == []
    assert known.edited() == []
    os.utime(file, ns=(1, 1))
    assert known.edited() == []
    file.write_text("x = 2")
    assert known.edited() == ["edited_one.py"]
    file.write_text("x = 1")
    assert known.edited() == []
    file.unlink()
    assert known.edited() == ["edited_one.py"]


def test_a_process_that_has_imported_another_version_is_found_out(
    tmp_path: Path, write: Write
) -> None:
    file = write("twice_one.py", "x = 1")
    importlib.import_module("twice_one")
    known = Modules(str(tmp_path))
    assert known.add(Imported(str(tmp_path)).news()) == []
    file.write_text("x = 2")
    assert known.add(Imported(str(tmp_path)).news()) == ["twice_one.py"]


def test_no_more_than_a_bound_is_kept_in_mind(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules, "MOST", 2)
    imported = Imported(str(tmp_path))
    for name in ("bound_a", "bound_b", "bound_c"):
        write(f"{name}.py", "")
        importlib.import_module(name)
        imported.look()
    assert [module.path for module in imported.all()] == ["bound_a.py", "bound_b.py"]
    known = Modules(str(tmp_path))
    known.add([modules.Module(f"{n}.py", 0, 0, "") for n in range(3)])
    assert known.edited() == ["0.py", "1.py"]


def test_an_edit_that_leaves_size_and_time_of_a_file_as_they_were_is_noticed(
    tmp_path: Path,
) -> None:
    file = tmp_path / "same.py"
    file.write_text("x = 1")
    module = modules.read(str(tmp_path), "same.py")
    assert module is not None
    known = modules.Modules(str(tmp_path))
    known.add([module])
    file.write_text("x = 2")

    def ticked() -> bool:
        os.utime(file, ns=(module.mtime_ns, module.mtime_ns))
        return file.stat().st_ctime_ns != module.ctime_ns

    until("a tick of the file system's clock", ticked)
    assert known.edited() == ["same.py"]


def test_what_is_no_readable_file_of_bearable_size_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules, "MOST_BYTES", 5)
    (tmp_path / "long.py").write_text("x = 10")
    (tmp_path / "short.py").write_text("x = 1")
    (tmp_path / "folder.py").mkdir()
    for name in ("long.py", "folder.py", "gone.py"):
        assert modules.read(str(tmp_path), name) is None
    assert modules.read(str(tmp_path), "short.py") is not None
