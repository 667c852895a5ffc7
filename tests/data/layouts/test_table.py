"""The table of layouts: every one is in the user's page, and none takes another's databases."""

from __future__ import annotations

from pathlib import Path

import pytest

from loaderd.data.errors import SourceError
from loaderd.data.layouts.base import NeedsPickle
from loaderd.data.layouts.table import LAYOUTS, NAMES
from loaderd_testing.foreign_databases import source
from loaderd_testing.sample_builders import write

ROOT = Path(__file__).parents[3]


def test_the_table_of_the_page_is_the_one_of_the_code() -> None:
    page = (ROOT / "loaderd" / "data" / "README.md").read_text()
    rows = [f"| `{layout.name}` | {layout.marks} |" for layout in LAYOUTS]
    assert "\n".join(rows) in page
    assert len(set(NAMES)) == len(NAMES) > 25


@pytest.mark.parametrize("name", NAMES)
def test_no_layout_takes_a_database_of_which_nothing_is_known(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "db", {b"a": b"\x07\xc1", b"b": b"\x07\xc1\xff"})
    with pytest.raises(SourceError):
        source(path)
    if name not in ("files", "raw"):
        with pytest.raises(SourceError) as caught:
            source(path, name)
        assert not isinstance(caught.value, NeedsPickle)
        assert path in str(caught.value)
