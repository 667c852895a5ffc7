"""An open database that is written to, replaced, overwritten or only touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loaderd.data.errors import SourceError
from loaderd.data.lmdb.open_stores import open_store
from loaderd.data.lmdb.store import DRAWN_BYTES, Store
from loaderd.data.lmdb.watch import Watch, changed_since
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_testing.sample_builders import write

KEYS = [b"0000", b"0150", b"0299"]


def filled(path: Path, value: int = 0) -> Path:
    write(path, {b"%04d" % i: bytes([(i + value) % 256]) * 3000 for i in range(300)})
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return filled(tmp_path / "db")


@pytest.fixture
def store(path: Path):
    store = open_store(str(path))
    yield store
    store.close()


def overwrite(path: Path, value: int = 1, first: int = 0) -> None:
    """Writes another database of the same size and shape over the pages from `first` on."""
    other = filled(path.parent / f"other{value}", value)
    with path.open("r+b") as file, other.open("rb") as source:
        source.seek(first)
        file.seek(first)
        shutil.copyfileobj(source, file)


def test_what_changed_is_told_with_path_old_and_new(path: Path, store: Store) -> None:
    watch = Watch(store, KEYS)
    assert watch.changed() == ""
    script = (
        "import lmdb, sys; env = lmdb.open(sys.argv[1], subdir=False, lock=False, map_size=1 << "
        "28); "
        "txn = env.begin(write=True); txn.put(b'new', b'v'); txn.commit(); env.close()"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, timeout=DEADLINE_S)
    text = watch.changed()
    assert str(path) in text
    assert "last_txnid 1 -> 2" in text
    assert "entries 300 -> 301" in text


def test_a_replaced_database_is_noticed(path: Path, store: Store) -> None:
    watch = Watch(store, KEYS)
    inode = path.stat().st_ino
    shutil.copy(path, path.parent / "copy")
    os.rename(path.parent / "copy", path)
    assert (
        f"was replaced by another file (inode {inode} -> {path.stat().st_ino})" in watch.changed()
    )
    path.unlink()
    assert "no longer exists" in watch.changed()


def test_a_database_cut_while_it_is_open_is_noticed_before_its_pages_are_touched(
    path: Path, store: Store
) -> None:
    watch = Watch(store, KEYS)
    size = path.stat().st_size
    os.truncate(path, size // 2)
    assert f"needs {size} bytes, has {size // 2}" in watch.changed()


def test_one_overwritten_by_another_of_the_same_shape_is_noticed(path: Path, store: Store) -> None:
    watch = Watch(store, KEYS)
    overwrite(path)
    assert f"{path}: was overwritten by another database" in watch.changed()


def test_pages_overwritten_behind_the_meta_pages_are_noticed(path: Path, store: Store) -> None:
    watch = Watch(store, KEYS)
    overwrite(path, first=2 * 4096)
    assert "was overwritten" in watch.changed()


def test_a_meta_page_that_changes_alone_is_noticed(path: Path, store: Store) -> None:
    watch = Watch(store, KEYS)
    with path.open("r+b") as file:
        file.seek(24)  # an address that nobody reads
        file.write(b"\1")
    assert f"{path}: was written to: its meta pages have changed" in watch.changed()


def test_a_touched_database_is_one_note_and_no_change(path: Path, store: Store) -> None:
    watch = Watch(store, KEYS)
    path.touch()
    assert watch.changed() == ""
    assert watch.changed() == ""
    assert len(watch.notes) == 1
    assert str(path) in watch.notes[0]


def test_a_write_that_leaves_the_time_of_a_young_file_as_it_was_is_noticed(
    path: Path, store: Store
) -> None:
    watch = Watch(store, KEYS)
    path.touch()
    assert watch.changed() == ""
    now = path.stat()
    fake = store.look()
    overwrite(path)
    os.utime(path, ns=(now.st_atime_ns, now.st_mtime_ns))
    store.look = lambda: fake  # as where the clock of the file system has not ticked since
    assert "was overwritten" in watch.changed()


def test_a_process_that_opens_it_later_compares_with_what_the_first_one_found(
    path: Path, store: Store
) -> None:
    state = Watch(store, KEYS).state
    assert Watch(store, KEYS).expect(state) == ""
    store.close()
    overwrite(path)
    later = open_store(str(path))
    watch = Watch(later, KEYS)
    assert watch.changed() == ""  # nothing has changed since it was opened by this one
    assert "was overwritten" in watch.expect(state)
    assert "was overwritten" in watch.changed()
    store.users += 1  # the fixture closes it


def test_a_process_that_opens_another_file_later_says_so(path: Path, store: Store) -> None:
    state = Watch(store, KEYS).state
    os.rename(filled(path.parent / "new"), path)
    later = open_store(str(path))
    assert (
        f"was replaced by another file (inode {store.facts.inode} -> {later.facts.inode})"
        in Watch(later, KEYS).expect(state)
    )
    later.close()


def test_what_cannot_be_opened_any_longer_is_compared_all_the_same(
    path: Path, store: Store
) -> None:
    state = Watch(store, KEYS).state
    assert changed_since(str(path), state) == ""
    path.touch()
    assert "its times have changed" in changed_since(str(path), state)
    os.truncate(path, 100)
    assert "cut short" in changed_since(str(path), state)
    path.unlink()
    assert "no such file" in changed_since(str(path), state)


@pytest.mark.parametrize("at", [0, DRAWN_BYTES, -1])
def test_a_large_value_is_known_by_its_size_both_ends_and_parts_between(
    tmp_path: Path, at: int
) -> None:
    value = bytearray(3 * DRAWN_BYTES + 2)
    drawn = []
    for number in range(2):
        value[at] = number
        store = open_store(write(tmp_path / str(number), {b"k": bytes(value)}))
        drawn.append(store.draw([b"k"]))
        store.close()
    assert drawn[0] != drawn[1]


def test_what_is_mapped_is_what_was_opened(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from loaderd.data.lmdb import store

    other = filled(path.parent / "new", 1)

    def read_facts(fd: int, file: str) -> Any:
        facts = real(fd, file)
        os.rename(other, path)  # just before the library opens the path
        return facts

    real = store.read_facts
    monkeypatch.setattr(store, "read_facts", read_facts)
    with pytest.raises(SourceError, match="was replaced by another file while it was opened"):
        open_store(str(path))
